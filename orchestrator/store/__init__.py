"""One SQLite file, described column by column in docs/schema.md."""
