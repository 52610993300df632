"""Secure sums: agents mask their updates so that the coordinator learns the sum of a group and no single update.

`parameters` and `messages` hold what both ends agree on, `agent` and `coordinator` the decisions of each end. Cryptographic
primitives come from the package `cryptography` and are used through `primitives` alone.
"""
