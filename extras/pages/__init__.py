"""The page of a run, the dashboard, and the pictures on both."""
