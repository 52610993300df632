"""A program on its machine: how it starts and ends, its children, its terminal, timers, HTTP server and version."""
