"""Did the GPU execute the FLOPs that the formula requires, and if not, why?

One pass leads from runs to causes. Read it in this order:

``prepared``   Runs that may be read side by side are a ``Study``. Each of its runs knows the layer
               and direction of every kernel, the executed FLOPs per step, and the time per step;
               each is computed once, at its first use.
``timing``     Time per step by layer and direction, and the clock that it is of.
``ledger``     One ``LedgerRow`` per layer, direction and batch size: the estimated FLOPs
               and the executed ones (by counters, otherwise derived from kernel names and grids),
               and ``ratio`` = executed / estimated. What belongs to no layer is
               ``UnattributedWork``; ``unattributed`` has the causes of its time.
``causes``     The evidence of a row is its kernels, their grids and counts, and the shape of its
               layer. Each rule proposes a cause and the factor of the ratio that it explains. One
               judge drops what the evidence contradicts; what the factors leave is unexplained.
``analysis``   All of this for one study, and what reads the same rows: ``roofline`` (which limit
               the work reaches) and ``sweep`` (how it changes with the batch size).

``usage`` answers another question: how busy the GPU was, what it waited for, memory, energy, ranks.
``network`` and ``arm_figures`` read several analyses together.
"""
