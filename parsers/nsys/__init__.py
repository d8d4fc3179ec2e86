"""Nsight Systems: reports, SQLite and the text of nsys stats."""
