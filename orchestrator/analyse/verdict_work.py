"""Rules about the work a layer's kernels do: other algorithms, padding, extra work, work done twice or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from perfctl.orchestrator.analyse.case import Case
from perfctl.orchestrator.analyse.verdict_budget import from_grids
from perfctl.orchestrator.analyse.verdict_records import Verdict
from perfctl.orchestrator.analyse.verdict_scene import Scene, amount, is_news, percent, times, verdict

ALIKE = 0.02
"""How near two counts must be for one to be taken for the other."""
AGAIN = "That is activation checkpointing: it saves memory for this price. Without it, backward has the gradients only."


def several_algorithms(scene: Scene) -> Verdict | None:
    """More than one kernel did the whole layer: cuDNN was trying them out."""
    found = scene.budget
    if not scene.counted or not found.several or not scene.ratio:
        return None
    named = ", ".join(dict.fromkeys(work.name[:60] for work in found.several))
    sentence = (
        f"{scene.who} ran {len(found.several)} kernels that each do the whole layer ({named}): {times(scene.ratio)} times "
        "the FLOPs on paper together."
    )
    todo = (
        "torch.backends.cudnn.benchmark = True tries algorithms in the first step of every shape: warm up outside of the "
        "profiled steps, or turn it off."
    )
    return verdict(scene, "several algorithms", sentence, scene.ratio, todo, found.several)


def tile_padding(scene: Scene) -> Verdict | None:
    """The grid's tiles cover more outputs, or a longer sum, than the layer has."""
    found = scene.budget
    if scene.counted is None or not found.rule or not found.paper or found.family in ("winograd", "fft"):
        return None
    factor = found.base / found.paper
    if not is_news(factor):
        return None
    seen = found.seen / found.paper
    sentence = (
        f"{scene.who} executes {times(seen)} times the multiply-adds on paper, because its tiles are not filled: "
        f"{found.rule}, predicted {times(factor)}."
    )
    todo = "Sizes (channels, batch, features) that are multiples of the tile waste nothing; or accept it as the price."
    return verdict(scene, "tile padding", sentence, factor, todo, found.products)


def winograd(scene: Scene) -> Verdict | None:
    """Fewer multiplies for 3x3 and 5x5 filters, with additions in the transforms."""
    found = scene.budget
    if scene.counted is None or found.family != "winograd" or not found.paper or not found.rule:
        return None
    return _transformed(scene, "Winograd", found.method or "Winograd")


def fourier(scene: Scene) -> Verdict | None:
    """The convolution as a product of Fourier transforms."""
    found = scene.budget
    if scene.counted is None or found.family != "fft" or not found.paper or not found.rule:
        return None
    return _transformed(scene, "FFT", "FFT")


def _transformed(scene: Scene, rule: str, method: str) -> Verdict:
    found = scene.budget
    multiplies, transforms = found.base / found.paper, found.transforms / found.paper
    factor = multiplies + transforms
    sentence = (
        f"{scene.who} runs as {method}: {times(multiplies)} of the multiply-adds on paper ({found.rule}), and "
        f"{percent(transforms)} of paper on top for its transforms, {times(factor)} together."
    )
    todo = (
        "Nothing is missing. torch.backends.cudnn.deterministic = True lets cuDNN choose among fewer algorithms, "
        "if paper's arithmetic is what you want to see."
    )
    return verdict(scene, rule, sentence, factor, todo, (*found.products, *found.transforming))


def split_k(scene: Scene) -> Verdict | None:
    """A long sum is cut into slices, which are added up afterwards."""
    found = scene.budget
    factor = found.grown("summed")
    if scene.counted is None or not found.summed or not is_news(factor):
        return None
    slices = next((f" over {work.grid[2]} slices" for work in found.products if work.grid and work.grid[2] > 1), "")
    sentence = (
        f"{scene.who} splits its sum{slices} and adds the slices up in {found.summing[0].name[:60]}: "
        f"{amount(found.summed)}FLOP more, {percent(factor - 1)}."
    )
    todo = "Nothing is missing: paper has one sum per output. Larger batches need no split."
    return verdict(scene, "split-K", sentence, factor, todo, found.summing)


def layout_and_epilogue(scene: Scene) -> Verdict | None:
    """Work beside the products: layouts changed, a bias added, results scaled."""
    found = scene.budget
    factor = found.grown("extra")
    if scene.counted is None or not found.extra or not is_news(factor):
        return None
    sentence = (
        f"{scene.who} executes {amount(found.extra)}FLOP beside its products ({_who_does(scene)}), "
        f"{percent(factor - 1)} more."
    )
    todo = "Paper counts multiply-adds only; read its elementwise column for bias additions and activations."
    return verdict(scene, "layout and epilogue", sentence, factor, todo, found.extras)


def _who_does(scene: Scene) -> str:
    roles = {"layout": "layout transforms", "offsets": "offsets", "main": "bias, scaling or activation"}
    return ", ".join(dict.fromkeys(roles.get(work.algorithm.role, "epilogues") for work in scene.budget.extras))


def recomputation(scene: Scene) -> Verdict | None:
    """Forward's kernels run once more in backward (activation checkpointing), or as a direction of its own."""
    found = scene.budget
    if scene.case.row.direction == "recompute" and scene.counted:
        sentence = f"{scene.case.row.layer} runs forward once more in backward at batch {scene.case.row.batch}: "
        return verdict(scene, "recomputation", f"{sentence}{amount(scene.counted)}FLOP.", None, AGAIN, scene.case.mains)
    if scene.counted is None or not found.repeated:
        return None
    factor = found.grown("repeated")
    sentence = (
        f"{scene.who} runs forward's kernels again: {amount(found.repeated)}FLOP, "
        f"{times(factor)} times what the gradients alone need."
    )
    return verdict(scene, "recomputation", sentence, factor, AGAIN, found.repeating)


def shared_kernel(scene: Scene) -> Verdict | None:
    """One kernel does the work of this layer and of neighbours that have no kernel of their own."""
    case = scene.case
    if case.works:
        return _serves(scene)
    row, place = _beside(scene, case)
    owner = next((other for other in reversed(row[:place]) if other.works), None)  # it serves up to the next with works
    if owner is None or not any(other is case for other in _served(scene, owner)):
        return None
    sentence = (
        f"{scene.who} has no kernel of its own: its {amount(case.paper)}FLOP are done in a kernel of {owner.row.name}."
    )
    todo = f"Read {owner.row.name} and {case.row.name} together."
    return verdict(scene, "shared kernel", sentence, None, todo, owner.mains)


def _serves(scene: Scene) -> Verdict | None:
    served = _served(scene, scene.case)
    if not served:
        return None
    factor = (scene.case.paper + sum(other.paper for other in served)) / scene.case.paper
    whose = ", ".join(other.row.name for other in served)
    sentence = f"{scene.who} executes {times(factor)} times its own paper count: its kernel also does {whose}."
    todo = f"Read {scene.case.row.name} and {whose} together: fused layers share a kernel."
    return verdict(scene, "shared kernel", sentence, factor, todo, scene.case.mains)


def _served(scene: Scene, owner: Case) -> tuple[Case, ...]:
    """Neighbours after ``owner`` whose paper, added to its own, is what it counted; () when there are none."""
    products = sum(work.products for work in owner.mains)
    if not owner.paper or products <= owner.paper * (1 + ALIKE) or _padded(owner, products):
        return ()
    row, place = _beside(scene, owner)
    taken: list[Case] = []
    together = owner.paper
    for case in row[place + 1 :]:
        if case.works:
            break
        taken.append(case)
        together += case.paper
        if abs(products / together - 1) <= ALIKE:
            return tuple(taken)
    return ()


def _padded(owner: Case, products: float) -> bool:
    """Does the grid alone explain the count?"""
    found = from_grids(owner, owner.mains)
    return found is not None and abs(products / found[0] - 1) <= ALIKE


def _beside(scene: Scene, case: Case) -> tuple[Sequence[Case], int]:
    """(rows of the case's batch size and direction in the network's order, which of them it is)."""
    return scene.cases.network_order[case.row.batch, case.row.direction], scene.cases.positions[case.place]
