"""The round engine: pure decisions with time as input."""
