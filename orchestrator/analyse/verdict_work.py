"""Rules about the work a layer's kernels do: other algorithms, padding, extra work, work done twice or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from perfctl.orchestrator.analyse.case import RowEvidence
from perfctl.orchestrator.analyse.verdict_budget import from_grids
from perfctl.orchestrator.analyse.verdict_records import Verdict
from perfctl.orchestrator.analyse.verdict_scene import RuleInput, amount, is_news, percent, times, verdict

ALIKE = 0.02
"""How near two counts must be for one to be taken for the other."""
AGAIN = "That is activation checkpointing: it saves memory for this price. Without it, backward has the gradients only."


def several_algorithms(given: RuleInput) -> Verdict | None:
    """More than one kernel did the whole layer: cuDNN was trying them out."""
    found = given.breakdown
    if not given.counted or not found.several or not given.ratio:
        return None
    named = ", ".join(dict.fromkeys(kernel.name[:60] for kernel in found.several))
    sentence = (
        f"{given.who} ran {len(found.several)} kernels that each do the whole layer ({named}): {times(given.ratio)} times "
        "the FLOPs on paper together."
    )
    todo = (
        "torch.backends.cudnn.benchmark = True tries algorithms in the first step of every shape: warm up outside of the "
        "profiled steps, or turn it off."
    )
    return verdict(given, "several algorithms", sentence, given.ratio, todo, found.several)


def tile_padding(given: RuleInput) -> Verdict | None:
    """The grid's tiles cover more outputs, or a longer sum, than the layer has."""
    found = given.breakdown
    if given.counted is None or not found.rule or not found.paper or found.family in ("winograd", "fft"):
        return None
    factor = found.base / found.paper
    if not is_news(factor):
        return None
    seen = found.seen / found.paper
    sentence = (
        f"{given.who} executes {times(seen)} times the multiply-adds on paper, because its tiles are not filled: "
        f"{found.rule}, predicted {times(factor)}."
    )
    todo = "Sizes (channels, batch, features) that are multiples of the tile waste nothing; or accept it as the price."
    return verdict(given, "tile padding", sentence, factor, todo, found.products)


def winograd(given: RuleInput) -> Verdict | None:
    """Fewer multiplies for 3x3 and 5x5 filters, with additions in the transforms."""
    found = given.breakdown
    if given.counted is None or found.family != "winograd" or not found.paper or not found.rule:
        return None
    return _transformed(given, "Winograd", found.method or "Winograd")


def fourier(given: RuleInput) -> Verdict | None:
    """The convolution as a product of Fourier transforms."""
    found = given.breakdown
    if given.counted is None or found.family != "fft" or not found.paper or not found.rule:
        return None
    return _transformed(given, "FFT", "FFT")


def _transformed(given: RuleInput, rule: str, method: str) -> Verdict:
    found = given.breakdown
    multiplies, transforms = found.base / found.paper, found.transforms / found.paper
    factor = multiplies + transforms
    sentence = (
        f"{given.who} runs as {method}: {times(multiplies)} of the multiply-adds on paper ({found.rule}), and "
        f"{percent(transforms)} of paper on top for its transforms, {times(factor)} together."
    )
    todo = (
        "Nothing is missing. torch.backends.cudnn.deterministic = True lets cuDNN choose among fewer algorithms, "
        "if paper's arithmetic is what you want to see."
    )
    return verdict(given, rule, sentence, factor, todo, (*found.products, *found.transforming))


def split_k(given: RuleInput) -> Verdict | None:
    """A long sum is cut into slices, which are added up afterwards."""
    found = given.breakdown
    factor = found.grown("summed")
    if given.counted is None or not found.summed or not is_news(factor):
        return None
    slices = next(
        (f" over {kernel.grid[2]} slices" for kernel in found.products if kernel.grid and kernel.grid[2] > 1), ""
    )
    sentence = (
        f"{given.who} splits its sum{slices} and adds the slices up in {found.summing[0].name[:60]}: "
        f"{amount(found.summed)}FLOP more, {percent(factor - 1)}."
    )
    todo = "Nothing is missing: paper has one sum per output. Larger batches need no split."
    return verdict(given, "split-K", sentence, factor, todo, found.summing)


def layout_and_epilogue(given: RuleInput) -> Verdict | None:
    """Work beside the products: layouts changed, a bias added, results scaled."""
    found = given.breakdown
    factor = found.grown("extra")
    if given.counted is None or not found.extra or not is_news(factor):
        return None
    sentence = (
        f"{given.who} executes {amount(found.extra)}FLOP beside its products ({_who_does(given)}), "
        f"{percent(factor - 1)} more."
    )
    todo = "Paper counts multiply-adds only; read its elementwise column for bias additions and activations."
    return verdict(given, "layout and epilogue", sentence, factor, todo, found.extras)


def _who_does(given: RuleInput) -> str:
    roles = {"layout": "layout transforms", "offsets": "offsets", "main": "bias, scaling or activation"}
    return ", ".join(dict.fromkeys(roles.get(kernel.algorithm.role, "epilogues") for kernel in given.breakdown.extras))


def recomputation(given: RuleInput) -> Verdict | None:
    """Forward's kernels run once more in backward (activation checkpointing), or as a direction of its own."""
    found = given.breakdown
    if given.evidence.row.direction == "recompute" and given.counted:
        sentence = (
            f"{given.evidence.row.layer} runs forward once more in backward at batch {given.evidence.row.batch}: "
        )
        return verdict(
            given,
            "recomputation",
            f"{sentence}{amount(given.counted)}FLOP.",
            None,
            AGAIN,
            given.evidence.product_kernels,
        )
    if given.counted is None or not found.repeated:
        return None
    factor = found.grown("repeated")
    sentence = (
        f"{given.who} runs forward's kernels again: {amount(found.repeated)}FLOP, "
        f"{times(factor)} times what the gradients alone need."
    )
    return verdict(given, "recomputation", sentence, factor, AGAIN, found.repeating)


def shared_kernel(given: RuleInput) -> Verdict | None:
    """One kernel does the work of this layer and of neighbours that have no kernel of their own."""
    evidence = given.evidence
    if evidence.kernels:
        return _serves(given)
    row, place = _beside(given, evidence)
    owner = next(
        (other for other in reversed(row[:place]) if other.kernels), None
    )  # it serves up to the next with works
    if owner is None or not any(other is evidence for other in _served(given, owner)):
        return None
    sentence = f"{given.who} has no kernel of its own: its {amount(evidence.paper)}FLOP are done in a kernel of {owner.row.name}."
    todo = f"Read {owner.row.name} and {evidence.row.name} together."
    return verdict(given, "shared kernel", sentence, None, todo, owner.product_kernels)


def _serves(given: RuleInput) -> Verdict | None:
    served = _served(given, given.evidence)
    if not served:
        return None
    factor = (given.evidence.paper + sum(other.paper for other in served)) / given.evidence.paper
    whose = ", ".join(other.row.name for other in served)
    sentence = f"{given.who} executes {times(factor)} times its own paper count: its kernel also does {whose}."
    todo = f"Read {given.evidence.row.name} and {whose} together: fused layers share a kernel."
    return verdict(given, "shared kernel", sentence, factor, todo, given.evidence.product_kernels)


def _served(given: RuleInput, owner: RowEvidence) -> tuple[RowEvidence, ...]:
    """Neighbours after ``owner`` whose paper, added to its own, is what it counted; () when there are none."""
    products = sum(kernel.products for kernel in owner.product_kernels)
    if not owner.paper or products <= owner.paper * (1 + ALIKE) or _padded(owner, products):
        return ()
    row, place = _beside(given, owner)
    taken: list[RowEvidence] = []
    together = owner.paper
    for evidence in row[place + 1 :]:
        if evidence.kernels:
            break
        taken.append(evidence)
        together += evidence.paper
        if abs(products / together - 1) <= ALIKE:
            return tuple(taken)
    return ()


def _padded(owner: RowEvidence, products: float) -> bool:
    """Does the grid alone explain the count?"""
    found = from_grids(owner, owner.product_kernels)
    return found is not None and abs(products / found[0] - 1) <= ALIKE


def _beside(given: RuleInput, evidence: RowEvidence) -> tuple[Sequence[RowEvidence], int]:
    """(rows of the case's batch size and direction in the network's order, which of them it is)."""
    return given.table.network_order[evidence.row.batch, evidence.row.direction], given.table.positions[evidence.place]
