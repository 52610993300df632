"""Code that is imported by name: what the owner of a machine consented to, plug-ins, and our own doors."""
