"""Transcripts of the machines of agent and coordinator: events in, effects out."""
