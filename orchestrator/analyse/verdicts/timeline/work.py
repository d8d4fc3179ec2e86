"""Work that is done twice (activation checkpointing), and communication that nothing hides."""

from __future__ import annotations

from collections import defaultdict

from perfctl.orchestrator.analyse.flops.engine import parts_of
from perfctl.orchestrator.analyse.usage.ranks import activity
from perfctl.orchestrator.analyse.verdicts.rule import amount, percent
from perfctl.orchestrator.analyse.verdicts.timeline.records import RunVerdict, Timeline, milliseconds
from perfctl.records.run import Run

WORTH = 0.05
AGAIN_TODO = (
    "Expected with activation checkpointing: it trades time for memory. Checkpoint fewer layers, or only cheap operators "
    "(torch.utils.checkpoint with a selective policy), where memory is free"
)
TALK_TODO = (
    "Overlap it with backward: larger or earlier buckets (DDP's bucket_cap_mb), prefetching in FSDP, no wait() before the "
    "result is needed; or send less (bf16 gradients, no_sync() while gradients accumulate)"
)


FORWARDS = (
    "aten.addmm", "aten.linear", "aten.convolution", "aten.baddbmm", "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention", "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
)  # fmt: skip
"""Operators that no gradient is made of: one that runs in backward is a forward's. A product (aten.mm, aten.bmm) may be a gradient."""


def recomputed(run: Run) -> RunVerdict | None:
    """Operators of FORWARDS that ran in backward with the shapes of one in forward: FLOPs on paper (1 multiply-add is 2).

    The share is of forward and backward without them; at least, since products without a bias are not told from gradients. That
    the backward of fused attention computes its scores again is no such operator.
    """
    again_ops = [op for op in run.report.ops if op.direction in ("backward", "recompute") and op.op in FORWARDS]
    if not again_ops:
        return None
    shapes = {(op.op, op.inputs) for op in run.report.ops if op.direction == "forward"}
    again: dict[str, int] = defaultdict(int)
    once = 0
    for op in run.report.ops:
        flops = 2 * op.calls * sum(part.macs or 0 for part in parts_of(op) or ())
        if op.direction in ("backward", "recompute") and op.op in FORWARDS and (op.op, op.inputs) in shapes:
            again[op.layer] += flops
        elif op.direction != "optimizer":
            once += flops
    share = sum(again.values()) / once if once else 0.0
    if share < WORTH:
        return None
    most, flops = max(again, key=lambda name: again[name]), sum(again.values())
    text = (
        f"Recomputation: operators of forward run again in backward with the same shapes, at least {amount(flops)}FLOP "
        f"({percent(share)} more than forward and backward on paper without them), the most in {most}"
    )
    return RunVerdict(
        "recomputed forward", f"{text}.", share, "the FLOPs of forward and backward on paper", f"{AGAIN_TODO}."
    )


def exposed(found: Timeline) -> RunVerdict | None:
    """Communication while no other kernel ran, of the time of the steps. Waiting for other ranks is in it."""
    report = found.run.report
    starts, ends = min(piece.start for piece in found.pieces), max(piece.end for piece in found.pieces)
    talks = [one for one in report.collectives if one.start_ns is not None and starts <= one.start_ns < ends]
    talks = [one for one in talks if one.group_size is None or one.group_size > 1]
    kernels = [kernel for piece in found.pieces for kernel in piece.kernels]
    done = activity(kernels, (), talks)
    share = done.exposed_ns / found.length
    if share < WORTH or not done.compute:  # with no other kernel the report shows a part of the step
        return None
    by_name: dict[str, int] = defaultdict(int)
    for one in talks:
        by_name[one.name] += one.exposed_ns or 0
    most = max(by_name, key=lambda name: by_name[name])
    whole = sum(end - start for start, end in done.communication)
    mine = "of one rank" if report.rank is None else f"of rank {report.rank}"
    text = (
        f"Exposed communication {mine}: in {percent(share)} of the {milliseconds(found.length)} of {found.whole} its GPU runs "
        f"collectives and no other kernel ({milliseconds(done.exposed_ns)} of {milliseconds(whole)} of collectives; most is {most}). "
        f"Waiting for other ranks is in it"
    )
    return RunVerdict("exposed communication of one rank", f"{text}.", share, "the time of the steps", f"{TALK_TODO}.")
