"""What parsers of several formats share: texts, numbers, JSON and SQLite files. Nothing here knows
a format."""
