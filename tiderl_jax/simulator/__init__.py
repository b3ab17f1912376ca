"""The scheduler in virtual time: an event heap, cost models, workload profiles, injected faults."""
