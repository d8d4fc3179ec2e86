"""``perfctl count``: instructions of a kernel, read from its machine code."""
