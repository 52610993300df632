"""The judge of a device: after the last round it weighs all that the device can answer with, on data of its own."""
