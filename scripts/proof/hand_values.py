"""Measure how often ``perfctl estimate --check`` names the mistake behind a hand value.

Layers and mistakes are drawn at random and worked out here from the dimensions alone: a mistake
changes a dimension (groups forgotten: 1 group), the arithmetic (bias counted) or the digits. Prints
how often the mistake that was made is named first, for one and for two mistakes, and how often a
wrong value is called right, which must never happen. Several mistakes may make the same value, and
no ranking can tell them apart: "at most" is what naming the most frequent one would reach.

    python scripts/proof/hand_values.py [--draws 10000] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from perfctl.orchestrator.estimate.sheets.sheet import Sheet, build_layer_sheet
from perfctl.orchestrator.estimate.sheets.slips import diagnose_stated_value
from perfctl.records.paper import OpShape

LAYERS = 30
BATCHES = (16, 32, 64, 128, 256)


Dimension = Callable[["Layer", random.Random], "Layer"]
DIMENSIONS: dict[str, Dimension] = {
    "batch of {batch} left out": lambda layer, _: replace(layer, batch=1),
    "batch of ": lambda layer, random: replace(
        layer, batch=random.choice([size for size in BATCHES if size != layer.batch])
    ),
    "groups left out": lambda layer, _: replace(layer, groups=1),
    "stride left out": lambda layer, _: replace(layer, stride=1),
    "padding left out": lambda layer, _: replace(layer, padding=0),
    "output {size[0]}x{size[1]} instead|({size[0]}x{size[1]} positions": lambda layer, _: replace(
        layer, positions=layer.size
    ),
    "input {half[0]}x{half[1]} instead": lambda layer, _: replace(
        layer, size=(layer.size[0] // 2, layer.size[1] // 2)
    ),
    "one side of the {kernel[0]}x{kernel[1]} kernel": lambda layer, _: replace(
        layer, kernel=(1, layer.kernel[1]), positions=layer.output_size()
    ),
    " kernel left out": lambda layer, _: replace(
        layer, kernel=(1, 1), positions=layer.output_size()
    ),
    "put channels left out|puts left out": lambda layer, random: random.choice(
        (replace(layer, inputs=layer.groups), replace(layer, outputs=1))
    ),
}
"""What the named mistake must contain -> what it does to the dimensions."""
SUBJECTS = ("batch", "kernel", "channels", "groups", "stride", "padding", "output", "input")
ARITHMETIC = (
    "bias addition",
    "doubled again",
    "2K - 1",
    "factor of 10 too much",
    "factor of 10 too little",
    "3 x forward",
)
PEN = ("two digits swapped", "a digit left out")


@dataclass(frozen=True)
class Layer:
    """The dimensions of a convolution; a linear layer has a kernel and an input of 1 x 1."""

    batch: int
    inputs: int
    outputs: int
    kernel: tuple[int, int] = (1, 1)
    size: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: int = 0
    groups: int = 1
    bias: bool = True
    is_linear: bool = False
    positions: tuple[int, int] | None = None
    """Instead of those that follow from the sizes."""

    def output_size(self) -> tuple[int, int]:
        """Return height and width of the output."""
        if self.positions is not None:
            return self.positions
        height, width = (
            (size - kernel + 2 * self.padding) // self.stride + 1
            for size, kernel in zip(self.size, self.kernel, strict=True)
        )
        return height, width

    def output_values(self) -> int:
        """Return the values of the output map."""
        return self.batch * self.outputs * prod(self.output_size())

    def macs(self) -> int:
        """Return the multiply-adds of the forward pass."""
        return self.output_values() * (self.inputs // self.groups) * prod(self.kernel)


def draw_layer(random: random.Random) -> Layer:
    """Return a layer as networks have them."""
    batch, bias = random.choice(BATCHES), random.random() < 0.7
    if random.random() < 0.3:
        sizes = (10, 128, 256, 400, 512, 768, 1000, 1024, 2048, 3072, 4096)
        inputs, outputs = random.sample(sizes, 2)
        return Layer(batch, inputs, outputs, bias=bias, is_linear=True)
    inputs, outputs = random.choice((3, 16, 24, 32, 64, 96)), random.choice((32, 48, 64, 128, 192))
    kernel = random.choice((1, 3, 3, 3, 5, 7))
    groups = (
        random.choice((1, 1, 1, 2, 4, inputs)) if inputs % 4 == 0 and outputs % inputs == 0 else 1
    )
    return Layer(
        batch,
        inputs,
        outputs,
        (kernel, kernel),
        random.choice(((28, 28), (32, 32), (56, 56), (24, 20), (224, 224))),
        random.choice((1, 1, 2)),
        random.choice((0, kernel // 2)),
        groups,
        bias,
    )


def sheet_of(layer: Layer) -> Sheet:
    """Return perfctl's sheet of the layer."""
    if layer.is_linear:
        shapes = ((layer.batch, layer.inputs), (layer.outputs, layer.inputs), (layer.outputs,))
        given, result, name, attributes = shapes, (layer.batch, layer.outputs), "aten.linear", {}
    else:
        weight = (layer.outputs, layer.inputs // layer.groups, *layer.kernel)
        given = ((layer.batch, layer.inputs, *layer.size), weight, (layer.outputs,))
        result, name = (layer.batch, layer.outputs, *layer.output_size()), "aten.convolution"
        attributes = {
            "stride": [layer.stride] * 2,
            "padding": [layer.padding] * 2,
            "dilation": [1, 1],
            "groups": layer.groups,
            "bias": layer.bias,
        }
    given = given if layer.bias else given[:2]
    types = ("float32",) * (len(given) + 1)
    op = OpShape("layer", "", name, "forward", given, (result,), types, attributes)
    sheet = build_layer_sheet((op,), "layer")
    assert sheet is not None
    return sheet


def worked(layer: Layer, flops: bool, arithmetic: str) -> int | None:
    """Return the value that somebody writes down; None if the arithmetic does not apply."""
    value, outputs = layer.macs() * (1 + flops), layer.output_values()
    if arithmetic == "bias addition":
        return value + outputs
    if arithmetic == "doubled again":
        return 2 * value if flops else None
    if arithmetic == "2K - 1":
        return value - outputs if flops else None
    if arithmetic == "factor of 10 too much":
        return 10 * value
    if arithmetic == "factor of 10 too little":
        return value // 10 if value % 10 == 0 else None
    if arithmetic == "3 x forward":
        return 3 * value
    return value


def slip_of_the_pen(value: int, kind: str, random: random.Random) -> int:
    """Return the value with two neighbouring digits swapped, or one left out."""
    digits = str(value)
    at = random.randrange(len(digits) - 1)
    if kind == "a digit left out":
        return int(digits[:at] + digits[at + 1 :])
    return int(digits[:at] + digits[at + 1] + digits[at] + digits[at + 2 :])


def draw_value(layer: Layer, count: int, random: random.Random) -> tuple[int, list[str]] | None:
    """Return a value with ``count`` mistakes and what must be named; None if they do not apply."""
    kinds = random.sample((*DIMENSIONS, *DIMENSIONS, *ARITHMETIC, *PEN), count)
    # two mistakes in the same thing are one
    about = [next((word for word in SUBJECTS if word in kind), "arithmetic") for kind in kinds]
    if len(set(about)) < count:
        return None
    made, flops, names, arithmetic = layer, random.random() < 0.5, [], ""
    for kind in kinds:
        if kind in DIMENSIONS:
            before = made.macs()
            made = DIMENSIONS[kind](made, random)
            half = (layer.size[0] // 2, layer.size[1] // 2)
            names.append(
                kind.format(batch=layer.batch, size=layer.size, half=half, kernel=layer.kernel)
            )
            if (
                min(made.output_size()) < 1
                or made.macs() == before
                or (layer.is_linear and "x" in kind)
            ):
                return None
        elif kind in ARITHMETIC:
            arithmetic = kind
            names.append(kind)
    value = worked(made, flops, arithmetic)
    right_values = (layer.macs(), 2 * layer.macs())
    if value is None or (value in right_values and not set(kinds).issubset(PEN)):
        return None  # the mistakes do not apply, or cancel each other
    for kind in kinds:
        if kind in PEN:
            value = slip_of_the_pen(value, kind, random)
            names.append(kind)
    return (value, names) if value not in right_values else None


def is_named(names: list[str], slips: tuple[str, ...]) -> bool:
    """Return whether each mistake is named, and nothing else."""
    alternatives = [name.split("|") for name in names]
    return len(slips) == len(names) and all(
        any(word in slip for word in words for slip in slips) for words in alternatives
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--draws", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--show", type=int, default=0, help="Misses to print.")
    asked = arguments.parse_args()
    source = random.Random(asked.seed)  # noqa: S311
    layers = [draw_layer(source) for _ in range(LAYERS)]
    sheets = [sheet_of(layer) for layer in layers]
    for layer, sheet in zip(layers, sheets, strict=True):
        assert sheet.facts is not None and sheet.facts.forward_macs_of_batch == layer.macs()
    drawn, first, among, called_right = Counter(), Counter(), Counter(), 0
    misses: Counter[tuple[str, str]] = Counter()
    made: dict[tuple[int, int], Counter[tuple[str, ...]]] = defaultdict(Counter)
    while sum(drawn.values()) < asked.draws:
        at, count = source.randrange(LAYERS), source.choice((1, 2))
        if (value := draw_value(layers[at], count, source)) is None:
            continue
        finding = diagnose_stated_value(
            value[0], sheets[at].facts, sheets[at].quantities, sweep_batches=BATCHES
        )
        drawn[count] += 1
        called_right += finding.is_correct
        made[at, value[0]][tuple(sorted(value[1]))] += 1
        ways = (finding.mistakes, *finding.other_mistakes)
        first[count] += is_named(value[1], ways[0])
        among[count] += any(is_named(value[1], slips) for slips in ways)
        if not is_named(value[1], ways[0]):
            misses[" and ".join(value[1]), " and ".join(ways[0])] += 1
    most: Counter[int] = Counter()
    for names in made.values():
        ((named, number),) = names.most_common(1)
        most[len(named)] += number
    for count in sorted(drawn):
        share, any_share = first[count] / drawn[count], among[count] / drawn[count]
        print(
            f"{count} mistake{'s' * (count > 1)}: {drawn[count]:,} draws, named first {share:.1%} "
            f"(at most {most[count] / drawn[count]:.1%}), "
            f"among the {'three' if count else ''} named {any_share:.1%}"
        )
    print(f"called right: {called_right}")
    for (mistakes, answer), number in misses.most_common(asked.show):
        print(f"{number:5}  {mistakes}  ->  {answer or 'nothing'}")


if __name__ == "__main__":
    main()
