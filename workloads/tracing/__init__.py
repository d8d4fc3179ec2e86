"""Which layer runs which operation."""
