"""Simulated agents in the process of the coordinator, which can train together on one device."""
