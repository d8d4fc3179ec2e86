"""The measured loop."""
