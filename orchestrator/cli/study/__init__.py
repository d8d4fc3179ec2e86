"""perfctl study: one command for each study."""
