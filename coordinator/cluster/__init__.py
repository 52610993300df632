"""Cells of a comparison on the machines of a cluster."""
