"""Rules about one row: other algorithms, padding, extra work, work done twice or elsewhere, and figures that are not there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, takewhile

from perfctl.orchestrator.analyse.counters.sums import PATHS
from perfctl.orchestrator.analyse.flops.engine import BACKWARD
from perfctl.orchestrator.analyse.verdicts.evidence import EvidenceTable, KernelGroup, Loose, RowEvidence, from_grids
from perfctl.orchestrator.analyse.verdicts.rule import RuleInput, Verdict, amount, is_news, percent, times, verdict

ALIKE = 0.02
"""Counts no further apart than this are the same work."""
AGAIN = "That is activation checkpointing: it saves memory for this price. Without it, backward has the gradients only."


def several_algorithms(given: RuleInput) -> Verdict | None:
    """More than one kernel did the whole layer: cuDNN was trying them out."""
    found = given.breakdown
    if not given.counted or not found.several or not given.ratio:
        return None
    named = ", ".join(dict.fromkeys(kernel.name[:60] for kernel in found.several))
    ran = f"{given.who} ran {len(found.several)} kernels that each do the whole layer ({named})"
    sentence = f"{ran}: {times(given.ratio)} times the FLOPs on paper together."
    tries = "torch.backends.cudnn.benchmark = True tries algorithms in the first step of every shape"
    todo = f"{tries}: warm up outside of the profiled steps, or turn it off."
    return verdict(given, "several algorithms", sentence, given.ratio, todo, found.several)


def tile_padding(given: RuleInput) -> Verdict | None:
    """The grid's tiles cover more outputs, or a longer sum, than the layer has."""
    found = given.breakdown
    if given.counted is None or not found.rule or not found.paper or found.family in ("winograd", "fft"):
        return None
    factor = found.base / found.paper
    if not is_news(factor):
        return None
    why = f"its tiles are not filled: {found.rule}, predicted {times(factor)}"
    sentence = (
        f"{given.who} executes {times(found.seen / found.paper)} times the multiply-adds on paper, because {why}."
    )
    todo = "Sizes (channels, batch, features) that are multiples of the tile waste nothing; or accept it as the price."
    return verdict(given, "tile padding", sentence, factor, todo, found.products)


def winograd(given: RuleInput) -> Verdict | None:
    """Fewer multiplies for 3x3 and 5x5 filters, with additions in the transforms."""
    return _transformed(given, "Winograd", "winograd", given.breakdown.method or "Winograd")


def fourier(given: RuleInput) -> Verdict | None:
    """The convolution as a product of Fourier transforms."""
    return _transformed(given, "FFT", "fft", "FFT")


def _transformed(given: RuleInput, rule: str, family: str, method: str) -> Verdict | None:
    found = given.breakdown
    if given.counted is None or found.family != family or not found.paper or not found.rule:
        return None
    multiplies, transforms = found.base / found.paper, found.transforms / found.paper
    factor = multiplies + transforms
    runs = f"{given.who} runs as {method}: {times(multiplies)} of the multiply-adds on paper ({found.rule})"
    sentence = f"{runs}, and {percent(transforms)} of paper on top for its transforms, {times(factor)} together."
    lets = "torch.backends.cudnn.deterministic = True lets cuDNN choose among fewer algorithms"
    todo = f"Nothing is missing. {lets}, if paper's arithmetic is what you want to see."
    return verdict(given, rule, sentence, factor, todo, (*found.products, *found.transforming))


def split_k(given: RuleInput) -> Verdict | None:
    """A long sum is cut into slices, which are added up afterwards."""
    found = given.breakdown
    factor = found.grown("summed")
    if given.counted is None or not found.summed or not is_news(factor):
        return None
    depths = (kernel.grid[2] for kernel in found.products if kernel.grid and kernel.grid[2] > 1)
    slices = next((f" over {depth} slices" for depth in depths), "")
    more = f"{amount(found.summed)}FLOP more, {percent(factor - 1)}"
    sentence = f"{given.who} splits its sum{slices} and adds the slices up in {found.summing[0].name[:60]}: {more}."
    todo = "Expected: split-K adds partial sums. Larger batches avoid it."
    return verdict(given, "split-K", sentence, factor, todo, found.summing)


def layout_and_epilogue(given: RuleInput) -> Verdict | None:
    """Work in addition to the products: layouts changed, a bias added, results scaled."""
    found = given.breakdown
    factor = found.grown("extra")
    if given.counted is None or not found.extra or not is_news(factor):
        return None
    roles = {"layout": "layout transforms", "offsets": "offsets", "main": "bias, scaling or activation"}
    done = ", ".join(dict.fromkeys(roles.get(kernel.algorithm.role, "epilogues") for kernel in found.extras))
    sentence = f"{given.who} executes {amount(found.extra)}FLOP in addition to its products ({done}), {percent(factor - 1)} more."
    todo = "Paper counts multiply-adds only; read its elementwise column for bias additions and activations."
    return verdict(given, "layout and epilogue", sentence, factor, todo, found.extras)


def recomputation(given: RuleInput) -> Verdict | None:
    """Forward's kernels run once more in backward (activation checkpointing), or as a direction of its own."""
    found, row = given.breakdown, given.evidence.row
    if row.direction == "recompute" and given.counted:
        sentence = f"{row.layer} runs forward once more in backward at batch {row.batch}: {amount(given.counted)}FLOP."
        return verdict(given, "recomputation", sentence, None, AGAIN, given.evidence.product_kernels)
    if given.counted is None or not found.repeated:
        return None
    factor = found.grown("repeated")
    more = f"{amount(found.repeated)}FLOP, {times(factor)} times what the gradients alone need"
    sentence = f"{given.who} runs forward's kernels again: {more}."
    return verdict(given, "recomputation", sentence, factor, AGAIN, found.repeating)


def shared_kernel(given: RuleInput) -> Verdict | None:
    """One kernel does the work of this layer and of neighbours that have no kernel of their own."""
    evidence = given.evidence
    if evidence.kernels:
        served = _served(given, evidence)
        if not served:
            return None
        factor = (evidence.paper + sum(other.paper for other in served)) / evidence.paper
        whose = ", ".join(other.row.name for other in served)
        sentence = f"{given.who} executes {times(factor)} times its own paper count: its kernel also does {whose}."
        todo = f"Read {evidence.row.name} and {whose} together: fused layers share a kernel."
        return verdict(given, "shared kernel", sentence, factor, todo, evidence.product_kernels)
    # a kernel's layer and those after it, up to the next with kernels
    rows, place = _neighbours(given, evidence)
    owner = next((other for other in reversed(rows[:place]) if other.kernels), None)
    if owner is None or not any(other is evidence for other in _served(given, owner)):
        return None
    sentence = f"{given.who} has no kernel of its own: its {amount(evidence.paper)}FLOP are done in a kernel of {owner.row.name}."
    todo = f"Read {owner.row.name} and {evidence.row.name} together."
    return verdict(given, "shared kernel", sentence, None, todo, owner.product_kernels)


def _served(given: RuleInput, owner: RowEvidence) -> tuple[RowEvidence, ...]:
    """Neighbours after ``owner`` whose paper, added to its own, is what it counted; () when there are none."""
    products = sum(kernel.products for kernel in owner.product_kernels)
    if not owner.paper or products <= owner.paper * (1 + ALIKE):
        return ()
    grids = from_grids(owner, owner.product_kernels)
    if grids is not None and abs(products / grids[0] - 1) <= ALIKE:
        return ()  # the grid alone explains the count
    rows, place = _neighbours(given, owner)
    after = tuple(takewhile(lambda evidence: not evidence.kernels, rows[place + 1 :]))
    together = accumulate((evidence.paper for evidence in after), initial=owner.paper)
    counts = (count for count, paper in enumerate(together) if count and abs(products / paper - 1) <= ALIKE)
    return after[: next(counts, 0)]


def _neighbours(given: RuleInput, evidence: RowEvidence) -> tuple[Sequence[RowEvidence], int]:
    """(rows of the same batch size and direction in the network's order, which of them it is)."""
    return given.table.network_order[evidence.row.batch, evidence.row.direction], given.table.positions[evidence.place]


NEAR_ZERO = 0.1
"""Share of paper below which multiply-adds by FFMA do not count."""
TENSOR_MATH = ("tf32", "fp16", "bf16", "fp8", "fp4", "int8")


def tensor_cores(given: RuleInput) -> Verdict | None:
    """Multiply-adds are missing from FFMA because tensor cores did them; TF32 when the layer's type is fp32."""
    evidence = given.evidence
    ffma = evidence.total("ffma")
    # by the counters; by name where they were not collected
    kernels = tuple(
        one for one in evidence.product_kernels
        if (one.counts.get("pipe", one.algorithm.tensor_core) if one.tensor.value is None else one.tensor.value > 0)
    )  # fmt: skip
    if ffma is None or not evidence.paper or not kernels or 2 * ffma > NEAR_ZERO * evidence.paper:
        return None
    math = next((kernel.algorithm.math for kernel in kernels if kernel.algorithm.math in TENSOR_MATH), None)
    allowed = evidence.environment.get("tf32_conv" if "Conv" in (evidence.row.kind or "") else "tf32_matmul")
    tf32 = math == "tf32" or (math is None and evidence.precision in ("fp32", "tf32") and allowed == "on")
    done = sum(kernel.tensor.value or 0 for kernel in kernels)
    start = f"{given.who} executed {percent(2 * ffma / evidence.paper)} of the multiply-adds on paper as FFMA"
    flags = f" (tf32 is {allowed} in this run)" if tf32 and allowed else ""
    if done:
        # over what grids predict: padding and work done again have verdicts of their own
        found = given.breakdown
        beyond = sum(kernel.tensor.value or 0 for kernel in kernels if kernel in found.products)
        factor = None if found.several or not found.base else beyond / found.base
        share = times(done / evidence.paper)
        sentence = f"{start}: tensor cores did {share} of paper{' in TF32' if tf32 else ''}{flags}."
        todo = "Nothing is missing: both paths are in the count."
    else:
        factor = None if given.counted is None else given.counted / evidence.paper
        pipe = evidence.total("pipe")
        known = f"it ran {pipe:,.0f} tensor instructions" if pipe else "its kernels are tensor-core kernels by name"
        sentence = f"{start}: {known}, whose FLOPs were not counted{flags}."
        todo = "Collect sm__ops_path_tensor_src_*.sum with a newer ncu than 2022.3, or run once with TF32 off."
    if tf32:
        todo += " --precision fp32 turns TF32 off."
    return verdict(given, "TF32" if tf32 else "tensor cores", sentence, factor, todo, kernels)


def constant_moves(given: RuleInput) -> Verdict | None:
    """HFMA2 instructions that move constants count as fp16 and, on CC 8.x and 9.x, as tensor work."""
    evidence = given.evidence
    kernels = tuple(
        kernel for kernel in evidence.kernels if kernel.counts.get("hfma") and "constant" in (kernel.flops.reason or "")
    )
    if not kernels:
        return None
    halves = sum(kernel.counts["hfma"] for kernel in kernels)
    pipe = sum(kernel.counts.get("pipe", 0) for kernel in kernels)
    seeming = 2 * halves + 512 * pipe
    also = f" and {pipe:,.0f} tensor instructions" if pipe else ""
    share = percent(seeming / evidence.paper if evidence.paper else 0)
    added = f"added up they would be {amount(seeming)}FLOP, {share} of paper, that nobody computed"
    sentence = f"{given.who} shows {halves:,.0f} HFMA{also} that move constants: {added}."
    todo = "They are left out of the count; leave them out of your own sums too."
    return verdict(given, "constant moves", sentence, None, todo, kernels)


METRICS = {
    path: f"smsp__sass_thread_inst_executed_op_{{{','.join(instructions)}}}_pred_on.sum"
    for path, instructions in (*PATHS.items(), ("packed fp32", ("fadd2", "fmul2", "ffma2")))
}
METRICS["tensor"] = "sm__ops_path_tensor_src_*.sum (older ncu: sm__inst_executed_pipe_tensor.sum)"
_COUNTS = {"fp32": {"ffma"}, "fp64": {"dfma"}, "fp16": {"hfma"}, "tensor": {"pipe", "ops_path"}}
"""Part of the sum -> counts; a kernel needs one of them."""
COLLECT = "'perfctl ncu' asks for all of them"
COLLECT_FP32 = f"Collect {METRICS['fp32']}: FLOPs = FADD + FMUL + 2 FFMA; {COLLECT}."


def fadd_alone(given: RuleInput) -> Verdict | None:
    """FADD was collected without FFMA: a multiply-add is one FFMA and no FADD."""
    evidence = given.evidence
    if not _only_additions(evidence.kernels):
        return None
    collected = f"{given.who}: only FADD was collected, {evidence.total('fadd') or 0:,.0f} of them"
    needed = f"the {evidence.paper / 2:,.0f} multiply-adds on paper are FFMA instructions, which FADD does not count"
    sentence = f"{collected}; {needed}."
    return verdict(given, "FADD alone", sentence, None, COLLECT_FP32, evidence.kernels)


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
    if evidence.row.direction in BACKWARD:
        return "Backward is launched from autograd's own thread: annotate there ('perfctl ncu' does), or use emit_nvtx."
    return "Look for its kernels among those outside of layers."


def directions_missing(table: EvidenceTable, loose: Loose) -> list[Verdict]:
    """One verdict for all rows without kernels: which directions, how much of paper, and what is left over."""
    missing: dict[str, list[RowEvidence]] = defaultdict(list)
    for evidence in table.values():
        if direction_missing(RuleInput(evidence, table)) is not None:
            missing["backward" if evidence.row.direction in BACKWARD else evidence.row.direction].append(evidence)
    return [_missing(direction, found, table, loose) for direction, found in missing.items()]


def _missing(direction: str, missing: list[RowEvidence], table: EvidenceTable, loose: Loose) -> Verdict:
    batch = max(evidence.row.batch for evidence in missing)
    found = [evidence for evidence in missing if evidence.row.batch == batch]
    rows = [evidence for evidence in table.values() if evidence.row.batch == batch]
    layers = list(dict.fromkeys(evidence.row.layer for evidence in found))
    subject = f"{direction.capitalize()} of {', '.join(layers[:3])}{' and others' if len(layers) > 3 else ''}"
    if found[0].left_out:
        cause = f"{found[0].left_out}, so they may have run unseen"
    elif direction == "backward" and set(layers) >= {row.row.layer for row in rows if row.row.direction in BACKWARD}:
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
    size = f"On paper it is {amount(owed)}FLOP, {percent(owed / whole)} of the step."
    sentence = f"{subject} has no kernels at batch {batch}: {cause}. {size}{rest}"
    kernels = tuple(dict.fromkeys(kernel.name for kernel in loose.get(batch, ())))
    return Verdict("direction missing", sentence, None, None, _how_to_find(found[0]), kernels)
