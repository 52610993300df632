"""The looks of all pages: colours, letters, tables, shared by reports and the dashboard."""
