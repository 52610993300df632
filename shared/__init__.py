"""What both ends must agree on: vectors, strategies, messages, topics, the link.

Nothing here imports `agent`, `coordinator` or `broker`, and nothing here imports torch.
"""
