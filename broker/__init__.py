"""The middle: Mosquitto set up and started, an embedded stand-in, and a doctor for any broker."""
