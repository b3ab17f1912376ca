"""The only place with threads, wall time, signals and files.

The driver thread runs the scheduler's event loop. Every decoder rank, the learner and the
environments work in threads of their own, and talk to the driver by events only.
"""
