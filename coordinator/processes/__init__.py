"""The programs and worker processes that a run starts."""
