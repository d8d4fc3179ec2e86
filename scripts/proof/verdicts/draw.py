"""One draw: a network, what happened to it, the records that a profiler would leave, and the truth
beside them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from perfctl.records.run import Run
from scripts.proof.verdicts.choose import MAKERS, CannotOccurError, Choice
from scripts.proof.verdicts.conflicts import CONFLICTS, run_sizes
from scripts.proof.verdicts.effects import Effect
from scripts.proof.verdicts.kernels import Launch
from scripts.proof.verdicts.launches import capture
from scripts.proof.verdicts.networks import (
    BACKWARD,
    FORWARD,
    Attention,
    Conv,
    Layer,
    Linear,
    Lstm,
    Network,
    Scene,
)
from scripts.proof.verdicts.records import CHIPS, record

Place = tuple[int, str, str]
"""Batch size, layer, direction."""
Key = tuple[str | None, str | None]
"""Layer and direction."""
Rows = dict[Key, list[Launch]]
VERSIONS = ("2022.3.0", "2023.3.1", "2024.1.0", "2025.1.1", "2025.3.0")
BATCHES = (1, 2, 4, 5, 8, 10, 16, 20, 24, 32, 48, 50, 64, 96, 100, 128, 192, 200, 256)
CHANNELS = (8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
SIDES = (2, 4, 7, 8, 13, 14, 16, 24, 26, 28, 32, 56)
WIDTHS = (10, 64, 100, 120, 128, 200, 256, 300, 512, 768, 1000, 1024, 2048, 4096, 9216)
SCENES_MAX = 300
"""Scenes to try before other effects are chosen."""
GROUPS = (
    {"flash_recompute", "causal_skip"},
    {"two_steps", "accumulation", "larger_batch", "ddp_rank", "pads_batch"},
    {
        "eval_profiled",
        "frozen",
        "gradient_missing",
        "dgrad_loose",
        "double_backward",
        "gradients_again",
        "needless_grad_input",
        "checkpoint_same",
        "checkpoint_other",
    },
    {"cut_off", "two_steps", "accumulation", "eval_profiled"},
)
"""Effects of which a draw has one at most."""
ORDER = tuple(MAKERS)
EVERY = (*ORDER, *CONFLICTS)
WHOLE = {"two_steps", "accumulation", "larger_batch", "ddp_rank", "pads_batch", "cut_off"}
"""Effects that no conflict is drawn with: they change all rows, too."""
IN_PARTS = ("winograd2", "winograd4", "fft", "split_k", "split_inside")
"""Algorithms of a product and small kernels around it; the factor of the product alone may be
told too."""


@dataclass(frozen=True, slots=True)
class RowTruth:
    """The truth about one row."""

    estimated: int
    executed: int
    """FLOPs of the launches that are attributed to the row, in a step as the records tell steps."""
    shown: int | None
    """What the counters show of it; None where no launch of the row has any."""
    factors: dict[str, float]
    """Effect -> its factor, each on top of those before it; their product and ``usual`` are
    executed / paper."""
    alternatives: dict[str, tuple[float, ...]]
    """Effect -> its factor on top of any of the others, which a tool may name as well."""
    usual: float
    """Executed / paper without any effect: tiles that nearly fit."""
    paths: frozenset[str]
    """ffma, tf32, fp16, bf16, hfma, moves: what its launches really used."""
    scale: int
    """FLOPs of epilogues inside of its products: the scale of the result, sums of slices."""
    fillings: frozenset[float]
    """What tiles execute / what was to be done: of each launch, of all together, and of all with
    counters."""
    unread: bool
    """Some launch counts tensor instructions whose shape neither a counter nor the name tells."""

    @property
    def ratio(self) -> float | None:
        return None if self.shown is None or not self.estimated else self.shown / self.estimated


@dataclass(frozen=True, slots=True)
class Draw:
    """Records and truth."""

    scene: Scene
    effects: tuple[Effect, ...]
    runs: tuple[Run, ...]
    rows: dict[Place, RowTruth]

    def __str__(self) -> str:
        scene = self.scene
        layers = ", ".join(map(str, scene.network))
        effects = "; ".join(
            f"{effect.name} {sorted(effect.claims)} {effect.settings}" for effect in self.effects
        )
        mode = "train" if scene.train else "infer"
        return (
            f"seed {scene.seed}: sm_{scene.chip} {scene.precision} {mode} {scene.batches} ncu "
            f"{scene.ncu} | {layers} | {effects or 'clean'}"
        )


def draw(seed: int, only: str | None = None, last: bool = False) -> Draw:
    """Return the draw of a seed; ``only``: this effect alone ("clean" for none), ``last``:
    parameters of the last check. "conflict": a scene in which something else has a cause's factor,
    and up to two effects beside it."""
    random = Random(f"{seed}:{only}:{last}")  # noqa: S311 - reproducible draws, no secrets
    number = int(only != "clean") if only else random.choices((0, 1, 2, 3), (15, 40, 30, 15))[0]
    while True:
        if only == "conflict":
            beside = random.sample(sorted(MAKERS.keys() - WHOLE), random.choice((0, 0, 1, 2)))
            names = [random.choice(sorted(CONFLICTS)), *beside]
        else:
            names = ([only] if only else random.sample(sorted(MAKERS), number)) if number else []
        for _ in range(SCENES_MAX):
            scene = draw_scene(random, seed, last)
            effects = draw_effects(scene, random, names)
            if effects is not None:
                runs = tuple(
                    record(scene, effects, batch, index, capture(scene, effects, batch))
                    for index, batch in enumerate(scene.batches)
                )
                return Draw(scene, effects, runs, find_truth(scene, effects))


def draw_effects(scene: Scene, random: Random, names: Sequence[str]) -> tuple[Effect, ...] | None:
    """Return these effects in this scene; None where one cannot occur."""
    effects: list[Effect] = []
    for name in names:
        if any({name, effect.name} <= group for effect in effects for group in GROUPS):
            return None
        taken = frozenset(claim for effect in effects for claim in effect.claims)
        try:
            effect = (MAKERS | CONFLICTS)[name](Choice(name, scene, random, taken))
        except CannotOccurError:
            return None
        effects.append(effect)
        # a fused backward always works out its scores again
        if name == "causal_skip" and scene.train:
            effects.append(Effect("flash_recompute", effect.claims, effect.settings))
    return tuple(sorted(effects, key=lambda effect: EVERY.index(effect.name)))


def draw_scene(random: Random, seed: int, last: bool) -> Scene:
    """Return network, batch sizes, chip and settings."""
    chip = random.choice(sorted(CHIPS))
    more = ["tf32", "tf32", "bf16"] if int(chip) >= 80 else ["fp32"]
    precision = random.choice(["fp32", "fp16", *more])
    train = random.random() < 0.65
    batches = tuple(sorted(random.sample(BATCHES, random.randint(1, 3))))
    version = random.choice(VERSIONS[1:] if chip in ("89", "90") else VERSIONS)
    return Scene(seed, draw_network(random), batches, chip, precision, train, version, last)


def draw_network(random: Random) -> Network:
    """Return one to five layers. They need not fit to each other: each is judged by itself."""
    layers: list[Layer] = []
    for number in range(random.randint(1, 5)):
        kind = random.choices(("conv", "linear", "lstm", "attention"), (50, 30, 8, 12))[0]
        first, bias, pick = number == 0, random.random() < 0.6, random.choice
        if kind == "conv":
            layers.append(draw_conv(random, f"conv{number + 1}", first, bias))
        elif kind == "linear":
            rows = pick((1, 1, 1, 4, 49, 128))
            name = f"fc{number + 1}" if random.random() < 0.7 else f"block.{number}.proj"
            layers.append(Linear(name, first, bias, pick(WIDTHS[1:]), pick(WIDTHS), rows))
        elif kind == "lstm":
            sizes, name = (32, 64, 100, 128, 256), f"lstm{number + 1}"
            layers.append(Lstm(name, first, True, pick(sizes), pick(sizes), pick((3, 5, 8))))
        else:
            length = pick((50, 64, 128, 197, 256, 512, 1024))
            depth, heads = pick((32, 64, 128)), pick((4, 8, 12))
            causal, name = random.random() < 0.5, f"attn{number + 1}"
            layers.append(Attention(name, first, False, heads, length, depth, causal))
    return tuple(layers)


def draw_conv(random: Random, name: str, first: bool, bias: bool) -> Conv:
    side, kernel = random.choice(SIDES), random.choice((1, 3, 3, 3, 5, 7))
    kernel = min(kernel, side)
    padding = random.choice((kernel // 2, kernel // 2, 0))
    stride = random.choice((1, 1, 1, 2)) if side >= 8 else 1
    cin = random.choice((1, 3)) if first and random.random() < 0.5 else random.choice(CHANNELS)
    cout, groups = random.choice(CHANNELS), 1
    if cin >= 8 and random.random() < 0.3:
        groups = random.choice((2, 4, 8, cin, cin))
        cout = cin if groups == cin else cout
    return Conv(name, first, bias, cin, cout, kernel, side, stride, padding, groups)


# The truth


def find_truth(scene: Scene, effects: Sequence[Effect]) -> dict[Place, RowTruth]:
    """Return what was executed in every row that the formulas have, and each effect's factor."""
    numbers = range(len(effects))
    subsets = [
        subset for size in (*numbers, len(effects)) for subset in combinations(numbers, size)
    ]
    directions = (FORWARD, BACKWARD) if scene.train else (FORWARD,)
    rows: dict[Place, RowTruth] = {}
    for batch in scene.batches:
        by_subset = {
            subset: group_rows(capture(scene, [effects[number] for number in subset], batch))
            for subset in subsets
        }
        mains = {
            number: find_products(effect, by_subset[(number,)])
            for number, effect in enumerate(effects)
            if effect.name in IN_PARTS
        }
        for layer in scene.network:
            for direction in directions:
                key = (layer.name, direction)
                launches = {subset: by_subset[subset].get(key, []) for subset in subsets}
                steps = {
                    subset: len(run_sizes([effects[number] for number in subset])) or 1
                    for subset in subsets
                }
                kept = {number: main.get(key, 0) for number, main in mains.items()}
                rows[batch, layer.name, direction] = find_row_truth(
                    scene, effects, layer.estimate(batch, direction), launches, kept, steps
                )
    return rows


def find_row_truth(
    scene: Scene,
    effects: Sequence[Effect],
    estimated: int,
    by_subset: dict[tuple[int, ...], list[Launch]],
    mains: dict[int, int],
    steps: dict[tuple[int, ...], int],
) -> RowTruth:
    """Return the truth of one row from its launches under every subset of the effects."""
    work = {
        subset: sum(launch.flops for launch in launches if launch.counted) // steps[subset]
        for subset, launches in by_subset.items()
    }
    factors, alternatives = {}, {}
    for number, effect in enumerate(effects):
        before = tuple(range(number))
        factors[effect.name] = divide(work[*before, number], work[before])
        others = [subset for subset in work if number not in subset]
        on_top = [divide(work[tuple(sorted((*subset, number)))], work[subset]) for subset in others]
        if number in mains:
            main = mains[number]
            on_top += [divide(main, work[()]), divide(work[(number,)], main)]
        alternatives[effect.name] = tuple(on_top)
    every = tuple(range(len(effects)))
    launches = by_subset[every]
    executed = sum(launch.flops for launch in launches) // steps[every]
    fillings = {launch.filling for launch in launches}
    for group in (launches, [launch for launch in launches if launch.counted]):
        needed = sum(round(launch.flops / launch.filling) for launch in group)
        fillings.add(divide(sum(launch.flops for launch in group), needed))
    return RowTruth(
        estimated,
        executed,
        work[every] if any(launch.counted for launch in launches) else None,
        factors,
        alternatives,
        divide(work[()], estimated),
        frozenset(path for launch in launches for path in find_paths(launch)),
        sum(launch.scale for launch in launches) // steps[every],
        frozenset(fillings),
        any(is_unread(scene, launch) for launch in launches),
    )


def group_rows(launches: Sequence[Launch]) -> Rows:
    rows: Rows = defaultdict(list)
    for launch in launches:
        if launch.layer and launch.direction:
            rows[launch.layer, launch.direction].append(launch)
    return rows


def find_products(effect: Effect, rows: Rows) -> dict[Key, int]:
    """Return the FLOPs of every row with this effect alone, without the kernels around its
    product."""
    ((name, part),) = effect.claims
    sums: dict[Key, int] = {}
    for key, launches in rows.items():
        own = [launch.flops for launch in launches if (launch.layer, launch.part) == (name, part)]
        lost = sum(flops for flops in own if flops != max(own))
        sums[key] = sum(launch.flops for launch in launches) - lost
    return sums


def divide(a: int, b: int) -> float:
    return a / b if b else 1.0 if not a else float("inf")


def find_paths(launch: Launch) -> set[str]:
    paths = {name for name in ("ffma", "hfma", "moves") if launch.counts.get(name)}
    return paths | ({launch.kind} if launch.counts.get("tensor") else set())


def is_unread(scene: Scene, launch: Launch) -> bool:
    is_told = scene.chip == "70" or (scene.ncu >= "2023" and scene.is_ampere)
    has_shape = re.search("884|1688|16816|(?<!sp)tensor16x8x", launch.name)
    return bool(launch.counts.get("tensor")) and not is_told and not has_shape
