"""What the core works without: one capability in each folder, which can be taken away."""
