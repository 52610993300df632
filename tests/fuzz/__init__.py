"""Hostile input for everything that reads bytes: one table of targets, a short form for the suite, a campaign of a million.

`python -m tests.fuzz --inputs 1000000 --seed 1` runs the campaign (docs/fuzzing.md).
"""
