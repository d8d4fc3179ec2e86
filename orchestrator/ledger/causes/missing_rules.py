"""Rules about figures that are not there: counters that were not collected, directions
without kernels."""

from __future__ import annotations

from collections import defaultdict

from perfctl.orchestrator.counts.counters.sums import PATHS
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.ledger.causes.evidence import (
    EvidenceTable,
    KernelGroup,
    Loose,
    RowEvidence,
)
from perfctl.orchestrator.ledger.causes.row_rules import shared_kernel
from perfctl.orchestrator.ledger.causes.rule import RuleInput, Verdict, amount, percent, verdict
from perfctl.orchestrator.ledger.causes.shape_rules import attention_recompute
from perfctl.orchestrator.ledger.causes.tensor_rules import tensor_cores

METRICS = {
    path: f"smsp__sass_thread_inst_executed_op_{{{','.join(instructions)}}}_pred_on.sum"
    for path, instructions in (*PATHS.items(), ("packed fp32", ("fadd2", "fmul2", "ffma2")))
}
METRICS["tensor"] = "sm__ops_path_tensor_src_*.sum (older ncu: sm__inst_executed_pipe_tensor.sum)"
_COUNTS = {"fp32": {"ffma"}, "fp64": {"dfma"}, "fp16": {"hfma"}, "tensor": {"pipe", "ops_path"}}
"""Part of the sum -> counts; a kernel needs one of them."""
COLLECT = "'perfctl ncu' asks for all of them"
COLLECT_FP32 = f"Collect {METRICS['fp32']}: FLOPs = FADD + FMUL + 2 FFMA"

ENOUGH = 0.2
"""Kernels outside of layers with less than this share of the missing FLOPs are not the missing
ones. Winograd F(4x4,3x3) needs a quarter."""


def fadd_alone(given: RuleInput) -> Verdict | None:
    """FADD was collected without FFMA: a multiply-add is one FFMA and no FADD."""
    evidence = given.evidence
    if not _only_additions(evidence.kernels):
        return None
    collected = f"{given.who}: only FADD was collected, {evidence.total('fadd') or 0:,.0f} of them"
    needed = (
        f"the {evidence.paper / 2:,.0f} multiply-adds on paper are FFMA instructions, which FADD "
        "does not count"
    )
    sentence = f"{collected}; {needed}."
    todo = f"{COLLECT_FP32}{_by_perfctl(evidence)}."
    return verdict(given, "FADD alone", sentence, None, todo, evidence.kernels)


def _only_additions(kernels: tuple[KernelGroup, ...]) -> bool:
    counted = {count for kernel in kernels for count in kernel.counts}
    return "fadd" in counted and "ffma" not in counted


def not_collected(given: RuleInput) -> Verdict | None:
    """Counters that the row's FLOPs need were not collected, or ncu had no value for them."""
    evidence, counted = given.evidence, given.evidence.row.counted
    whole = counted.value is not None and not counted.lower_bound
    if whole or evidence.derived or not evidence.kernels or _only_additions(evidence.kernels):
        return None
    lacks = {
        part: [one for one in evidence.kernels if counts.isdisjoint(one.counts)]
        for part, counts in _COUNTS.items()
    }
    lacks = {part: found for part, found in lacks.items() if found}
    unread = [one.flops.reason or "" for one in evidence.kernels if one.flops.value is None]
    # another verdict says so
    moves = bool(unread) and all("constant" in reason for reason in unread)
    launches = f"{counted.launches} of {counted.of_launches} launches have a figure"
    if any(len(found) == len(evidence.kernels) for found in lacks.values()):
        lacks = {
            part: found for part, found in lacks.items() if len(found) == len(evidence.kernels)
        }
        why = f"{' and '.join(lacks)} counters were not collected ({launches})"
        todo = f"Collect {', '.join(METRICS[part] for part in lacks)}"
    elif lacks:
        names = dict.fromkeys(kernel.name for found in lacks.values() for kernel in found)
        named = (
            f"{next(iter(names))[:60]}"
            f"{f' and {len(names) - 1} more kernels' if len(names) > 1 else ''}"
        )
        why = (
            f"{named} {'have' if len(names) > 1 else 'has'} no {' and no '.join(lacks)} counters "
            f"({launches})"
        )
        todo = f"Collect {', '.join(METRICS[part] for part in lacks)} for every launch"
    elif counted.launches < counted.of_launches and counted.value is not None and not moves:
        why, todo = launches, "Profile again without leaving launches out (--launch-count)"
    elif moves or "constant" in (counted.reason or "") or tensor_cores(given) is not None:
        return None
    else:
        lacking = " and ".join(counted.missing) or "its"
        why = f"{lacking} counters have no value: {counted.reason or 'not said why'} ({launches})"
        todo = "A newer ncu may have them on this chip"
    have = f"at least {amount(counted.value)}FLOP" if counted.value else "no FLOPs"
    sentence = f"{given.who}: {have}, because {why}."
    return verdict(
        given,
        "counter not collected",
        sentence,
        None,
        f"{todo}{_by_perfctl(evidence)}.",
        evidence.kernels,
    )


def _by_perfctl(evidence: RowEvidence) -> str:
    return "" if evidence.ours else f"; {COLLECT}"


def nothing_counted(given: RuleInput) -> Verdict | None:
    """Kernels ran, their counters are all there, and none of them saw a FLOP."""
    evidence = given.evidence
    if given.ratio != 0 or evidence.row.counted.lower_bound or not evidence.kernels:
        return None
    ran = sum(kernel.launches for kernel in evidence.kernels)
    integer = any(kernel.algorithm.math == "int8" for kernel in evidence.product_kernels)
    what = (
        "its tensor cores multiply integers, which are no FLOPs"
        if integer
        else "none of them is its product"
    )
    if not integer and evidence.product_kernels:
        what = "its product, if it is among them, uses no instruction that counts as FLOPs"
    sentence = (
        f"{given.who} ran {ran:g} kernels without a single FLOP, while paper has "
        f"{amount(evidence.paper)}FLOP: {what}."
    )
    loose = sum(kernel.products for kernel in given.loose)
    todo = (
        "Look for its kernels among those outside of layers."
        if loose
        else "Read its kernels' names."
    )
    return verdict(given, "nothing counted", sentence, None, todo, evidence.kernels)


def direction_missing(given: RuleInput) -> Verdict | None:
    """On paper and in the step, but ncu saw no kernel of it, while it saw others at this
    batch size."""
    evidence = given.evidence
    if (
        evidence.kernels
        or not evidence.profiled
        or not evidence.paper
        or shared_kernel(given) is not None
    ):
        return None
    if attention_recompute(given) is not None:
        return None  # computed again inside backward's kernel
    sentence = (
        f"{given.who}: no kernel of it was seen, while paper has "
        f"{amount(evidence.row.whole_paper or 0)}FLOP."
    )
    return verdict(
        given,
        "direction missing",
        sentence,
        None,
        _how_to_find(evidence, given.loose),
        confidence="observed",
    )


def _may_be(loose: tuple[KernelGroup, ...], owed: float) -> bool:
    """True when kernels outside of layers may be the missing ones: products with enough FLOPs, or
    not counted."""
    products = [kernel for kernel in loose if kernel.main]
    unknown = any(kernel.flops.value is None or kernel.flops.lower_bound for kernel in products)
    return bool(products) and (
        unknown or sum(kernel.executed for kernel in products) >= ENOUGH * owed
    )


def _inference(evidence: RowEvidence) -> bool:
    """True for a gradient in a run that was recorded as inference."""
    return evidence.row.direction != "forward" and evidence.mode in ("infer", "eval")


def _how_to_find(evidence: RowEvidence, loose: tuple[KernelGroup, ...]) -> str:
    if evidence.left_out:
        return f"Profile again, all of it: {evidence.left_out}."
    if _inference(evidence):
        return "Profile training, or read forward alone: inference has no backward."
    if not _may_be(loose, evidence.paper):
        return (
            "Check what ran while ncu counted: training or evaluation, which layers are frozen, "
            "where the capture ends."
        )
    if evidence.row.direction in BACKWARD:
        does = "" if evidence.ours else " ('perfctl ncu' does)"
        return (
            f"Backward is launched from autograd's own thread: annotate there{does}, or use "
            "emit_nvtx."
        )
    return "Look for its kernels among those outside of layers."


def directions_missing(table: EvidenceTable, loose: Loose) -> list[Verdict]:
    """One verdict for all rows without kernels: which directions, how much of paper, and what is
    left over."""
    missing: dict[str, list[RowEvidence]] = defaultdict(list)
    for evidence in table.values():
        if (
            direction_missing(RuleInput(evidence, table, loose.get(evidence.row.size, ())))
            is not None
        ):
            missing[
                "backward" if evidence.row.direction in BACKWARD else evidence.row.direction
            ].append(evidence)
    return [_missing(direction, found, table, loose) for direction, found in missing.items()]


def _missing(
    direction: str, missing: list[RowEvidence], table: EvidenceTable, loose: Loose
) -> Verdict:
    batch = max(evidence.row.size for evidence in missing)
    found = [evidence for evidence in missing if evidence.row.size == batch]
    rows = [evidence for evidence in table.values() if evidence.row.size == batch]
    layers = list(dict.fromkeys(evidence.row.layer for evidence in found))
    outside = loose.get(batch, ())
    owed, whole = (
        sum(evidence.paper for evidence in found),
        sum(evidence.paper for evidence in rows),
    )
    subject = (
        f"{direction.capitalize()} of "
        f"{', '.join(layers[:3])}{' and others' if len(layers) > 3 else ''}"
    )
    every = direction == "backward" and set(layers) >= {
        row.row.layer for row in rows if row.row.direction in BACKWARD
    }
    first = direction == "backward" and layers == [
        min((row.row.position, row.row.layer) for row in rows)[1]
    ]
    if every and not found[0].left_out:
        subject = "Backward of every layer"
    elif first and not found[0].left_out:
        subject = f"Backward of the first layer, {layers[0]},"
    if found[0].left_out:
        cause = f"{found[0].left_out}, so they may have run unseen"
    elif _inference(found[0]):
        cause = "the run was recorded as inference, which has no backward"
    elif not _may_be(outside, owed):
        cause = (
            "no kernel outside of layers could be it either, so it did not run while ncu counted"
        )
        cause += (
            " (evaluation, frozen layers, or a capture that ended before)"
            if direction == "backward"
            else ""
        )
    elif every:
        cause = (
            "it is launched from autograd's own thread, which a range around loss.backward() does "
            "not reach"
        )
    elif first:
        cause = (
            "its input needs no gradient, so a module backward hook fires before the kernels run"
        )
    else:
        cause = "no range reached its kernels"
    left = sum(kernel.executed for kernel in outside)
    rest = (
        f" Kernels outside of layers executed {amount(left)}FLOP, {percent(left / owed)} of that."
        if left
        else ""
    )
    size = f"On paper it is {amount(owed)}FLOP, {percent(owed / whole)} of the step."
    sentence = f"{subject} has no kernels at batch {batch}: {cause}. {size}{rest}"
    kernels = tuple(dict.fromkeys(kernel.name for kernel in outside))
    return Verdict(
        "direction missing",
        sentence,
        None,
        None,
        _how_to_find(found[0], outside),
        kernels,
        "plausible",
    )
