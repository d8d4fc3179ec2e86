"""Commands that read reports and the store."""
