"""What the timeline of a run says could be faster: waits between kernels, of the host, for other
ranks, and needless passes."""
