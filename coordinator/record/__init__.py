"""What a run writes for people and programs: its record and its audit log; and how they are read."""
