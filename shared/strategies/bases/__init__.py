"""What several methods share: one model, hard clusters, soft clusters."""
