"""The brokers that we can start."""
