"""Cards: summaries of the data of devices, whose tests decide whether a fleet has groups, and into how many it is cut."""
