"""Instructions that a kernel executes, worked out from its machine code: blocks, loops, turns, bounds."""
