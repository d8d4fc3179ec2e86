"""Rules about figures that are not there: counters that were not collected, directions that no range reached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from perfctl.orchestrator.analyse.verdicts.algorithm_rules import shared_kernel, tensor_cores
from perfctl.orchestrator.analyse.verdicts.evidence import EvidenceTable, KernelGroup, Loose, RowEvidence
from perfctl.orchestrator.analyse.verdicts.records import Place, Verdict
from perfctl.orchestrator.analyse.verdicts.rule import RuleInput, amount, names, percent, verdict

METRICS = {
    "fp32": "smsp__sass_thread_inst_executed_op_{fadd,fmul,ffma}_pred_on.sum",
    "fp64": "smsp__sass_thread_inst_executed_op_{dadd,dmul,dfma}_pred_on.sum",
    "fp16": "smsp__sass_thread_inst_executed_op_{hadd,hmul,hfma}_pred_on.sum",
    "tensor": "sm__ops_path_tensor_src_*.sum (older ncu: sm__inst_executed_pipe_tensor.sum)",
    "packed fp32": "smsp__sass_thread_inst_executed_op_{fadd2,fmul2,ffma2}_pred_on.sum",
}
_COUNTS = {
    "fp32": frozenset({"ffma"}),
    "fp64": frozenset({"dfma"}),
    "fp16": frozenset({"hfma"}),
    "tensor": frozenset({"pipe", "ops_path"}),
}
"""Part of the sum -> counts; a kernel needs one of them."""
COLLECT = "'perfctl ncu' asks for all of them"
GRADIENTS = ("backward", "grad_input", "grad_weight", "grad_bias")


def fadd_alone(given: RuleInput) -> Verdict | None:
    """FADD was collected without FFMA: a multiply-add is one FFMA and no FADD."""
    evidence = given.evidence
    if not _only_additions(evidence.kernels):
        return None
    sentence = (
        f"{given.who}: only FADD was collected, {evidence.total('fadd') or 0:,.0f} of them; the {evidence.paper / 2:,.0f} "
        "multiply-adds on paper are FFMA instructions, which FADD does not count."
    )
    todo = f"Collect {METRICS['fp32']}: FLOPs = FADD + FMUL + 2 FFMA; {COLLECT}."
    return verdict(given, "FADD alone", sentence, None, todo, evidence.kernels)


def _only_additions(kernels: tuple[KernelGroup, ...]) -> bool:
    counted = {count for kernel in kernels for count in kernel.counts}
    return "fadd" in counted and "ffma" not in counted


def not_collected(given: RuleInput) -> Verdict | None:
    """Counters that the row's FLOPs need were not collected, or ncu had no value for them."""
    evidence, counted = given.evidence, given.evidence.row.counted
    whole = counted.value is not None and not counted.lower_bound
    if whole or not evidence.kernels or _only_additions(evidence.kernels):
        return None
    missing = [part for part, counts in _COUNTS.items() if any(counts.isdisjoint(k.counts) for k in evidence.kernels)]
    launches = f"{counted.launches} of {counted.of_launches} launches have a figure"
    if missing:
        why = f"{' and '.join(missing)} counters were not collected ({launches})"
        todo = f"Collect {', '.join(METRICS[part] for part in missing)}"
    elif counted.launches < counted.of_launches and counted.value is not None:
        why, todo = launches, "Profile again without leaving launches out (--launch-count)"
    elif "constant" in (counted.reason or "") or tensor_cores(given) is not None:
        return None
    else:
        lacking = " and ".join(counted.missing) or "its"
        why = f"{lacking} counters have no value: {counted.reason or 'not said why'} ({launches})"
        todo = "A newer ncu may have them on this chip"
    have = "no FLOPs" if counted.value is None else f"at least {amount(counted.value)}FLOP"
    sentence = f"{given.who}: {have}, because {why}."
    return verdict(given, "counter not collected", sentence, None, f"{todo}; {COLLECT}.", evidence.kernels)


def direction_missing(given: RuleInput) -> Verdict | None:
    """On paper and in the step, but ncu saw no kernel of it, while it saw others at this batch size."""
    evidence = given.evidence
    if evidence.kernels or not evidence.profiled or not evidence.paper or shared_kernel(given) is not None:
        return None
    sentence = f"{given.who}: no kernel of it was seen, while paper has {amount(evidence.row.paper.value or 0)}FLOP."
    return verdict(given, "direction missing", sentence, None, _how_to_find(evidence))


def _how_to_find(evidence: RowEvidence) -> str:
    if evidence.left_out:
        return f"Profile again, all of it: {evidence.left_out}."
    if evidence.row.direction in GRADIENTS:
        return "Backward is launched from autograd's own thread: annotate there ('perfctl ncu' does), or use emit_nvtx."
    return "Look for its kernels among those outside of layers."


def directions_missing(table: EvidenceTable, loose: Loose) -> list[Verdict]:
    """One verdict for all rows without kernels: which directions, how much of paper, and what is left over."""
    missing: dict[str, list[RowEvidence]] = defaultdict(list)
    for evidence in table.values():
        if direction_missing(RuleInput(evidence, table)) is not None:
            missing["backward" if evidence.row.direction in GRADIENTS else evidence.row.direction].append(evidence)
    return [_one_direction(direction, found, table, loose) for direction, found in missing.items()]


def _one_direction(
    direction: str, missing: list[RowEvidence], table: Mapping[Place, RowEvidence], loose: Loose
) -> Verdict:
    batch = max(evidence.row.batch for evidence in missing)
    found = [evidence for evidence in missing if evidence.row.batch == batch]
    rows = [evidence for evidence in table.values() if evidence.row.batch == batch]
    layers = list(dict.fromkeys(evidence.row.layer for evidence in found))
    subject = f"{direction.capitalize()} of {', '.join(layers[:3])}{' and others' if len(layers) > 3 else ''}"
    if found[0].left_out:
        cause = f"{found[0].left_out}, so they may have run unseen"
    elif direction == "backward" and set(layers) >= {row.row.layer for row in rows if row.row.direction in GRADIENTS}:
        cause = "it is launched from autograd's own thread, which a range around loss.backward() does not reach"
        subject = "Backward of every layer"
    elif direction == "backward" and layers == [min((row.row.position, row.row.layer) for row in rows)[1]]:
        cause = "its input needs no gradient, so a module backward hook fires before the kernels run"
        subject = f"Backward of the first layer, {layers[0]},"
    else:
        cause = "no range reached its kernels"
    owed, whole = sum(evidence.paper for evidence in found), sum(evidence.paper for evidence in rows)
    left = sum(kernel.executed for kernel in loose.get(batch, ()))
    rest = f" Kernels outside of layers executed {amount(left)}FLOP, {percent(left / owed)} of that." if left else ""
    sentence = (
        f"{subject} has no kernels at batch {batch}: {cause}. On paper it is {amount(owed)}FLOP, "
        f"{percent(owed / whole)} of the step.{rest}"
    )
    return Verdict("direction missing", sentence, None, None, _how_to_find(found[0]), names(loose.get(batch, ())))
