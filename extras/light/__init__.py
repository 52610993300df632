"""Devices without torch."""
