"""What perfctl can do, one function each: records out, no flags, no printing."""
