"""Vectors and what is computed with them: means, distances, clusterings, figures. Pure."""
