"""What a run writes for people and programs: its record, its audit log, sketches; and how they are read."""
