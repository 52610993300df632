"""Examples of a property may take long on a busy machine: time is no property of the wire."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
