"""What a study shows, made once and written as a page, as Markdown to hand in, and as CSV files."""
