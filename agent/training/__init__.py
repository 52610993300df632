"""Torch: models, local training, export. Nothing outside of here and the worker imports it."""
