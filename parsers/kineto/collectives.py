"""Collectives of a trace: what a rank sent to others, and how long that took on its GPU."""

from __future__ import annotations

import re

from perfctl.parsers.kineto.events import CommArgs, Events
from perfctl.parsers.kineto.nesting import Nesting
from perfctl.parsers.kineto.records import Launches
from perfctl.records.report import Collective

KERNEL = re.compile(
    r"(?:void )?(?:(?:nccl|rccl|msccl)\w*?kernel(?:_generic)?_?([^_\W]*)"
    r"|(?:dpsk::ep|deep_ep)::(?:internode|intranode)\w*::(\w+))",
    re.IGNORECASE,
)
"""Kernels of NCCL and RCCL, with what they do behind ("ncclDevKernel_AllReduce_Sum_f32_RING_LL"); of DeepEP."""
_KINDS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "broadcast": "broadcast",
    "reduce": "reduce", "sendrecv": "send_recv", "alltoall": "all_to_all",
}  # fmt: skip
_SIZES = {
    **dict.fromkeys(("byte", "char", "bool", "int8", "uint8"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int", "float32", "int32", "uint32", "complexhalf"), 4),
    **dict.fromkeys(("double", "long", "float64", "int64", "uint64", "complexfloat"), 8),
    "complexdouble": 16,
}
"""c10's names of types, in small letters -> bytes of an element."""


def element_bytes(dtype: str | None) -> int | None:
    """None for a type that is not known."""
    name = (dtype or "").lower()
    return 1 if name.startswith("float8") else _SIZES.get(name)


def collectives(events: Events, nesting: Nesting, launches: Launches) -> list[Collective]:
    """One row a kernel that talks to other GPUs, in the order of the trace.

    Its name is that of its arguments, else of the range that launched it (nccl:all_reduce), else of the kernel; ``bytes``
    is known only with arguments.
    """
    found = []
    for number, (event, span) in enumerate(zip(events.kernels, launches.kernel_spans, strict=True)):
        match = KERNEL.match(event.name)
        args = events.comms.get(-1 - number)
        if match is None and args is None:
            continue
        args, said = _around(events, nesting, span) if args is None else (args, None)
        word = (match[1] or match[2] or "") if match else ""
        kind = event.name if not word or word.isdecimal() else _KINDS.get(word.lower(), word.lower())
        if args is None:
            found.append(Collective(said or kind, start_ns=event.start, duration_ns=event.duration))
            continue
        size = element_bytes(args.dtype)
        total = None if size is None or args.elements is None or args.elements < 0 else size * args.elements
        facts = (args.group, args.size, total, args.dtype)
        found.append(Collective(args.name, *facts, start_ns=event.start, duration_ns=event.duration))
    return found


def _around(events: Events, nesting: Nesting, span: int) -> tuple[CommArgs | None, str | None]:
    """Arguments of the operation that launched it, and the collective that a range around the launch names."""
    said = None
    while span >= 0:
        if span in events.comms:
            return events.comms[span], said
        name = events.spans[span].name
        if said is None and name.startswith("nccl:"):
            said = name.removeprefix("nccl:")
        span = nesting.parents[span]
    return None, said
