"""Publish a run's models to devices, for use."""
