"""Rules about figures that are missing: counters that were not collected, directions without
kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from perfctl.orchestrator.counts.counters.sums import PATHS
from perfctl.orchestrator.counts.kernels.repeats import LEFT_OUT_PART
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.ledger.causes.evidence import (
    EvidenceTable,
    KernelGroup,
    Loose,
    RowEvidence,
)
from perfctl.orchestrator.ledger.causes.row_rules import shared_kernel
from perfctl.orchestrator.ledger.causes.rule import Cause, Fact, RuleInput
from perfctl.orchestrator.ledger.causes.shape_rules import attention_recompute
from perfctl.orchestrator.ledger.causes.tensor_rules import tensor_cores

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


def fadd_alone(case: RuleInput) -> Cause | None:
    """FADD was collected without FFMA, which is what a multiply-add is.

    Evidence  which counters were collected.
    Factor    none.
    Silent    if FFMA was collected too.
    Fix       collect FADD, FMUL, and FFMA.
    """
    evidence = case.evidence
    if not _has_only_additions(evidence.kernels):
        return None
    return case.propose(
        "FADD alone",
        None,
        evidence.kernels,
        fadd=evidence.total("fadd") or 0,
        macs=evidence.paper / 2,
        metrics=METRICS["fp32"],
        ours=evidence.ours,
    )


def _has_only_additions(kernels: tuple[KernelGroup, ...]) -> bool:
    counted = {count for kernel in kernels for count in kernel.counts}
    return "fadd" in counted and "ffma" not in counted


def not_collected(case: RuleInput) -> Cause | None:
    """Counters that the row's FLOPs need were not collected, or ncu had no value for them.

    Evidence  the counters of each kernel.
    Factor    none.
    Silent    for derived counts, and if another rule names the reason.
    Fix       collect the missing metrics for every launch.
    """
    evidence, counted = case.evidence, case.evidence.row.counted
    complete = counted.value is not None and not counted.lower_bound
    kernels = evidence.kernels
    if complete or evidence.derived or not kernels or _has_only_additions(kernels):
        return None
    lacking = {
        part: [kernel for kernel in kernels if counts.isdisjoint(kernel.counts)]
        for part, counts in NEEDED_COUNTS.items()
    }
    lacking = {part: without for part, without in lacking.items() if without}
    nowhere = tuple(part for part, without in lacking.items() if len(without) == len(kernels))
    unread = [kernel for kernel in kernels if kernel.flops.value is None]
    only_moves = bool(unread) and all(kernel.moves_constants for kernel in unread)
    facts: dict[str, Fact] = {}
    parts = nowhere or tuple(lacking)
    is_cut = LEFT_OUT_PART in counted.missing or any(not kernel.counts for kernel in kernels)
    if evidence.left_out and is_cut:
        variant, parts, facts = "left out", (), {"left_out": evidence.left_out}
    elif nowhere:
        variant = "at all"
    elif lacking:
        variant = "for some kernels"
        names = dict.fromkeys(kernel.name for without in lacking.values() for kernel in without)
        facts = {"kernel": next(iter(names))[:60], "more": len(names) - 1}
    elif counted.launches < counted.of_launches and counted.value is not None and not only_moves:
        variant = "for some launches"
    elif any(kernel.moves_constants for kernel in kernels) or tensor_cores(case) is not None:
        return None
    else:
        variant, parts = "no value", counted.missing or ("its",)
        facts = {"reason": counted.reason or "not said why"}
    return case.propose(
        "counter not collected",
        None,
        kernels,
        variant=variant,
        more_facts=facts,
        flops=counted.value,
        parts=parts,
        metrics=tuple(METRICS[part] for part in parts if part in METRICS),
        launches=counted.launches,
        of_launches=counted.of_launches,
        ours=evidence.ours,
    )


def nothing_counted(case: RuleInput) -> Cause | None:
    """Kernels ran with all their counters, and none of them executed a FLOP.

    Evidence  a complete count of 0.
    Factor    none.
    Silent    if the count is a lower bound.
    Fix       read the kernels' names, or look among the kernels outside of layers.
    """
    evidence = case.evidence
    if case.ratio != 0 or evidence.row.counted.lower_bound or not evidence.kernels:
        return None
    products = evidence.product_kernels
    integer = any(kernel.algorithm.math == "int8" for kernel in products)
    return case.propose(
        "nothing counted",
        None,
        evidence.kernels,
        variant="integers" if integer else "no instruction" if products else "no product",
        ran=sum(kernel.launches for kernel in evidence.kernels),
        estimated=evidence.paper,
        outside=any(kernel.products for kernel in case.unattributed_kernels),
    )


def direction_missing(case: RuleInput) -> Cause | None:
    """The step has this work, and ncu recorded kernels of other rows but none of this one.

    Evidence  the estimate, and the kernels of other rows at this batch size.
    Factor    none.
    Silent    if another layer's kernel does the work.
    Fix       annotate autograd's thread, or check what ran while ncu counted.
    """
    evidence = case.evidence
    if evidence.kernels or not evidence.profiled or not evidence.paper:
        return None
    if shared_kernel(case) is not None or attention_recompute(case) is not None:
        return None
    return case.propose(
        "direction missing",
        None,
        more_facts=_missing_facts(evidence, case.unattributed_kernels, evidence.paper),
        estimated=evidence.row.whole_paper or 0,
    )


def _missing_facts(
    evidence: RowEvidence, outside: Sequence[KernelGroup], owed: float
) -> dict[str, Fact]:
    """Return why a row's kernels may be missing; ``owed``: their estimated FLOPs."""
    return {
        "left_out": evidence.left_out,
        "fix": (
            "left out"
            if evidence.left_out
            else "inference"
            if evidence.row.direction != "forward" and evidence.mode in ("infer", "eval")
            else "did not run"
            if not _may_be_missing(outside, owed)
            else "in backward"
            if evidence.row.direction in BACKWARD
            else "outside"
        ),
        "ours": evidence.ours,
    }


def _may_be_missing(outside: Sequence[KernelGroup], owed: float) -> bool:
    """Return whether kernels outside of layers may be the missing ones: products with enough
    FLOPs, or not counted."""
    products = [kernel for kernel in outside if kernel.main]
    unknown = any(kernel.flops.value is None or kernel.flops.lower_bound for kernel in products)
    executed = sum(kernel.executed for kernel in products)
    return bool(products) and (unknown or executed >= MISSING_SHARE_MIN * owed)


def directions_missing(table: EvidenceTable, loose: Loose) -> list[Cause]:
    """Return one cause for all rows of a direction without kernels.

    Evidence  the rows for which ``direction_missing`` holds.
    Factor    none.
    Silent    if no row lacks its kernels.
    Fix       that of the rows.
    """
    missing: dict[str, list[RowEvidence]] = defaultdict(list)
    for evidence in table.values():
        direction = evidence.row.direction
        case = RuleInput(evidence, table, loose.get(evidence.row.size, ()))
        if direction_missing(case) is not None:
            missing["backward" if direction in BACKWARD else direction].append(evidence)
    return [_missing(direction, rows, table, loose) for direction, rows in missing.items()]


def _missing(
    direction: str, missing: Sequence[RowEvidence], table: EvidenceTable, loose: Loose
) -> Cause:
    batch = max(evidence.row.size for evidence in missing)
    missing = [evidence for evidence in missing if evidence.row.size == batch]
    rows = [evidence for evidence in table.values() if evidence.row.size == batch]
    layers = tuple(dict.fromkeys(evidence.row.layer for evidence in missing))
    backward = direction == "backward"
    in_backward = {evidence.row.layer for evidence in rows if evidence.row.direction in BACKWARD}
    left_out = missing[0].left_out
    is_all = backward and set(layers) >= in_backward
    (_, first_layer) = min((evidence.row.position, evidence.row.layer) for evidence in rows)
    is_first = backward and not is_all and layers == (first_layer,)
    outside = loose.get(batch, ())
    owed = sum(evidence.paper for evidence in missing)
    row_facts = _missing_facts(missing[0], outside, missing[0].paper)
    state = _missing_facts(missing[0], outside, owed)["fix"]
    if state in ("in backward", "outside"):
        state = "all" if is_all else "first" if is_first else "outside"
    executed = sum(kernel.executed for kernel in outside)
    facts: dict[str, Fact] = {
        "direction": direction.capitalize(),
        "layers": () if is_all and not left_out else layers[:LAYERS_LISTED_MAX],
        "more": len(layers) > LAYERS_LISTED_MAX and not (is_all and not left_out),
        "is_all": is_all and not left_out,
        "is_first": is_first and not left_out,
        "is_other": bool(left_out) or not (is_all or is_first),
        "backward": backward,
        "batch": batch,
        "owed": owed,
        "share": owed / sum(evidence.paper for evidence in rows),
        "executed": executed,
        "executed_share": executed / owed,
    }
    names = tuple(dict.fromkeys(kernel.name for kernel in outside))
    return Cause(
        "direction missing", None, row_facts | facts, names, "plausible", f"sweep, {state}"
    )
