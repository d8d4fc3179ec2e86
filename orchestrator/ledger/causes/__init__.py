"""Why executed and estimated FLOPs differ."""
