"""The dashboard: one page on this machine that shows a run while it happens, and commands it."""
