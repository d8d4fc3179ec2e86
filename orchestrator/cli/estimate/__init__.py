"""Commands that work without measuring."""
