"""Host synchronisation inside a step: an operator or a call that waits for the GPU, and what the GPU loses by it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from perfctl.orchestrator.analyse.usage.busy import end_of
from perfctl.orchestrator.analyse.verdicts.rule import percent
from perfctl.orchestrator.analyse.verdicts.timeline.records import RunVerdict, Timeline, milliseconds
from perfctl.records.report import WAITS, OpCall

WORTH = 0.02
"""A smaller share of the steps without a kernel makes no verdict."""
LONGEST_NS = 1_000_000
"""After a longer time without a kernel the host did something else: it loaded data, or wrote a checkpoint."""
SAID = {
    "aten::_local_scalar_dense": "item() (aten::_local_scalar_dense)", "aten::nonzero": "nonzero() (aten::nonzero)",
    "aten::copy_": "a copy to the host (aten::copy_)",
}  # fmt: skip
"""Operators that wait for the GPU when a copy to the host lies inside them, as a sentence names them."""
PAGEABLE = "a copy from pageable memory (aten::copy_)"
_NOT_THE_USERS = ("torch/", "<built-in", "<frozen", "nn.Module:", "contextlib", "functools.py")
TODO = (
    "Keep the value on the GPU (torch.where, masks, a loss that is read every N steps), or copy it with non_blocking=True into "
    "pinned memory and read it a step later"
)
PAGEABLE_TODO = "Copy to the GPU from pinned memory with non_blocking=True (DataLoader's pin_memory=True)"
SYNC_TODO = (
    "Take torch.cuda.synchronize() and the like out of the step: streams wait for each other without the host (wait_stream, "
    "events), and events measure time (torch.cuda.Event(enable_timing=True))"
)


_OF_STREAMS = ("cudaStreamSynchronize", "cuStreamSynchronize", "hipStreamSynchronize")
_AFTER: dict[str | None, tuple[str, str]] = {
    "DtoH": (" after a copy to the host", TODO), "HtoD": (" after a copy from the host", PAGEABLE_TODO)
}  # fmt: skip
"""Kind of the copy that a stream ended with when the host had waited for it -> what follows the call's name, what to do."""


class Sync(NamedTuple):
    """One call that waited for the GPU; times in ns."""

    call: OpCall
    what: str
    """As a sentence names it: "item() (aten::_local_scalar_dense)", "cudaStreamSynchronize"."""
    todo: str
    done: int
    """When the GPU had done what the host waited for."""

    @property
    def waited(self) -> int:
        """The call's time on the host."""
        return self.call.duration_ns or 0


def host_sync(found: Timeline) -> RunVerdict | None:
    """Calls inside the steps within which a copy to the host began and ended, or that wait for the GPU by their name.

    The share is the time that the GPU then had no kernel, of the time of the steps: waiting itself costs nothing while the
    GPU works. Of several calls before one kernel the last one counts.
    """
    syncs = sorted(_syncs(found), key=lambda sync: sync.done)
    lost = _lost(found, syncs)
    idle = sum(lost.values())
    share = idle / found.length
    if share < WORTH:
        return None
    names = Counter(sync.what for sync in syncs)
    often = " and ".join(
        f"{name}, {count:,} {'time' if count == 1 else 'times'}" for name, count in names.most_common(2)
    )
    text = (
        f"Host sync: in {found.whole}, the host waits for the GPU in {often}: {milliseconds(sum(sync.waited for sync in syncs))} "
        f"in all. The GPU then has nothing to do until the next launch: {milliseconds(idle)} in all, {percent(share)} of "
        f"{milliseconds(found.length)}"
    )
    frames: dict[str, int] = defaultdict(int)
    for place, ns in lost.items():
        if (frame := users_frame(syncs[place].call.stack)) is not None:
            frames[frame] += ns
    todos = dict.fromkeys(sync.todo for sync in syncs if sync.what in dict(names.most_common(2)))
    return RunVerdict(
        "host sync",
        f"{text}.{_where(frames, found.run.report.tool)}",
        share,
        "the time of the steps",
        f"{'. '.join(todos)}.",
    )


def _lost(found: Timeline, syncs: Sequence[Sync]) -> dict[int, int]:
    """Place of a call, the last one before a kernel -> ns from the end of what it waited for to that kernel."""
    kernels = [kernel for piece in found.pieces for kernel in piece.kernels]
    begins, ends = sorted(kernel.start_ns or 0 for kernel in kernels), sorted(map(end_of, kernels))
    last: dict[int, int] = {}
    for place, sync in enumerate(syncs):
        following = bisect_right(begins, sync.done)
        is_running = following > bisect_right(ends, sync.done)
        if following < len(begins) and not is_running:
            last[following] = place
    gaps = {place: begins[following] - syncs[place].done for following, place in last.items()}
    return {place: ns for place, ns in gaps.items() if ns <= LONGEST_NS}


def _where(lost: Mapping[str, int], tool: str) -> str:
    """ " Most of it is at train.py(12): step."; says so where the report has no stacks."""
    if not lost and tool == "nsys":
        return " nsys reports have no stacks that say where."
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
    """One for each copy to the host, of the innermost call around it, and one for each wait outside of these calls."""
    copies = sorted((copy for copy in found.copies if copy.kind == "DtoH"), key=lambda copy: copy.start_ns or 0)
    starts = [copy.start_ns or 0 for copy in copies]
    steps = {piece.step for piece in found.pieces}
    calls = [
        call for call in found.run.report.waiting_calls
        if call.start_ns is not None and call.duration_ns is not None and call.step in steps
    ]  # fmt: skip
    operators = [call for call in calls if call.name in SAID]
    around: dict[int, OpCall] = {}
    for call in operators:
        place = bisect_left(starts, call.start_ns or 0)
        if place < len(copies) and end_of(copies[place]) <= _until(call):
            known = around.get(place)
            if known is None or (known.start_ns or 0) <= (call.start_ns or 0):
                around[place] = call
    for place, call in around.items():
        yield Sync(call, SAID[call.name], TODO, end_of(copies[place]))
    ends = sorted([*(end_of(one) for piece in found.pieces for one in piece.kernels), *map(end_of, found.copies)])
    of_copies = {end_of(copy): copy.kind for copy in found.copies}
    told = {id(call) for call in around.values()}
    enclosing = _Enclosing(operators)
    for call in calls:
        place = bisect_right(ends, _until(call)) - 1
        if call.name not in WAITS or place < 0 or ends[place] <= (call.start_ns or 0):
            continue  # the GPU had done all before: nothing to wait for
        outer = enclosing.of(call)
        if outer is None:
            kind = of_copies.get(ends[place]) if call.name in _OF_STREAMS else None
            what, todo = _AFTER.get(kind, ("", SYNC_TODO))
            yield Sync(call, call.name + what, todo, ends[place])
        elif id(outer) not in told:
            what, todo = (PAGEABLE, PAGEABLE_TODO) if outer.name == "aten::copy_" else (SAID[outer.name], TODO)
            yield Sync(outer, what, todo, ends[place])


class _Enclosing:
    """Finds the operator of the same thread that a call is inside of."""

    def __init__(self, operators: Iterable[OpCall]) -> None:
        self.threads: dict[int | None, list[OpCall]] = defaultdict(list)
        for call in sorted(operators, key=lambda one: one.start_ns or 0):
            self.threads[call.thread].append(call)

    def of(self, call: OpCall) -> OpCall | None:
        mine = self.threads.get(call.thread, [])
        place = bisect_right(mine, call.start_ns or 0, key=lambda one: one.start_ns or 0) - 1
        return mine[place] if place >= 0 and _until(call) <= _until(mine[place]) else None


def _until(call: OpCall) -> int:
    return (call.start_ns or 0) + (call.duration_ns or 0)
