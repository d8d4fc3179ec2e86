"""One file for each command: its options, what it does, and the name of its view."""
