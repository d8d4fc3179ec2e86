"""Pages, charts and tables made from analysed records."""
