"""The built-in models: what they consist of, and their initial weights, where torch is not."""
