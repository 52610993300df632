"""What the audit log of a run proves, and the story of one device in it."""
