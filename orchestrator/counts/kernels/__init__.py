"""What a kernel's name and grid say."""
