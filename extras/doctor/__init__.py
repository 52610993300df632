"""The commands that list what is odd about a fleet, or about a broker."""
