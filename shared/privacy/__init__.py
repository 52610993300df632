"""Differential privacy: its settings and its noise."""
