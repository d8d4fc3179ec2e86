"""The records that every stage shares; they import nothing of perfctl."""
