"""A broker in memory, for tests."""
