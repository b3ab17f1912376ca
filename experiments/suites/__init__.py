"""Benchmarks that are run by name."""
