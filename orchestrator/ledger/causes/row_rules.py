"""Rules about one row: other algorithms, padding, extra work, and work done twice or elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, takewhile
from math import gcd, log

from perfctl.orchestrator.counts.kernels.grids import ConvShape
from perfctl.orchestrator.counts.kernels.short_names import shorten, spoken
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.ledger.causes.breakdown import breakdown, of_another_layer
from perfctl.orchestrator.ledger.causes.evidence import KernelGroup, RowEvidence
from perfctl.orchestrator.ledger.causes.matching import (
    CLOSE,
    EXACT,
    fits_grids,
    from_grids,
    splits_alike,
)
from perfctl.orchestrator.ledger.causes.rule import (
    NEWS,
    Confidence,
    RuleInput,
    Verdict,
    amount,
    is_news,
    percent,
    times,
    verdict,
)
from perfctl.orchestrator.ledger.causes.tensor_rules import SPARSE

ALIKE = 0.02
"""Counts no further apart than this are the same work."""
OTHER = log(100)
"""A count this far from what a layer's shape asks of an algorithm is another layer's."""
FEW = 0.1
"""Share of a layer's paper that products outside of layers may have and still be no
other layer's."""
AGAIN = (
    "That is activation checkpointing: it saves memory for this price. Without it, backward has "
    "the gradients only."
)


TRIES = "torch.backends.cudnn.benchmark = True tries algorithms in the first step of every shape"
WARM_UP = f"{TRIES}: warm up outside of the profiled steps, or turn it off."

TILES_TODO = (
    "Sizes (channels, batch, features) that are multiples of the tile waste nothing; or accept it "
    "as the price."
)

_HOW_SURE = re.compile(r" \((?:[^()]|\([^()]*\))*\)\Z")
"""What a rule ends with: its name and how well it holds, on which chip."""

RECURRENT = re.compile("lstm|gru|rnn", re.IGNORECASE)

_NAMED = (
    ("dropout", re.compile("dropout")),
    ("batch norm", re.compile("batch_?norm|bn_fw|bn_bw")),
    ("fake quantisation", re.compile("fake_?quant")),
    ("layer norm", re.compile("layer_?norm|rms_?norm")),
    ("softmax", re.compile("softmax")),
)
_FAMILIES = {
    "norm": "normalisation",
    "softmax": "softmax",
    "pool": "pooling",
    "reduction": "sums",
    "optimizer": "the optimizer",
    "copy": "copies",
    "rnn": "gates of its cells",
}
_BY_VECTOR = re.compile("gemv|gemmsn|dot_kernel")
_ROLES = {
    "layout": "layout transforms",
    "offsets": "offsets",
    "main": "bias, scaling or activation",
}


def several_algorithms(given: RuleInput) -> Verdict | None:
    """More than one kernel did the whole layer: cuDNN was trying them out."""
    evidence = given.evidence
    if not given.counted or evidence.environment.get("cudnn_benchmark") == "off":
        return None
    found = given.breakdown
    if not (found.several and found.paper):
        return None
    beside = sum(kernel.executed for kernel in evidence.kernels if kernel not in found.several)
    within = sum(max(kernel.executed - kernel.products, 0) for kernel in found.several)
    # a trial runs once: the same number of all layers' launches is another reason
    each = (
        gcd(
            given.table.launched(*evidence.place[:2]),
            *(round(kernel.launches) for kernel in found.several),
        )
        or 1
    )
    factor = (found.base + beside + within) / found.paper / each
    named = ", ".join(shorten(kernel.name for kernel in found.several).values())
    ran = f"{given.who} ran {len(found.several)} kernels that each do the whole layer ({named})"
    if evidence.row.counted.lower_bound:
        sentence = (
            f"{ran}; not all of its kernels were counted, so how much they execute together is not "
            "known."
        )
        return verdict(given, "several algorithms", sentence, None, WARM_UP, found.several)
    sentence = f"{ran}: by their shapes {times(factor)} times the FLOPs on paper together."
    return verdict(
        given,
        "several algorithms",
        sentence,
        factor,
        WARM_UP,
        found.several,
        "predicted and matched",
    )


def tile_padding(given: RuleInput) -> Verdict | None:
    """The grid's tiles cover more outputs, or a longer sum, than the layer has."""
    if given.counted is None:
        return None
    found = given.breakdown
    if not found.rule or not found.paper or found.family in ("winograd", "fft"):
        return None
    factor = found.base / found.paper
    if not given.tells(factor):
        return None
    why = f"it computes whole tiles: {found.rule}"
    if given.evidence.row.direction != "forward" or ";" in found.rule:
        why += f"; {times(factor)} times paper in all"
    sentence = (
        f"{given.who} executes {times(factor)} times the multiply-adds on paper, because {why}."
    )
    counted = (found.seen - found.called) / found.base if found.base else 1.0
    runs = (
        gcd(*(round(kernel.launches) for kernel in found.products)) / given.evidence.calls
        if found.called
        else 1.0
    )
    near = CLOSE if given.evidence.row.direction == "forward" else EXACT
    if found.seen and abs(log(found.seen / max(runs, 1.0) / found.base)) > near:
        # only some of the row's products were predicted, or more ran than the tiles say
        return None
    if is_news(counted):
        sentence += f" Counted were {times(counted)} times as many as that."
    larger = _larger_batch(given)
    chosen = any(
        kernel.algorithm.tile is None and kernel.algorithm.library == "triton"
        for kernel in found.products
    )
    confidence: Confidence = "plausible" if larger or chosen else "predicted and matched"
    return verdict(
        given, "tile padding", sentence + larger, factor, TILES_TODO, found.products, confidence
    )


def derived_tiles(given: RuleInput) -> Verdict | None:
    """A derived count is made of whole tiles; where no grid was matched beside it, its own rules
    say which."""
    evidence, row = given.evidence, given.evidence.row
    if (
        not evidence.derived
        or not evidence.paper
        or not row.counted.reason
        or tile_padding(given) is not None
    ):
        return None
    launches = sum(kernel.launches for kernel in evidence.product_kernels)
    if launches != sum(call.calls for call in row.calls if call.flops):
        return None  # more launches than products: work done again, or parts of one product
    done = 2 * (evidence.total("ffma") or 0) + (evidence.total("ops_path") or 0)
    factor = done / evidence.paper
    said = [rule for rule in row.counted.reason.split("; ") if " = " in rule]
    if factor <= 1 or not said or not given.tells(factor):
        return None
    tiles = "; ".join(_HOW_SURE.sub("", rule) for rule in said[:4])
    sentence = (
        f"{given.who} executes {times(factor)} times the multiply-adds on paper, because it "
        f"computes whole tiles: {tiles}."
    )
    return verdict(
        given,
        "tile padding",
        sentence,
        factor,
        TILES_TODO,
        evidence.product_kernels,
        "predicted and matched",
    )


def _as_on_paper(evidence: RowEvidence) -> bool:
    """True when the count is paper's, by kernels that do all of its multiply-adds."""
    fewer = any(
        one.algorithm.family in ("winograd", "fft") or SPARSE.search(one.name)
        for one in evidence.kernels
    )
    fewer = (
        fewer
        or bool(evidence.left_out)
        or sum(kernel.launches for kernel in evidence.product_kernels) < needed(evidence)
    )
    return (
        not fewer
        and abs((evidence.row.ratio or 0) - 1) <= ALIKE
        and not evidence.row.counted.lower_bound
    )


def _larger_batch(given: RuleInput) -> str:
    """A second reason where a batch twice as large runs the same blocks, and no other row shows
    which batch ran."""
    evidence, (batch, layer, _) = given.evidence, given.evidence.place
    rows = (
        row
        for way in ("forward", *BACKWARD)
        for row in given.table.network_order.get((batch, way), ())
    )
    if evidence.seen_batch or any(other is not evidence and _as_on_paper(other) for other in rows):
        return ""
    forward = given.table.get((batch, layer, "forward"))
    twice = breakdown(
        evidence.with_batch(2 * batch), forward.with_batch(2 * batch) if forward else None
    )
    same = twice.rule and abs(twice.base / given.breakdown.base - 1) < NEWS
    seen = f"{2 * batch:,} samples run in the same blocks, and no other row shows the batch size."
    return f" Or the batch is larger: {seen}" if same else ""


def persistent(given: RuleInput) -> Verdict | None:
    """A recurrent layer whose steps run in one kernel, which keeps the weights on chip (cuDNN's
    persistent algorithms)."""
    if not given.counted:
        return None
    batch, layer, direction = given.evidence.place
    forward = given.table.get((batch, layer, "forward")) if direction != "forward" else None
    # those ran again
    before = {kernel.name for kernel in forward.kernels} if forward is not None else set()
    products = (
        one
        for one in given.breakdown.products
        if one.algorithm.family == "rnn" and one.name not in before
    )
    kernels = tuple(one for one in products if "persist" in one.name.lower())
    if (
        not kernels
        or not is_news(given.ratio or 1)
        or not RECURRENT.search(given.evidence.row.kind or "")
    ):
        return None
    done = (
        f"{amount(sum(kernel.executed for kernel in kernels))}FLOP of the row's "
        f"{amount(given.counted)}FLOP"
    )
    sentence = (
        f"{given.who} runs the steps of its sequence in one persistent kernel "
        f"({spoken(kernels[0].name)}): {done}, where paper has {amount(given.evidence.paper)}FLOP "
        "in all. It works on whole groups of the batch, whose size is in neither name nor grid."
    )
    todo = (
        "Nothing is missing. Larger batches fill its groups; how many FLOPs they take cannot be "
        "predicted."
    )
    return verdict(given, "persistent RNN", sentence, None, todo, kernels, "plausible")


def multiple(evidence: RowEvidence, products: Sequence[KernelGroup]) -> int | None:
    """How often each product was launched for once on paper; None where they differ, or where parts
    may be launches.

    A layer that runs N times runs each of its products N times. A recurrent layer may launch one
    product for each step of its sequence, and a fused attention one for all of its products.
    """
    recurrent = RECURRENT.search(evidence.row.kind or "") or any(
        one.algorithm.family == "rnn" for one in products
    )
    if recurrent or not products:
        return None
    named = {kernel.algorithm.direction for kernel in products}
    launches, needs = sum(kernel.launches for kernel in products), needed(evidence)
    if len(named) == 1 and None not in named and needs > evidence.calls:
        return None  # of one gradient alone
    count = round(launches / needs)
    return (
        count
        if count * needs == launches and all(kernel.launches % count == 0 for kernel in products)
        else None
    )


def needed(evidence: RowEvidence) -> int:
    """Products of a step on paper."""
    return evidence.calls * max(sum(1 for call in evidence.row.calls if call.flops), 1)


def extra_calls(given: RuleInput, step: int = 1) -> Verdict | None:
    """The layer ran more often than the step needs it; ``step``: as often as all layers did."""
    if given.counted is None:
        return None
    forward = _forward_ran(given)
    if forward is not None:
        return _extra(given, forward // step, step) if forward % step == 0 else None
    times_run = multiple(given.evidence, _products(given, step))
    return _extra(given, times_run // step, step) if times_run and times_run % step == 0 else None


def extra_gradients(given: RuleInput, step: int = 1) -> Verdict | None:
    """The gradients of a layer ran more often than its forward; ``step``: as often as those of all
    layers did."""
    if given.counted is None:
        return None
    forward, times_run = _forward_ran(given), multiple(given.evidence, _products(given, step))
    before = max(forward or 0, step)
    return (
        _extra(given, times_run // before, step)
        if forward and times_run and times_run % before == 0
        else None
    )


def _products(given: RuleInput, step: int) -> tuple[KernelGroup, ...]:
    return given.evidence.product_kernels if step > 1 else given.breakdown.products


def _forward_ran(given: RuleInput) -> int | None:
    """How often forward of a gradients' layer ran, if the gradients ran so often or a multiple
    of it."""
    batch, layer, direction = given.evidence.place
    forward = given.table.get((batch, layer, "forward")) if direction != "forward" else None
    ran = multiple(forward, forward.product_kernels) if forward is not None else None
    times_run = multiple(given.evidence, given.breakdown.products)
    return ran if ran and times_run and times_run % ran == 0 else None


def _extra(given: RuleInput, number: int, step: int) -> Verdict | None:
    found, evidence = given.breakdown, given.evidence
    products = _products(given, step)
    times_run = multiple(evidence, products)
    if (
        given.counted is None
        or not given.ratio
        or not times_run
        or number < 2
        or (found.several and step == 1)
    ):
        return None
    if evidence.left_out:
        return None  # launches of it may be among those
    known = found.called > 0
    if not known:  # without a matching grid: the count follows
        if found.rule or found.family in ("winograd", "fft", "attention", None):
            return None
        if abs(log(given.counted / evidence.paper / times_run)) > log(1.1) or not fits_grids(
            evidence
        ):
            return None
    launches, needs = sum(kernel.launches for kernel in products), needed(evidence)
    ran = f"{given.who} launches its product {launches:g} times a step, where paper has {needs}"
    if step > 1:
        ran += f" and all layers have {step} times paper's"
    todo = "Check the number of profiled steps, gradient accumulation, and calls of the layer."
    if splits_alike(evidence, products, times_run):
        sentence = (
            f"{ran}: the layer ran more often, or its product is split over the launches. One part "
            f"of {times_run} may fill as many tiles as all of it."
        )
        return verdict(given, "extra calls", sentence, None, todo, products)
    forward = _forward_ran(given)
    if forward is not None and number * max(forward, step) == times_run:
        why = (
            f"its gradients ran {number} times as often as its forward: double backward, or "
            "several losses"
        )
    else:
        steps = (
            ""
            if step > 1
            else ", the capture holds more steps than it says, or gradients are accumulated"
        )
        trials = (
            ""
            if evidence.environment.get("cudnn_benchmark") == "off"
            else ", or cuDNN tried it several times"
        )
        why = f"the layer ran more often than the recorded step{steps}{trials}"
    sentence = f"{ran}: {times(number)} times the FLOPs on paper, because {why}."
    confidence: Confidence = "predicted and matched" if known else "plausible"
    return verdict(given, "extra calls", sentence, float(number), todo, products, confidence)


def winograd(given: RuleInput) -> Verdict | None:
    """Fewer multiplies for 3x3 and 5x5 filters, with additions in the transforms."""
    return _transformed(given, "Winograd", "winograd")


def fourier(given: RuleInput) -> Verdict | None:
    """The convolution as a product of Fourier transforms."""
    return _transformed(given, "FFT", "fft")


def _transformed(given: RuleInput, rule: str, family: str) -> Verdict | None:
    if given.counted is None:
        return None
    found = given.breakdown
    if found.family != family or not found.paper or not found.rule:
        return None
    shape, forward = given.evidence.forward, given.evidence.row.direction == "forward"
    if not found.seen:
        return None  # its products were not counted, or did not run
    apart = abs(log(found.seen / found.base))
    if not _may_transform(given.evidence) or apart > OTHER:
        return None  # another layer's kernels
    if forward and apart > EXACT and any(of_another_layer(one, shape) for one in found.products):
        return None
    multiplies, transforms = found.base / found.paper, found.transforms / found.paper
    runs = min((kernel.launches for kernel in found.transforming), default=0) / given.evidence.calls
    # more launches of both, or a larger batch, are no part of it
    enough = sum(kernel.launches for kernel in found.products) >= needed(given.evidence)
    if (len(found.products) == 1 if forward else enough) and apart > CLOSE:
        transforms = multiplies * found.transforms / found.seen
    elif forward and runs > 1:
        transforms /= runs
    factor = multiplies + transforms
    method = (found.method or rule) if family == "winograd" else rule
    ran = (
        f"{given.who} runs as {method}, which needs {times(multiplies)} of the multiply-adds on "
        f"paper ({found.rule})"
    )
    sentence = (
        f"{ran}, and {percent(transforms)} of paper on top for its transforms, {times(factor)} "
        "together."
    )
    if is_news(found.seen / found.base):
        sentence += f" Counted were {times(found.seen / found.paper)} in multiply-adds."
    larger = _larger_batch(given)
    lets = "torch.backends.cudnn.deterministic = True lets cuDNN choose among fewer algorithms"
    todo = f"Nothing is missing. {lets}, if paper's arithmetic is what you want to see."
    kernels = (*found.products, *found.transforming)
    confidence: Confidence = "plausible" if larger else "predicted and matched"
    return verdict(given, rule, sentence + larger, factor, todo, kernels, confidence)


def _may_transform(evidence: RowEvidence) -> bool:
    """True for a convolution whose filter the algorithm can have, as far as both are known."""
    shape = evidence.forward
    if not isinstance(shape, ConvShape):
        return shape is None and "Conv" in (evidence.row.kind or "Conv")
    sides = {
        kernel.algorithm.winograd[1] for kernel in evidence.kernels if kernel.algorithm.winograd
    }
    return (
        {shape.kernel_h, shape.kernel_w} == sides if sides else shape.kernel_h * shape.kernel_w > 1
    )


def split_k(given: RuleInput) -> Verdict | None:
    """A long sum is cut into slices, which are added up afterwards, or by the kernel itself."""
    if given.counted is None:
        return None
    found = given.breakdown
    factor = found.grown("summed")
    named = tuple(kernel for kernel in found.products if kernel.algorithm.split_k)
    todo = "Expected: split-K adds partial sums. Larger batches avoid it."
    if (
        given.counted
        and named
        and not found.summed
        and not found.rule
        and is_news(given.ratio or 1)
    ):
        why = (
            "what its parts add up in memory is in no counter, and how they fill tiles is not known"
        )
        sentence = (
            f"{given.who} splits its sum over blocks, by the name of {named[0].name[:60]}: {why}."
        )
        return verdict(given, "split-K", sentence, None, todo, named, "plausible")
    if not found.summed or not given.tells(factor):
        return None
    depths = (kernel.grid[2] for kernel in found.products if kernel.grid and kernel.grid[2] > 1)
    slices = next((f" over {depth} slices" for depth in depths), "")
    more = f"{amount(found.summed)}FLOP more, {percent(factor - 1)}"
    where = "itself" if found.summing[0] in found.products else f"in {found.summing[0].name[:60]}"
    sentence = f"{given.who} splits its sum{slices} and adds the slices up {where}: {more}."
    return verdict(given, "split-K", sentence, factor, todo, found.summing)


def layout_and_epilogue(given: RuleInput) -> Verdict | None:
    """Work in addition to the products: layouts changed, a bias added, results scaled."""
    if given.counted is None:
        return None
    found = given.breakdown
    factor = found.grown("extra")
    if not found.extra or not given.tells(factor):
        return None
    works = [_work_of(kernel) for kernel in found.extras if kernel.executed]
    done = ", ".join(dict.fromkeys([*works, *(["sums onto its output"] if found.onto else [])]))
    sentence = (
        f"{given.who} executes {amount(found.extra)}FLOP in addition to its products ({done}), "
        f"{percent(factor - 1)} more."
    )
    todo = (
        "Paper counts multiply-adds only; read its elementwise column for bias additions and "
        "activations."
    )
    return verdict(given, "layout and epilogue", sentence, factor, todo, found.extras)


def _work_of(kernel: KernelGroup) -> str:
    """What a kernel beside the products does, by its name."""
    lowered = kernel.name.lower()
    named = next(
        (word for word, pattern in _NAMED if not kernel.main and pattern.search(lowered)), None
    )
    if kernel.main and "sliced" in lowered:
        return "scaling and the sums of its slices"
    if kernel.main and _BY_VECTOR.search(
        lowered
    ):  # cuBLAS: a row's products are summed over threads; no bias, no activation
        return (
            "scaling and the sums of its threads"
            if kernel.counts.get("fmul")
            else "the sums of its threads"
        )
    if kernel.main and kernel.counts.get("fmul") and not kernel.counts.get("fadd"):
        return "scaling"
    return (
        named
        or _FAMILIES.get(kernel.algorithm.family or "")
        or _ROLES.get(kernel.algorithm.role, "epilogues")
    )


def recomputation(given: RuleInput) -> Verdict | None:
    """Forward's kernels run once more in backward (activation checkpointing), or as a direction of
    its own."""
    if given.counted is None:
        return None
    found, row = given.breakdown, given.evidence.row
    if row.direction == "recompute" and given.counted:
        sentence = (
            f"{row.layer} runs forward once more in backward{row.at}: {amount(given.counted)}FLOP."
        )
        return verdict(
            given, "recomputation", sentence, None, AGAIN, given.evidence.product_kernels
        )
    benchmark = given.evidence.environment.get("cudnn_benchmark")
    if not found.repeated or benchmark == "on":
        return None  # tried as well: a kernel that serves forward may be a candidate for a gradient
    factor = found.grown("repeated")
    if found.called and found.seen:
        # further launches of all products, of which grids may show only some
        factor = 1 + found.repeated / found.seen
    forward = given.table.get((row.size, row.layer, "forward"))
    shapeless = forward is not None and forward.forward is None and found.seen > 0
    unclear = shapeless and not found.called and log(found.seen / found.paper) > EXACT
    if row.counted.lower_bound or unclear:
        why = (
            "which of them do gradients, is not known"
            if unclear
            else "not all of its kernels were counted"
        )
        sentence = f"{given.who} runs forward's kernels again, by their names and grids; {why}."
        return verdict(given, "recomputation", sentence, None, AGAIN, found.repeating, "plausible")
    more = f"{amount(found.repeated)}FLOP, {times(factor)} times what the gradients alone need"
    sentence = f"{given.who} runs forward's kernels again: {more}."
    confidence: Confidence = "predicted and matched" if benchmark == "off" else "plausible"
    gradients = {call.direction for call in row.calls if call.flops}
    if given.evidence.forward is not None and "grad_input" not in gradients:
        sentence += (
            " Or they compute the gradient of its input, as large, which paper does not need."
        )
        confidence = "plausible"
    return verdict(given, "recomputation", sentence, factor, AGAIN, found.repeating, confidence)


def shared_kernel(given: RuleInput) -> Verdict | None:
    """One kernel does the work of this layer and of neighbours that have no kernel of their own."""
    evidence = given.evidence
    if evidence.kernels:
        served = _served(given, evidence)
        if not served:
            return None
        factor = (evidence.paper + sum(other.paper for other in served)) / evidence.paper
        whose = ", ".join(other.row.name for other in served)
        sentence = (
            f"{given.who} executes {times(factor)} times its own paper count: its kernel also does "
            f"{whose}."
        )
        todo = f"Read {evidence.row.name} and {whose} together: fused layers share a kernel."
        return verdict(
            given,
            "shared kernel",
            sentence,
            factor,
            todo,
            evidence.product_kernels,
            "predicted and matched",
        )
    # a kernel's layer and those after it, up to the next with kernels
    rows, place = _neighbours(given, evidence)
    owner = next((other for other in reversed(rows[:place]) if other.kernels), None)
    if owner is None or not any(other is evidence for other in _served(given, owner)):
        return None
    sentence = (
        f"{given.who} has no kernel of its own: its {amount(evidence.paper)}FLOP are done in a "
        f"kernel of {owner.row.name}."
    )
    todo = f"Read {owner.row.name} and {evidence.row.name} together."
    return verdict(
        given, "shared kernel", sentence, None, todo, owner.product_kernels, "predicted and matched"
    )


def _served(given: RuleInput, owner: RowEvidence) -> tuple[RowEvidence, ...]:
    """Neighbours after ``owner`` whose paper, added to its own, is what it counted; () when there
    are none."""
    products = sum(kernel.products for kernel in owner.product_kernels)
    if not owner.paper or products <= owner.paper * (1 + ALIKE):
        return ()
    grids = from_grids(owner, owner.product_kernels)
    if grids is not None and abs(products / grids[0] - 1) <= ALIKE:
        return ()  # the grid alone explains the count
    rows, place = _neighbours(given, owner)
    after = tuple(
        takewhile(
            lambda one: not one.kernels and one.profiled and not one.left_out, rows[place + 1 :]
        )
    )
    elsewhere = [kernel for kernel in given.loose if kernel.main]
    if any(
        kernel.products >= FEW * owner.paper or kernel.flops.value is None for kernel in elsewhere
    ):
        return ()  # a neighbour's own kernel may lie among those outside of layers
    together = accumulate((evidence.paper for evidence in after), initial=owner.paper)
    counts = (
        count
        for count, paper in enumerate(together)
        if count and abs(products / paper - 1) <= ALIKE
    )
    return after[: next(counts, 0)]


def _neighbours(given: RuleInput, evidence: RowEvidence) -> tuple[Sequence[RowEvidence], int]:
    """(rows of the same batch size and direction in the network's order, which of them it is)."""
    return given.table.network_order[
        evidence.row.size, evidence.row.direction
    ], given.table.positions[evidence.place]
