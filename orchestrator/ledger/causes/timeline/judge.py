"""All verdicts about a run's timeline, and the rules about the host and about work: launch-bound
steps, host synchronisation, communication that nothing hides, and work that is done twice
(activation checkpointing).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from perfctl.orchestrator.estimate.flops.engine import parts_of
from perfctl.orchestrator.ledger.causes.rule import amount, percent
from perfctl.orchestrator.ledger.causes.timeline.kernels import (
    cast_storm,
    chains,
    unused_tensor_cores,
)
from perfctl.orchestrator.ledger.causes.timeline.records import (
    Piece,
    RunVerdict,
    Timeline,
    milliseconds,
    timeline,
)
from perfctl.orchestrator.ledger.usage.intervals import end_of
from perfctl.orchestrator.ledger.usage.ranks import Activity
from perfctl.records.report import WAITS, Kernel, OpCall
from perfctl.records.run import Run

WORK_SHARE_MIN = 0.05
AGAIN_TODO = (
    "Expected with activation checkpointing: it trades time for memory. Checkpoint fewer layers, "
    "or only cheap operators (torch.utils.checkpoint with a selective policy), where memory is free"
)
TALK_TODO = (
    "Overlap it with backward: larger or earlier buckets (DDP's bucket_cap_mb), prefetching in "
    "FSDP, no wait() before the result is needed; or send less (bf16 gradients, no_sync() while "
    "gradients accumulate)"
)


FORWARDS = (
    "aten.addmm",
    "aten.linear",
    "aten.convolution",
    "aten.baddbmm",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
)
"""Operators that no gradient is made of: one that runs in backward is a forward's. A product
(aten.mm, aten.bmm) may be a gradient."""
QUEUED_NS = 2_000
"""A kernel that waits in a queue starts once the one before it has drained and its own blocks were
dispatched, 1 to 2 us: a gap up to this is not the host's, and a graph does not remove it."""
LAUNCH_NS = 200_000
"""A gap up to this is the launch of the next operator: 5 to 50 us in eager PyTorch, and longer
under a profiler that records shapes and stacks. A longer gap has other causes."""
LAUNCH_GAPS_SHARE_MIN = 0.2
"""A smaller share of the step makes no verdict: without these gaps the step would be less than 1 /
(1 - 0.2) = 1.25 times as fast, and a profiler that adds 2 us to launches of 8 us makes a fifth of a
launch-bound step by itself."""
LAUNCHES_MIN = 20
"""With fewer launches a step there is no launching in a row."""
GRAPH_TODO = (
    "Capture the step as a CUDA graph (torch.cuda.graph, torch.compile with "
    "mode='reduce-overhead'), or give each launch more work: larger batches, fused operators"
)
HOST_WAIT_SHARE_MIN = 0.02
"""A smaller share of the steps without a kernel makes no verdict."""
LONGEST_NS = 1_000_000
"""After a longer time without a kernel the host did something else: it loaded data, or wrote
a checkpoint."""
SAID = {
    "aten::_local_scalar_dense": "item() (aten::_local_scalar_dense)",
    "aten::nonzero": "nonzero() (aten::nonzero)",
    "aten::copy_": "a copy to the host (aten::copy_)",
}
"""Operators that wait for the GPU when a copy to the host lies inside them, as a sentence
names them."""
FROM_HOST = {
    "pageable": "a copy from pageable memory (aten::copy_)",
    "pinned": "a blocking copy from pinned memory (aten::copy_)",
    None: "a blocking copy from the host (aten::copy_)",
}
"""Memory that the copy read, None where the report does not say -> the copy as a sentence
names it."""
_NOT_THE_USERS = ("torch/", "<built-in", "<frozen", "nn.Module:", "contextlib", "functools.py")
READ_TODO = (
    "Keep the value on the GPU (torch.where, masks, a loss that is read every N steps), or copy it "
    "with non_blocking=True into pinned memory and read it a step later"
)
PAGEABLE_TODO = (
    "Copy to the GPU from pinned memory with non_blocking=True (DataLoader's pin_memory=True)"
)
SYNC_TODO = (
    "Take torch.cuda.synchronize() and the like out of the step: streams wait for each other "
    "without the host (wait_stream, events), and events measure time "
    "(torch.cuda.Event(enable_timing=True))"
)


PINNED_TODO = "Copy to the GPU with non_blocking=True: the memory is pinned already"

_OF_STREAMS = ("cudaStreamSynchronize", "cuStreamSynchronize", "hipStreamSynchronize")


def recomputed(run: Run) -> RunVerdict | None:
    """Operators of FORWARDS that ran in backward with the shapes of one in forward: FLOPs on paper
    (1 multiply-add is 2).

    The share is of forward and backward without them; at least, since products without a bias are
    not told from gradients. That the backward of fused attention computes its scores again is no
    such operator.
    """
    again_ops = [
        op
        for op in run.report.ops
        if op.direction in ("backward", "recompute") and op.op in FORWARDS
    ]
    if not again_ops:
        return None
    shapes = {(op.op, op.inputs) for op in run.report.ops if op.direction == "forward"}
    again: dict[str, int] = defaultdict(int)
    once = 0
    for op in run.report.ops:
        flops = 2 * op.calls * sum(part.macs or 0 for part in parts_of(op) or ())
        if (
            op.direction in ("backward", "recompute")
            and op.op in FORWARDS
            and (op.op, op.inputs) in shapes
        ):
            again[op.layer] += flops
        elif op.direction != "optimizer":
            once += flops
    share = sum(again.values()) / once if once else 0.0
    if share < WORK_SHARE_MIN:
        return None
    most, flops = max(again, key=lambda name: again[name]), sum(again.values())
    text = (
        "Recomputation: operators of forward run again in backward with the same shapes, at least "
        f"{amount(flops)}FLOP ({percent(share)} more than forward and backward on paper without "
        f"them), the most in {most}"
    )
    return RunVerdict(
        "recomputed forward",
        f"{text}.",
        share,
        "the FLOPs of forward and backward on paper",
        f"{AGAIN_TODO}.",
    )


def exposed(found: Timeline) -> RunVerdict | None:
    """Communication while no other kernel ran, of the time of the steps. Waiting for other ranks is
    in it."""
    report = found.run.report
    starts, ends = (
        min(piece.start for piece in found.pieces),
        max(piece.end for piece in found.pieces),
    )
    talks = [
        one
        for one in report.collectives
        if one.start_ns is not None and starts <= one.start_ns < ends
    ]
    talks = [one for one in talks if one.group_size is None or one.group_size > 1]
    kernels = [kernel for piece in found.pieces for kernel in piece.kernels]
    done = Activity(kernels, (), talks)
    share = done.exposed_ns / found.length
    # with no other kernel the report shows a part of the step
    if share < WORK_SHARE_MIN or not done.compute.pairs:
        return None
    by_name: dict[str, int] = defaultdict(int)
    for one in talks:
        by_name[one.name] += one.exposed_ns or 0
    most = max(by_name, key=lambda name: by_name[name])
    talked = milliseconds(done.communication.length)
    mine = "of one rank" if report.rank is None else f"of rank {report.rank}"
    text = (
        f"Exposed communication {mine}: in {percent(share)} of the {milliseconds(found.length)} of "
        f"{found.whole} its GPU runs collectives and no other kernel "
        f"({milliseconds(done.exposed_ns)} of {talked} of collectives; most is {most}). "
        "Waiting for other ranks is in it"
    )
    return RunVerdict(
        "exposed communication of one rank",
        f"{text}.",
        share,
        "the time of the steps",
        f"{TALK_TODO}.",
    )


def launch_bound(found: Timeline) -> RunVerdict | None:
    """Idle time in short gaps between kernels of a step. Not for steps whose kernels a
    graph launched.

    The share is an upper bound of what a graph saves: the whole of these gaps over the time of
    the steps.
    """
    if _of_graphs(found):
        return None
    gaps = [gap for piece in found.pieces for gap in _gaps(found, piece)]
    launches = sum(len(piece.kernels) for piece in found.pieces)
    idle, share = sum(gaps), sum(gaps) / found.length
    if (
        share < LAUNCH_GAPS_SHARE_MIN
        or launches < LAUNCHES_MIN * len(found.pieces)
        or 2 * len(gaps) < launches
    ):
        return None
    text = (
        f"Launch bound: of the {milliseconds(found.length)} of {found.whole}, {milliseconds(idle)} "
        f"({percent(share)}) is idle in {len(gaps):,} gaps of {QUEUED_NS / 1000:g} to "
        f"{LAUNCH_NS / 1000:g} µs between {launches:,} kernels, as where each ends before the host "
        f"has launched the next. A CUDA graph would save {percent(share)} at most"
    )
    slower = (
        ", less where the profiler itself slowed the launches"
        if found.run.profiler != "none"
        else ""
    )
    return RunVerdict(
        "launch bound",
        f"{text}{slower}.",
        share,
        "the time of the steps",
        f"{GRAPH_TODO}.",
        "plausible",
    )


def _gaps(found: Timeline, piece: Piece) -> list[int]:
    """Lengths of the gaps that are launches, in ns; what follows a copy to the host is the wait of
    ``host_sync``."""
    to_host = {end_of(copy) for copy in found.copies if copy.kind == "DtoH"}
    return [
        after[0] - before[1]
        for before, after in pairwise(found.busy(piece))
        if QUEUED_NS < after[0] - before[1] <= LAUNCH_NS and before[1] not in to_host
    ]


def _of_graphs(found: Timeline) -> bool:
    """At least half of the kernels were launched by graphs: several kernels share one call, or name
    their graph."""
    kernels = [kernel for piece in found.pieces for kernel in piece.kernels]
    calls: Counter[int | None] = Counter(
        kernel.correlation for kernel in kernels if kernel.correlation is not None
    )
    return 2 * sum(_in_graph(kernel, calls) for kernel in kernels) >= len(kernels)


def _in_graph(kernel: Kernel, calls: Counter[int | None]) -> bool:
    return kernel.graph_id is not None or calls[kernel.correlation] > 1


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
    """Calls inside the steps within which a copy to the host began and ended, or that wait for the
    GPU by their name.

    The share is the time that the GPU then had no kernel, of the time of the steps: waiting itself
    costs nothing while the GPU works. Of several calls before one kernel the last one counts.
    """
    syncs = sorted(_syncs(found), key=lambda sync: sync.done)
    lost = _lost(found, syncs)
    idle = sum(lost.values())
    share = idle / found.length
    if share < HOST_WAIT_SHARE_MIN:
        return None
    names = Counter(sync.what for sync in syncs)
    often = " and ".join(
        f"{name}, {count:,} {'time' if count == 1 else 'times'}"
        for name, count in names.most_common(2)
    )
    text = (
        f"Host sync: in {found.whole}, the host waits for the GPU in {often}: "
        f"{milliseconds(sum(sync.waited for sync in syncs))} in all. The GPU then has nothing to "
        f"do until the next launch: {milliseconds(idle)} in all, {percent(share)} of "
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
    """Place of a call, the last one before a kernel -> ns from the end of what it waited for to
    that kernel."""
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
    """One for each copy to the host, of the innermost call around it, and one for each wait outside
    of these calls."""
    copies = sorted(
        (copy for copy in found.copies if copy.kind == "DtoH"), key=lambda copy: copy.start_ns or 0
    )
    starts = [copy.start_ns or 0 for copy in copies]
    steps = {piece.step for piece in found.pieces}
    calls = [
        call
        for call in found.run.report.waiting_calls
        if call.start_ns is not None and call.duration_ns is not None and call.step in steps
    ]
    operators = [call for call in calls if call.name in SAID]
    around: dict[int, OpCall] = {}
    for call in operators:
        place = bisect_left(starts, call.start_ns or 0)
        if place < len(copies) and end_of(copies[place]) <= _until(call):
            known = around.get(place)
            if known is None or (known.start_ns or 0) <= (call.start_ns or 0):
                around[place] = call
    for place, call in around.items():
        yield Sync(call, SAID[call.name], READ_TODO, end_of(copies[place]))
    ends = sorted(
        [
            *(end_of(one) for piece in found.pieces for one in piece.kernels),
            *map(end_of, found.copies),
        ]
    )
    copy_at = {end_of(copy): copy for copy in found.copies}
    told = {id(call) for call in around.values()}
    enclosing = _Enclosing(operators)
    for call in calls:
        place = bisect_right(ends, _until(call)) - 1
        if call.name not in WAITS or place < 0 or ends[place] <= (call.start_ns or 0):
            continue  # the GPU had done all before: nothing to wait for
        outer = enclosing.of(call)
        copy = copy_at.get(ends[place])
        memory = copy.source_memory if copy is not None and copy.kind == "HtoD" else None
        from_host_todo = PINNED_TODO if memory == "pinned" else PAGEABLE_TODO
        if outer is None:
            what, todo = "", SYNC_TODO
            if copy is not None and call.name in _OF_STREAMS and copy.kind == "DtoH":
                what, todo = " after a copy to the host", READ_TODO
            elif copy is not None and call.name in _OF_STREAMS and copy.kind == "HtoD":
                source = "the host" if memory is None else f"{memory} memory"
                what, todo = f" after a copy from {source}", from_host_todo
            yield Sync(call, call.name + what, todo, ends[place])
        elif id(outer) not in told:
            if outer.name == "aten::copy_":
                what, todo = FROM_HOST.get(memory, FROM_HOST[None]), from_host_todo
            else:
                what, todo = SAID[outer.name], READ_TODO
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


TIMELINE_VERDICTS: tuple[Callable[[Timeline], RunVerdict | None], ...] = (
    launch_bound,
    host_sync,
    exposed,
    cast_storm,
    chains,
    unused_tensor_cores,
)
"""All rules about kernels in time. A new one is a function and a name here."""


def run_verdicts(run: Run) -> tuple[RunVerdict, ...]:
    """Those of one run, the largest share first; none under ncu, which runs kernels one by one, and
    of failed runs."""
    if run.status == "failed":
        return ()
    found = timeline(run)
    said = [] if found is None else [rule(found) for rule in TIMELINE_VERDICTS]
    known = [verdict for verdict in (*said, recomputed(run)) if verdict is not None]
    return tuple(sorted(known, key=lambda verdict: -verdict.share))


def worst(runs: Iterable[Run]) -> list[tuple[RunVerdict, Run]]:
    """Of each rule the run whose share is largest, with that run."""
    found: dict[str, tuple[RunVerdict, Run]] = {}
    for run in runs:
        for said in run_verdicts(run):
            if said.rule not in found or found[said.rule][0].share < said.share:
                found[said.rule] = said, run
    return list(found.values())
