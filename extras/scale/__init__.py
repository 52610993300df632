"""`coordinator lab aggregate`: a process near one broker that adds the reports of its agents up for the coordinator."""
