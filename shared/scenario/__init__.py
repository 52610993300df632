"""The scenario file: its sections, how it is read, and how its mistakes are explained."""
