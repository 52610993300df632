"""Learning on local data: the session, the outbox, the worker that alone holds torch."""
