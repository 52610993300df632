"""From accepted reports to a new state of the method: sums, limits on single reports, blame."""
