"""Host synchronisation inside a step: an operator that waits for a value from the GPU, and what the GPU loses by it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from perfctl.orchestrator.analyse.usage.busy import end_of
from perfctl.orchestrator.analyse.verdicts.rule import percent
from perfctl.orchestrator.analyse.verdicts.timeline.records import RunVerdict, Timeline, milliseconds
from perfctl.records.report import OpCall

WORTH = 0.02
"""A smaller share of the steps without a kernel makes no verdict."""
SAID = {
    "aten::_local_scalar_dense": "item() (aten::_local_scalar_dense)", "aten::nonzero": "nonzero() (aten::nonzero)",
    "aten::copy_": "a copy to the host (aten::copy_)",
}  # fmt: skip
"""Operators that wait for the GPU when a copy to the host lies inside them, as a sentence names them."""
_NOT_THE_USERS = ("torch/", "<built-in", "<frozen", "nn.Module:", "contextlib", "functools.py")
TODO = (
    "Keep the value on the GPU (torch.where, masks, a loss that is read every N steps), or copy it with non_blocking=True into "
    "pinned memory and read it a step later"
)


class Sync(NamedTuple):
    """One call that waited for a copy to the host; times in ns."""

    call: OpCall
    waited: int
    """The call's time on the host."""
    idle: int
    """From the end of the copy to the start of the GPU's next kernel, where none ran in between."""


def host_sync(found: Timeline) -> RunVerdict | None:
    """Calls inside the steps within which a copy to the host began and ended: the host waited for it.

    The share is the time that the GPU then had no kernel, of the time of the steps: waiting itself costs nothing while the
    GPU works.
    """
    syncs = list(_syncs(found))
    share = sum(sync.idle for sync in syncs) / found.length
    if share < WORTH:
        return None
    waited, idle = sum(sync.waited for sync in syncs), sum(sync.idle for sync in syncs)
    names = Counter(sync.call.name for sync in syncs)
    often = " and ".join(
        f"{SAID[name]}, {count:,} {'time' if count == 1 else 'times'}" for name, count in names.most_common(2)
    )
    text = (
        f"Host sync: in {found.whole}, the host waits for the GPU in {often}: {milliseconds(waited)} in all. Each time the GPU "
        f"then has nothing to do until the next launch: {milliseconds(idle)}, {percent(share)} of {milliseconds(found.length)}"
    )
    lost: dict[str, int] = defaultdict(int)
    for sync in syncs:
        if (frame := users_frame(sync.call.stack)) is not None:
            lost[frame] += sync.idle
    return RunVerdict("host sync", f"{text}.{_where(lost)}", share, "the time of the steps", f"{TODO}.")


def _where(lost: Mapping[str, int]) -> str:
    """ " Most of it is at train.py(12): step."; says so where the trace has no stacks."""
    if not lost:
        return " The trace has no Python stacks (with_stack=True) that say where."
    return f" Most of it is at {max(lost, key=lambda frame: lost[frame])}."


def users_frame(stack: str | None) -> str | None:
    """The innermost frame that is not PyTorch's own: "train.py(12): step"; None without one."""
    for frame in (stack or "").splitlines():
        if "(" in frame and not any(part in frame for part in _NOT_THE_USERS):
            return frame.strip()
    return None


def _syncs(found: Timeline) -> Iterable[Sync]:
    """One for each copy to the host, of the innermost call around it."""
    copies = sorted((copy for copy in found.copies if copy.kind == "DtoH"), key=lambda copy: copy.start_ns or 0)
    starts = [copy.start_ns or 0 for copy in copies]
    steps = {piece.step for piece in found.pieces}
    around: dict[int, OpCall] = {}
    for call in found.run.report.waiting_calls:
        if call.name not in SAID or call.start_ns is None or call.duration_ns is None or call.step not in steps:
            continue
        place = bisect_left(starts, call.start_ns)
        if place < len(copies) and end_of(copies[place]) <= call.start_ns + call.duration_ns:
            known = around.get(place)
            if known is None or (known.start_ns or 0) <= call.start_ns:
                around[place] = call
    begins = sorted(kernel.start_ns or 0 for piece in found.pieces for kernel in piece.kernels)
    ends = sorted(end_of(kernel) for piece in found.pieces for kernel in piece.kernels)
    for place, call in around.items():
        end = end_of(copies[place])
        following = bisect_right(begins, end)
        is_running = following > bisect_right(ends, end)
        idle = begins[following] - end if following < len(begins) and not is_running else 0
        yield Sync(call, call.duration_ns or 0, idle)
