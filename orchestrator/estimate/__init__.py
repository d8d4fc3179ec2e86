"""What the formulas require: FLOPs, bytes and memory, before anything runs."""
