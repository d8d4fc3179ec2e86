"""Files that perfctl writes during a run."""
