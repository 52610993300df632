"""Runs in experiment trackers: the milestones of a run as figures, one thin adapter for each tracker."""
