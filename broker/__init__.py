"""The broker: starts Mosquitto or an embedded replacement, manages users, and examines any broker."""
