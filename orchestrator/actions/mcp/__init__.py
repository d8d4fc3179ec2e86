"""The store for agents, over the Model Context Protocol: what they may ask, the answers, and
the server."""
