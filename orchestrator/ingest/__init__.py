"""Take reports into the database."""
