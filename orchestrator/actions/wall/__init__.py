"""What one file or run may cost when it is not what it should be: itself, and so much memory."""
