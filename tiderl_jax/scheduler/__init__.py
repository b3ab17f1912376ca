"""Decisions: a pure function from events to commands. No engine, clock, thread or randomness."""
