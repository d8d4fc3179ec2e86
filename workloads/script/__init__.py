"""The user's own script, unedited."""
