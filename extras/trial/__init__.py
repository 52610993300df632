"""A first answer for files of one's own: whether a federation would be worth it."""
