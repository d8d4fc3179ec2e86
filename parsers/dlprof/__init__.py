"""DLProf reports: CSV, JSON and database."""
