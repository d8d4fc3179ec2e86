"""Rules about the gradients of a layer: one that is missing or not needed, trials, forward run
again by another kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import log

from perfctl.orchestrator.counts.kernels.grids import ConvShape
from perfctl.orchestrator.counts.kernels.short_names import spoken
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.ledger.causes.breakdown import LEAST_MULTIPLIES
from perfctl.orchestrator.ledger.causes.evidence import KernelGroup
from perfctl.orchestrator.ledger.causes.matching import CLOSE, EXACT
from perfctl.orchestrator.ledger.causes.row_rules import AGAIN, WARM_UP
from perfctl.orchestrator.ledger.causes.rule import (
    Confidence,
    RuleInput,
    Verdict,
    amount,
    percent,
    times,
    verdict,
)

NAMES = {"grad_input": "the gradient of its input", "grad_weight": "the gradient of its weight"}


def _papers(given: RuleInput) -> Mapping[str, float]:
    """Gradient -> FLOPs on paper, of a row of backward."""
    papers: dict[str, float] = defaultdict(float)
    for call in given.evidence.row.calls:
        if call.direction in NAMES and call.flops:
            papers[call.direction] += call.flops
    scale = given.evidence.paper / sum(papers.values()) if papers else 1.0
    return {direction: flops * scale for direction, flops in papers.items()}


def _simple(given: RuleInput) -> tuple[KernelGroup, ...]:
    """Products of a backward row that a gradient each would make; () where they may be parts of
    something else."""
    evidence = given.evidence
    if given.counted is None or evidence.row.direction not in BACKWARD or evidence.calls != 1:
        return ()
    found = given.breakdown
    families = {kernel.algorithm.family for kernel in found.products}
    return (
        found.products
        if not found.repeated and families <= {"conv", "winograd", "gemm", "fft", "depthwise"}
        else ()
    )


def _alike(kernel: KernelGroup, flops: float) -> bool:
    """True when the kernel executes about the multiply-adds of one gradient in each launch."""
    return kernel.products > 0 and abs(log(kernel.products / kernel.launches / flops)) < CLOSE


def _as_forward(given: RuleInput, ratio: float) -> bool:
    """True when forward of the layer is as far off as ``ratio``: another batch, or another layer's
    kernels, and no gradient's."""
    before = given.table.get((*given.evidence.place[:2], "forward"))
    found = before.row.ratio if before is not None else None
    return bool(found) and abs(log(found or 1)) > EXACT and abs(log((found or 1) / ratio)) < CLOSE


def gradient_missing(given: RuleInput) -> Verdict | None:
    """One product ran where paper has two gradients."""
    papers, products = _papers(given), _simple(given)
    if (
        len(papers) != 2
        or len(products) != 1
        or products[0].launches != 1
        or given.evidence.left_out
    ):
        return None
    (kernel,) = products
    said = kernel.algorithm.direction
    there = said if said is not None and said in papers else next(iter(papers))
    if kernel.algorithm.family == "winograd" or not _alike(kernel, papers[there]):
        return None
    gone = next(direction for direction in papers if direction != there)
    factor = papers[there] / sum(papers.values())
    which = (
        f"{NAMES[gone]} has no kernel"
        if said in papers
        else "one of its two gradients has no kernel"
    )
    outside = sum(1 for one in given.loose if one.main and _alike(one, papers[gone]))
    where = f", and {outside} of the kernels outside of layers may be it" if outside else ""
    sentence = f"{given.who} ran one product: {which}{where}. What ran is {times(factor)} of paper."
    todo = (
        "Look for it among the kernels outside of layers, or check whether the step needs that "
        "gradient."
    )
    confidence: Confidence = "predicted and matched" if said in papers else "plausible"
    return verdict(given, "gradient missing", sentence, factor, todo, products, confidence)


def needless_gradient(given: RuleInput) -> Verdict | None:
    """The gradient of the input was computed although paper has none."""
    papers, products = _papers(given), _simple(given)
    named = tuple(kernel for kernel in products if kernel.algorithm.direction == "grad_input")
    if set(papers) != {"grad_weight"} or not named or len(named) == len(products):
        return None
    own = papers["grad_weight"]
    once = sum(kernel.launches for kernel in named) == 1 and _alike(named[0], own)
    if not once or _as_forward(given, named[0].products / own):
        return None
    sentence = (
        f"{given.who} also computes {NAMES['grad_input']}, {amount(own)}FLOP that paper does not "
        "need: 2.00 times paper."
    )
    todo = (
        "Check requires_grad of the network's input: nothing uses that gradient in ordinary "
        "training."
    )
    return verdict(given, "needless gradient", sentence, 2.0, todo, named, "predicted and matched")


def gradient_trials(given: RuleInput) -> Verdict | None:
    """Several kernels that each compute the same gradient, by their names: cuDNN was trying
    them out."""
    papers, products = _papers(given), _simple(given)
    by_direction: dict[str, list[KernelGroup]] = defaultdict(list)
    for kernel in products:
        by_direction[kernel.algorithm.direction or ""].append(kernel)
    if (
        not papers
        or set(by_direction) != set(papers)
        or given.evidence.environment.get("cudnn_benchmark") == "off"
    ):
        return None
    if all(sum(one.launches for one in found) < 2 for found in by_direction.values()):
        return None
    if not all(
        _alike(kernel, papers[direction])
        for direction, found in by_direction.items()
        for kernel in found
    ):
        return None
    runs = {
        direction: sum(one.launches for one in found) for direction, found in by_direction.items()
    }
    factor = sum(papers[direction] * count for direction, count in runs.items()) / sum(
        papers.values()
    )
    ran = " and ".join(
        f"{NAMES[direction]} {count:g} times" for direction, count in runs.items() if count > 1
    )
    different = all(
        len(found) > 1 for direction, found in by_direction.items() if runs[direction] > 1
    )
    if not different:
        return None  # one kernel launched twice is no trial
    sentence = (
        f"{given.who} computed {ran}, each by another kernel: {times(factor)} times the FLOPs on "
        "paper."
    )
    return verdict(
        given, "several algorithms", sentence, factor, WARM_UP, products, "predicted and matched"
    )


def zeros_inserted(given: RuleInput) -> Verdict | None:
    """The input gradient of a strided convolution, as a product over every input: most of its
    factors are inserted zeros."""
    papers, products, full = _papers(given), _simple(given), given.evidence.upsampled
    own = [kernel for kernel in products if kernel.algorithm.direction == "grad_input"]
    if full is None or "grad_input" not in papers or len(own) != 1 or own[0].launches != 1:
        return None
    if abs(log(max(own[0].products, 1) / full)) > EXACT or full <= papers["grad_input"]:
        return None
    forward = given.evidence.forward
    groups = forward.groups if isinstance(forward, ConvShape) else 1
    if groups > 1 and abs(log(full / papers["grad_input"] / groups)) < EXACT:
        return None  # all groups as one dense product have the same count
    if _as_forward(given, full / papers["grad_input"]):
        return None
    factor = (sum(papers.values()) - papers["grad_input"] + full) / sum(papers.values())
    sentence = (
        f"{given.who} computes {NAMES['grad_input']} over every input, with zeros between the "
        f"outputs of the stride: {amount(full)}FLOP for {amount(papers['grad_input'])}FLOP on "
        f"paper, {times(factor)} times the row."
    )
    todo = "Expected of this kernel: paper counts only what is not multiplied by an inserted zero."
    return verdict(
        given, "zeros inserted", sentence, factor, todo, tuple(own), "predicted and matched"
    )


def recomputed_otherwise(given: RuleInput) -> Verdict | None:
    """Forward ran again in backward, by another kernel than the first time."""
    batch, layer, _ = given.evidence.place
    forward = given.table.get((batch, layer, "forward"))
    papers, products = _papers(given), _simple(given)
    others = [kernel for kernel in products if kernel.algorithm.direction not in papers]
    named = {kernel.algorithm.direction for kernel in products} & set(papers)
    if forward is None or named != set(papers) or len(others) != 1 or "grad_input" not in papers:
        return None
    (kernel,) = others
    if (
        sum(one.launches for one in products) != len(papers) + 1
        or kernel.algorithm.direction != "forward"
    ):
        return None
    if given.evidence.environment.get("cudnn_benchmark") == "on":
        return None
    recorded = given.evidence.environment.get("cudnn_benchmark") == "off"
    share = kernel.products / forward.paper if forward.paper else 0.0
    if not share > LEAST_MULTIPLIES or (
        kernel.algorithm.family != "winograd" and not _alike(kernel, forward.paper)
    ):
        return None
    factor = 1 + kernel.executed / given.evidence.paper
    sentence = (
        f"{given.who} runs forward once more, by {spoken(kernel.name)}: "
        f"{amount(kernel.executed)}FLOP, {percent(factor - 1)} on top of the gradients."
    )
    if not recorded:
        sentence += (
            " Or cuDNN tried it for a gradient: whether cudnn.benchmark was on is not recorded."
        )
    confidence: Confidence = "predicted and matched" if recorded else "plausible"
    return verdict(given, "recomputation", sentence, factor, AGAIN, (kernel,), confidence)
