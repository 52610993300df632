"""Who takes part and when: the round engine, the spool, checkpoints, records, the run."""
