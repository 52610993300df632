"""Many agents in one process, and the faults they can be given."""
