"""Files that survive a kill, files of lines, JSON, and the audit log."""
