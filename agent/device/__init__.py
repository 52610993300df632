"""One agent on its device: session, outbox, service."""
