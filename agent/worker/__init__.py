"""The process that trains, and the pool that starts it."""
