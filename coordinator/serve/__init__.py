"""A run behind a broker."""
