"""Rules about figures that are missing: counters that were not collected, directions without
kernels."""

from __future__ import annotations

from collections.abc import Sequence

from perfctl.orchestrator.counts.counters.sums import PATHS
from perfctl.orchestrator.counts.kernels.replays import LEFT_OUT_PART
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.ledger.causes.evidence import (
    EvidenceTable,
    KernelGroup,
    Kernels,
    Loose,
    RowEvidence,
    count_launches,
    sum_executed_flops,
)
from perfctl.orchestrator.ledger.causes.row_rules import detect_kernel_shared_by_layers
from perfctl.orchestrator.ledger.causes.rule import Cause, Confidence, RowCase
from perfctl.orchestrator.ledger.causes.tensor_rules import detect_tensor_cores
from perfctl.orchestrator.statistics import group_by

METRICS = {
    path: f"smsp__sass_thread_inst_executed_op_{{{','.join(instructions)}}}_pred_on.sum"
    for path, instructions in (*PATHS.items(), ("packed fp32", ("fadd2", "fmul2", "ffma2")))
}
METRICS["tensor"] = "sm__ops_path_tensor_src_*.sum (older ncu: sm__inst_executed_pipe_tensor.sum)"
"""Part of the sum -> the metrics of ncu that count it."""
NEEDED_COUNTS = {
    "fp32": {"ffma"},
    "fp64": {"dfma"},
    "fp16": {"hfma"},
    "tensor": {"pipe", "ops_path"},
}
"""Part of the sum -> counts; a kernel needs one of them."""
MISSING_SHARE_MIN = 0.2
"""Kernels outside of layers with a smaller share of the missing FLOPs are not the missing ones.
Winograd F(4x4,3x3) needs a quarter."""
LAYERS_LISTED_MAX = 3


def detect_fadd_without_ffma(case: RowCase) -> Cause | None:
    """FADD was collected without FFMA, which is what a multiply-add is.

    Evidence  which counters were collected.
    Factor    none.
    Silent    if FFMA or FMUL was collected too, or if tensor cores did the multiply-adds.
    Fix       collect FADD, FMUL, and FFMA, as ``perfctl ncu`` does: FLOPs = FADD + FMUL + 2 FFMA.
    """
    evidence = case.evidence
    if not _has_only_fadd_counters(evidence.kernels):
        return None
    return case.make_cause_unless_contradicted(
        "FADD alone",
        None,
        evidence.kernels,
        fadd=evidence.sum_raw_counter_over_kernels("fadd") or 0,
        macs=evidence.estimated_flops / 2,
        metrics=METRICS["fp32"],
    )


def _has_only_fadd_counters(kernels: Kernels) -> bool:
    counted = {count for kernel in kernels for count in kernel.counts}
    has_tensor = any(kernel.algorithm.tensor_core for kernel in kernels)
    return "fadd" in counted and not has_tensor and counted.isdisjoint(("ffma", "fmul"))


def detect_missing_counters(case: RowCase) -> Cause | None:
    """Counters that the row's FLOPs need were not collected, or no FLOPs follow from them.

    Evidence  the counters of each kernel, and why a figure has no value.
    Factor    none; the count is a lower bound, or there is none.
    Silent    for derived counts, and if another rule names the reason.
    Fix       collect the missing metrics for every launch.
    """
    evidence, counted = case.evidence, case.evidence.row.executed
    complete = counted.value is not None and not counted.lower_bound
    kernels = evidence.kernels
    if complete or evidence.derived or not kernels or _has_only_fadd_counters(kernels):
        return None
    lacking = {
        part: [kernel for kernel in kernels if counts.isdisjoint(kernel.counts)]
        for part, counts in NEEDED_COUNTS.items()
    }
    lacking = {part: without for part, without in lacking.items() if without}
    nowhere = tuple(part for part, without in lacking.items() if len(without) == len(kernels))
    unread = [kernel for kernel in kernels if kernel.flops.value is None]
    kernel, other_count, reason = "", 0, ""
    parts = nowhere or tuple(lacking)
    is_cut = LEFT_OUT_PART in counted.missing or any(not kernel.counts for kernel in kernels)
    if evidence.left_out and is_cut:
        variant, parts, reason = "left out", (), evidence.left_out
    elif counted.value is None and counted.reason and _is_fp32_partly_collected(kernels):
        variant, parts, reason = "in part", ("fp32",), counted.reason
    elif nowhere:
        variant = "at all"
    elif lacking:
        variant = "for some kernels"
        names = dict.fromkeys(kernel.name for without in lacking.values() for kernel in without)
        kernel, other_count = next(iter(names))[:60], len(names) - 1
    elif 0 < counted.launches < counted.of_launches and not unread:
        variant = "for some launches"
    elif any(kernel.flops.moves_constants for kernel in kernels):
        return None
    elif (tensor := detect_tensor_cores(case)) is not None and tensor.variant != "executed":
        return None  # tensor cores did the products, and their FLOPs were not counted
    else:
        figure = unread[0].flops if unread else counted
        variant, parts = "no value", figure.missing
        reason = figure.reason or "ncu printed no value"
    return case.make_cause_unless_contradicted(
        "counter not collected",
        None,
        kernels,
        variant=variant,
        flops=counted.value,
        parts=parts,
        metrics=tuple(METRICS[part] for part in parts if part in METRICS),
        launches=counted.launches,
        of_launches=counted.of_launches,
        kernel=kernel,
        more=other_count,
        reason=reason,
    )


def _is_fp32_partly_collected(kernels: Sequence[KernelGroup]) -> bool:
    """Return whether instructions of fp32 were collected without FFMA, or alone and not all."""
    counted = {count for kernel in kernels for count in kernel.counts}
    fp32 = counted.intersection(PATHS["fp32"])
    return 0 < len(fp32) < len(PATHS["fp32"]) and ("ffma" not in fp32 or counted == fp32)


def detect_zero_flops(case: RowCase) -> Cause | None:
    """Kernels ran with all their counters, and none of them executed a FLOP.

    Evidence  a complete count of 0.
    Factor    none.
    Silent    if the count is a lower bound.
    Fix       read the kernels' names, or look among the kernels outside of layers.
    """
    evidence = case.evidence
    if case.ratio != 0 or evidence.row.executed.lower_bound or not evidence.kernels:
        return None
    products = evidence.product_kernels
    integer = any(kernel.algorithm.math == "int8" for kernel in products)
    return case.make_cause_unless_contradicted(
        "nothing counted",
        None,
        evidence.kernels,
        variant="integers" if integer else "no instruction" if products else "no product",
        ran=count_launches(evidence.kernels),
        estimated=evidence.estimated_flops,
        outside=any(kernel.multiply_add_flops for kernel in case.unattributed_kernels),
    )


def detect_direction_without_kernels(case: RowCase) -> Cause | None:
    """The step has this work, and the recording has kernels of other rows but none of this one.

    Evidence  the estimate, the kernels of other rows at this batch size, and kernels outside of
              layers with at least a fifth of the missing FLOPs, or not counted. If there are none,
              it did not run during the recording: evaluation, frozen layers, a capture that ended
              before.
    Factor    none.
    Silent    if another layer's kernel does the work, and for layers that ncu was told not to count
              (``--layer``).
    Fix       annotate autograd's thread, as ``perfctl ncu`` does, or check what ran during the
              recording.
    """
    evidence = case.evidence
    if evidence.kernels or not evidence.profiled or not evidence.estimated_flops:
        return None
    if detect_kernel_shared_by_layers(case) is not None:
        return None
    return case.make_cause_unless_contradicted(
        "direction missing",
        None,
        left_out=evidence.left_out,
        fix=_classify_missing_kernels(
            evidence, case.unattributed_kernels, evidence.estimated_flops
        ),
        estimated=evidence.row.complete_estimated_flops or 0,
    )


def _classify_missing_kernels(
    evidence: RowEvidence, unattributed_kernels: Sequence[KernelGroup], missing_flops: float
) -> str:
    """Return why a row's kernels may be missing; ``missing_flops``: their estimated FLOPs."""
    if evidence.left_out:
        return "left out"
    if evidence.row.direction != "forward" and evidence.mode in ("infer", "eval"):
        return "inference"
    # products outside of layers with enough FLOPs, or not counted, may be the missing ones
    products = [kernel for kernel in unattributed_kernels if kernel.is_main_product_kernel]
    unknown = any(kernel.flops.value is None or kernel.flops.lower_bound for kernel in products)
    if not unknown and not sum_executed_flops(products) >= MISSING_SHARE_MIN * missing_flops > 0:
        return "did not run"
    return "in backward" if evidence.row.direction in BACKWARD else "outside"


def list_missing_direction_causes(
    table: EvidenceTable, unattributed_kernels_by_batch: Loose
) -> list[Cause]:
    """Return one cause for all rows of a direction without kernels.

    Evidence  the rows for which ``detect_direction_without_kernels`` holds.
    Factor    none.
    Silent    if no row lacks its kernels.
    Fix       that of the rows.
    """
    missing = [
        evidence
        for evidence in table.values()
        if detect_direction_without_kernels(
            RowCase(
                evidence,
                table,
                unattributed_kernels_by_batch.get(evidence.row.batch_size_or_one, ()),
            )
        )
    ]
    by_direction = group_by(
        missing,
        lambda evidence: (
            "backward" if evidence.row.direction in BACKWARD else evidence.row.direction
        ),
    )
    return [
        _build_missing_direction_sweep_cause(direction, rows, table, unattributed_kernels_by_batch)
        for direction, rows in by_direction.items()
    ]


def _build_missing_direction_sweep_cause(
    direction: str,
    missing: Sequence[RowEvidence],
    table: EvidenceTable,
    unattributed_kernels_by_batch: Loose,
) -> Cause:
    """Return the cause of the rows of a direction that lack their kernels, at the largest batch."""
    batch = max(evidence.row.batch_size_or_one for evidence in missing)
    missing = [evidence for evidence in missing if evidence.row.batch_size_or_one == batch]
    rows = [evidence for evidence in table.values() if evidence.row.batch_size_or_one == batch]
    layers = tuple(dict.fromkeys(evidence.row.layer for evidence in missing))
    backward, left_out = direction == "backward", missing[0].left_out
    in_backward = {evidence.row.layer for evidence in rows if evidence.row.direction in BACKWARD}
    (_, first_layer) = min((evidence.row.position, evidence.row.layer) for evidence in rows)
    scope = "outside"
    if backward and not left_out and in_backward.issubset(layers):
        scope = "all"
    elif backward and not left_out and layers == (first_layer,):
        scope = "first"
    outside = unattributed_kernels_by_batch.get(batch, ())
    owed, executed = (
        sum(evidence.estimated_flops for evidence in missing),
        sum_executed_flops(outside),
    )
    state = _classify_missing_kernels(missing[0], outside, owed)
    if state in ("in backward", "outside"):
        state = scope
    facts = {
        "left_out": left_out,
        "fix": _classify_missing_kernels(missing[0], outside, missing[0].estimated_flops),
        "estimated": owed,
        "direction": direction.capitalize(),
        "layers": () if scope == "all" else layers[:LAYERS_LISTED_MAX],
        "more": len(layers) > LAYERS_LISTED_MAX and scope != "all",
        "is_all": scope == "all",
        "is_first": scope == "first",
        "is_other": scope == "outside",
        "backward": backward,
        "batch": batch,
        "share": owed / sum(evidence.estimated_flops for evidence in rows),
        # FLOPs of kernels outside of layers
        "executed": executed,
        "executed_share": executed / owed,
    }
    names = tuple(dict.fromkeys(kernel.name for kernel in outside))
    confidence: Confidence = "observed" if state == "inference" else "plausible"
    return Cause("direction missing", None, facts, names, confidence, f"sweep, {state}")
