"""Commands for clusters and images."""
