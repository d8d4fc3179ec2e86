"""FLOPs of every operation by formula."""
