"""What the tables of the store are: the first schema, and each change since."""
