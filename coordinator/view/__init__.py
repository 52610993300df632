"""What everything that shows a run has in common: its state, words, tables, charts, and the looks of pages. Pure."""
