"""Take reports into the store."""
