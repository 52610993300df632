"""Odd devices: one ranked list over data, figures, silence, versions, certificates, disks, clocks and refusals."""
