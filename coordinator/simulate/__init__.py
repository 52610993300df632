"""A run without a broker."""
