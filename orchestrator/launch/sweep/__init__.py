"""One process per batch size."""
