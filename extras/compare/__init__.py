"""Comparisons: the grid of cells and its tables."""
