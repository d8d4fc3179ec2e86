"""The four studies that perfctl serves, one function each: measure or read what is recorded, and
make one page of it."""
