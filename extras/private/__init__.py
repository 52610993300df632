"""Differential privacy: noise of a device and of the coordinator, and the accounts of both."""
