"""The client half of a phase: from an order to a report, the same for a device and a simulated agent."""
