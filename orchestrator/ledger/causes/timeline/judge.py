"""All verdicts about a run's timeline, and the rules about the host and about work: launch-bound
steps, host synchronisation, communication that nothing hides, and work that is done twice
(activation checkpointing).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from perfctl.orchestrator.estimate.flops.engine import compute_work_by_formula
from perfctl.orchestrator.ledger.causes.rule import (
    format_share,
    format_with_si_prefix,
)
from perfctl.orchestrator.ledger.causes.timeline.kernels import (
    detect_cast_storm,
    detect_fusable_kernel_chains,
    detect_unused_tensor_cores,
)
from perfctl.orchestrator.ledger.causes.timeline.records import (
    RunVerdict,
    Timeline,
    build_busiest_gpu_timeline,
    format_ns,
)
from perfctl.orchestrator.ledger.usage.intervals import (
    Intervals,
    get_end_ns,
    get_start_ns,
    has_start_and_duration,
)
from perfctl.orchestrator.ledger.usage.ranks import RankActivity
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.ledger.usage.served import select_graph_kernels
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import WAITS, Copy, OpCall, pluralize_count
from perfctl.records.run import Run

RunVerdicts = Sequence[tuple[Run, Sequence[RunVerdict]]]
WORK_SHARE_MIN = 0.05
AGAIN_TODO = (
    "Expected with activation checkpointing, which trades time for memory. If memory is free, "
    "checkpoint fewer layers, or only cheap operators (torch.utils.checkpoint with a selective "
    "policy)"
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
READING = {
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
    "Remove calls such as torch.cuda.synchronize() and cudaStreamSynchronize from the step: "
    "streams can wait for each other without the host (wait_stream, cudaStreamWaitEvent), and "
    "events can measure time"
)


PINNED_TODO = "Copy to the GPU with non_blocking=True; the memory is already pinned"

_OF_STREAMS = ("cudaStreamSynchronize", "cuStreamSynchronize", "hipStreamSynchronize")


def detect_recomputed_operators(run: Run) -> RunVerdict | None:
    """Return operators of FORWARDS that ran in backward with the shapes of one in forward, with
    their estimated FLOPs (1 multiply-add = 2 FLOPs).

    The share is that of forward and backward without them. It is a lower bound, because GEMMs
    without a bias look like gradients. The backward pass of fused attention, which computes its
    scores again, is no such operator.
    """
    shapes = {(op.op, op.inputs) for op in run.report.ops if op.direction == "forward"}
    repeated_flops: dict[str, int] = defaultdict(int)
    once = 0
    for op in run.report.ops:
        flops = 2 * op.calls * sum(part.macs or 0 for part in compute_work_by_formula(op) or ())
        is_backward = op.direction in ("backward", "recompute")
        if is_backward and op.op in FORWARDS and (op.op, op.inputs) in shapes:
            repeated_flops[op.layer] += flops
        elif op.direction != "optimizer":
            once += flops
    flops = sum(repeated_flops.values())
    share = flops / once if once else 0.0
    if share < WORK_SHARE_MIN:
        return None
    text = (
        "Recomputation: operators of forward run again in backward with the same shapes, at "
        f"least {format_with_si_prefix(flops)}FLOP ({format_share(share)} more than the "
        f"estimate of "
        "forward and backward without them), mostly in "
        f"{max(repeated_flops, key=lambda layer: repeated_flops[layer])}"
    )
    return RunVerdict(
        "recomputed forward",
        text,
        share,
        "the estimated FLOPs of forward and backward",
        f"{AGAIN_TODO}.",
    )


def detect_exposed_communication(timeline: Timeline) -> RunVerdict | None:
    """Return the communication time while no other kernel ran, and its share of the step time. It
    includes waiting for other ranks."""
    report = timeline.run.report
    start = min(piece.start for piece in timeline.pieces)
    end = max(piece.end for piece in timeline.pieces)
    collectives = [
        collective
        for collective in report.collectives
        if collective.start_ns is not None
        and start <= collective.start_ns < end
        and (collective.group_size is None or collective.group_size > 1)
    ]
    if not collectives:
        return None
    activity = RankActivity(timeline.kernels, (), collectives)
    share = activity.exposed_communication_ns / timeline.measured_wall_ns
    # with no other kernel the report shows a part of the step
    if share < WORK_SHARE_MIN or not activity.computing:
        return None
    by_name: dict[str, int] = defaultdict(int)
    for collective in collectives:
        by_name[collective.name] += collective.exposed_ns or 0
    rank = "one rank" if report.rank is None else f"rank {report.rank}"
    text = (
        f"Exposed communication ({rank}): for {format_share(share)} of the "
        f"{format_ns(timeline.measured_wall_ns)} of {timeline.measured_span_text}, the GPU "
        f"runs only "
        "collectives "
        f"({format_ns(activity.exposed_communication_ns)} of "
        f"{format_ns(activity.communication.total_ns)} "
        f"of collectives; mostly {max(by_name, key=lambda name: by_name[name])}). This includes "
        "waiting for other ranks"
    )
    return RunVerdict(
        "exposed communication of one rank",
        text,
        share,
        "the time of the steps",
        f"{TALK_TODO}.",
        step_share=share,
    )


def detect_launch_bound(timeline: Timeline) -> RunVerdict | None:
    """Return the idle time in short gaps between kernels of a step; None for steps whose kernels a
    graph launched.

    The share is an upper bound of the time that a graph saves: the sum of these gaps over the
    step time.
    """
    kernels = timeline.kernels
    if 2 * len(select_graph_kernels(kernels)) >= len(kernels):
        return None
    gaps = _measure_launch_gaps_ns(timeline)
    idle, share = sum(gaps), sum(gaps) / timeline.measured_wall_ns
    too_few = len(kernels) < LAUNCHES_MIN * len(timeline.pieces) or 2 * len(gaps) < len(kernels)
    if share < LAUNCH_GAPS_SHARE_MIN or too_few:
        return None
    text = (
        f"Launch bound: of the {format_ns(timeline.measured_wall_ns)} of "
        f"{timeline.measured_span_text}, "
        f"{format_ns(idle)} ({format_share(share)}) is idle in gaps of "
        f"{QUEUED_NS / 1000:g} to {LAUNCH_NS / 1000:g} µs between {len(kernels):,} kernels, which "
        "suggests that each ends before the host launches the next. A CUDA graph would save at "
        f"most {format_share(share)}"
    )
    if timeline.run.profiler != "none":
        text += ", less where the profiler itself slowed the launches"
    return RunVerdict(
        "launch bound",
        text,
        share,
        "the time of the steps",
        f"{GRAPH_TODO}.",
        "plausible",
        step_share=share,
    )


def _measure_launch_gaps_ns(timeline: Timeline) -> list[int]:
    """Return lengths of the unexplained gaps that are launches, in ns; what follows a copy to the
    host is the wait of ``detect_host_syncs``."""
    to_host = {get_end_ns(copy) for copy in timeline.copies if copy.kind == "DtoH"}
    gaps = []
    copies = sorted(timeline.copies, key=get_start_ns)
    ends = list(accumulate(map(get_end_ns, copies), max))
    for piece in timeline.pieces:
        # those whose end is after the start of the piece, and whose start is before its end
        first, last = (
            bisect_right(ends, piece.start),
            bisect_left(copies, piece.end, key=get_start_ns),
        )
        within = (copy for copy in copies[first:last] if get_end_ns(copy) > piece.start)
        busy = Intervals.make_from_items([*piece.kernels, *within])
        gaps += [
            end - start
            for start, end in busy.find_uncovered_gaps(*busy.first_start_and_last_end)
            if QUEUED_NS < end - start <= LAUNCH_NS
            and start not in to_host
            and timeline.explained.measure_covered_ns(start, end) < (end - start) / 2
        ]
    return gaps


class SyncCall(NamedTuple):
    """One call that waited for the GPU; times in ns."""

    call: OpCall
    what: str
    """As a sentence names it: "item() (aten::_local_scalar_dense)", "cudaStreamSynchronize"."""
    todo: str
    done: int
    """When the GPU had done what the host waited for."""


def detect_host_syncs(timeline: Timeline) -> RunVerdict | None:
    """Return the calls inside the steps that contain a copy to the host, or whose name shows that
    they wait for the GPU.

    The share is the time after which the GPU had no kernel, of the step time: waiting costs
    nothing while the GPU works. If several calls precede one kernel, the last one counts.
    """
    syncs = sorted(_find_sync_calls(timeline), key=lambda sync: sync.done)
    gaps = _measure_idle_ns_after_syncs(timeline, syncs)
    idle = sum(gaps.values())
    share = idle / timeline.measured_wall_ns
    if share < HOST_WAIT_SHARE_MIN:
        return None
    most = Counter(sync.what for sync in syncs).most_common(2)
    often = " and ".join(f"{name}, {pluralize_count(count, 'time')}" for name, count in most)
    frames: dict[str, int] = defaultdict(int)
    for index, ns in gaps.items():
        if (frame := find_innermost_user_frame(syncs[index].call.stack)) is not None:
            frames[frame] += ns
    if frames:
        location = f"The main place is {max(frames, key=lambda frame: frames[frame])}"
    elif timeline.run.report.tool == "nsys":
        location = "nsys reports have no stacks that show the place"
    else:
        location = "The trace has no Python stacks (with_stack=True) that show the place"
    waited = sum(sync.call.duration_ns or 0 for sync in syncs)
    text = (
        f"Host sync: in {timeline.measured_span_text}, the host waits for the GPU in {often}, "
        f"{format_ns(waited)} in total. The GPU is then idle until the next launch, "
        f"{format_ns(idle)} in total, {format_share(share)} of "
        f"{format_ns(timeline.measured_wall_ns)}. "
        f"{location}"
    )
    todos = dict.fromkeys(sync.todo for sync in syncs if sync.what in dict(most))
    todo = f"{'. '.join(todos)}."
    return RunVerdict("host sync", text, share, "the time of the steps", todo, step_share=share)


def _measure_idle_ns_after_syncs(timeline: Timeline, syncs: Sequence[SyncCall]) -> dict[int, int]:
    """Return index of a call, the last one before a kernel -> ns from the end of what it waited for
    to that kernel."""
    if not syncs:
        return {}
    kernels = timeline.kernels
    starts, ends = sorted(map(get_start_ns, kernels)), sorted(map(get_end_ns, kernels))
    last: dict[int, int] = {}
    for index, sync in enumerate(syncs):
        following = bisect_right(starts, sync.done)
        is_running = following > bisect_right(ends, sync.done)
        if following < len(starts) and not is_running:
            last[following] = index
    gaps = {index: starts[following] - syncs[index].done for following, index in last.items()}
    return {index: ns for index, ns in gaps.items() if ns <= LONGEST_NS}


def find_innermost_user_frame(stack: str | None) -> str | None:
    """Return the innermost frame that is not PyTorch's own: "train.py(12): step"; None without
    one."""
    for frame in (stack or "").splitlines():
        if "(" in frame and not any(part in frame for part in _NOT_THE_USERS):
            return frame.strip()
    return None


def _find_sync_calls(timeline: Timeline) -> Iterator[SyncCall]:
    """Yield one for each copy to the host, of the innermost call around it, and one for each wait
    outside of these calls."""
    steps = {piece.step for piece in timeline.pieces}
    calls = [
        call
        for call in timeline.run.report.waiting_calls
        if has_start_and_duration(call) and call.step in steps
    ]
    if not calls:
        return
    operators = [call for call in calls if call.name in READING]
    reads = _match_host_copies_with_operators(timeline, operators)
    for copy, call in reads:
        yield SyncCall(call, READING[call.name], READ_TODO, get_end_ns(copy))
    ends = sorted([*map(get_end_ns, timeline.kernels), *map(get_end_ns, timeline.copies)])
    copy_at = {get_end_ns(copy): copy for copy in timeline.copies}
    reading = {id(call) for _, call in reads}
    by_thread = group_by(sorted(operators, key=get_start_ns), lambda call: call.thread)
    for call in calls:
        last = bisect_right(ends, get_end_ns(call)) - 1
        if call.name not in WAITS or last < 0 or ends[last] <= get_start_ns(call):
            continue  # the GPU had done all before: nothing to wait for
        of_thread = by_thread.get(call.thread, [])
        index = bisect_right(of_thread, get_start_ns(call), key=get_start_ns) - 1
        is_inside = index >= 0 and get_end_ns(call) <= get_end_ns(of_thread[index])
        outer = of_thread[index] if is_inside else None
        if outer is None or id(outer) not in reading:
            yield _build_sync_call(call, outer, copy_at.get(ends[last]), ends[last])


def _match_host_copies_with_operators(
    timeline: Timeline, operators: Iterable[OpCall]
) -> list[tuple[Copy, OpCall]]:
    """Return copies to the host, each with the innermost operator around it."""
    copies = sorted((copy for copy in timeline.copies if copy.kind == "DtoH"), key=get_start_ns)
    starts = [get_start_ns(copy) for copy in copies]
    enclosing_calls: dict[int, OpCall] = {}
    for call in operators:
        index = bisect_left(starts, get_start_ns(call))
        if index < len(copies) and get_end_ns(copies[index]) <= get_end_ns(call):
            enclosing_calls[index] = max(call, enclosing_calls.get(index, call), key=get_start_ns)
    return [(copies[index], call) for index, call in enclosing_calls.items()]


def _build_sync_call(call: OpCall, outer: OpCall | None, copy: Copy | None, done: int) -> SyncCall:
    """Return a call that waits for the GPU by its name. ``outer``: the operator around it;
    ``copy``: the last work before its end, if that is a copy."""
    kind = copy.kind if copy is not None else None
    memory = copy.source_memory if copy is not None and kind == "HtoD" else None
    from_host_todo = PINNED_TODO if memory == "pinned" else PAGEABLE_TODO
    if outer is not None and outer.name == "aten::copy_":
        return SyncCall(outer, FROM_HOST.get(memory, FROM_HOST[None]), from_host_todo, done)
    if outer is not None:
        return SyncCall(outer, READING[outer.name], READ_TODO, done)
    description, todo = call.name, SYNC_TODO
    if call.name in _OF_STREAMS and kind == "DtoH":
        description, todo = f"{description} after a copy to the host", READ_TODO
    elif call.name in _OF_STREAMS and kind == "HtoD":
        source = "the host" if memory is None else f"{memory} memory"
        description, todo = f"{description} after a copy from {source}", from_host_todo
    return SyncCall(call, description, todo, done)


TIMELINE_VERDICTS: tuple[Callable[[Timeline], RunVerdict | None], ...] = (
    detect_launch_bound,
    detect_host_syncs,
    detect_exposed_communication,
    detect_cast_storm,
    detect_fusable_kernel_chains,
    detect_unused_tensor_cores,
)
"""All rules about kernels in time. A new one is a function and a name here."""


def detect_run_timeline_verdicts(usage: RunUsage) -> tuple[RunVerdict, ...]:
    """Return the verdicts of one run, the largest share first; none under ncu, which runs kernels
    one by one, and of failed runs."""
    run = usage.run
    if run.status == "failed":
        return ()
    of_run = build_busiest_gpu_timeline(usage)
    verdicts = [rule(of_run) for rule in TIMELINE_VERDICTS] if of_run is not None else []
    fired = [
        verdict for verdict in (*verdicts, detect_recomputed_operators(run)) if verdict is not None
    ]
    return tuple(sorted(fired, key=lambda verdict: -verdict.share))


def pick_largest_verdict_per_rule(runs: RunVerdicts) -> list[tuple[RunVerdict, Run]]:
    """Return the verdict of each rule with the largest share, and its run."""
    largest: dict[str, tuple[RunVerdict, Run]] = {}
    for run, verdicts in runs:
        for verdict in verdicts:
            if verdict.rule not in largest or largest[verdict.rule][0].share < verdict.share:
                largest[verdict.rule] = verdict, run
    return list(largest.values())
