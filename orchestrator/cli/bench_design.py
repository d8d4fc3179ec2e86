"""From a bench file to the points that are measured: a full grid, or a Latin hypercube of each family."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product, zip_longest
from math import prod

from perfctl.orchestrator.cli.bench_file import Bench, Values
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.bench import Point
from perfctl.workloads.plan import plan
from perfctl.workloads.spec import SpecError

MOST = 100_000
"""Networks of one file; a grid of a dozen parameters is soon larger than anybody's patience."""
_TRAINING = 3
"""Multiply-adds of a training step, in those of its forward pass: one for each gradient beside it."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """What the file asks for and cannot or shall not be."""

    model: str
    reason: str
    """With the network's name."""


@dataclass(frozen=True, slots=True)
class Design:
    """All of a file. Points stand in the order they are measured: a network of each family in turn, smallest batch first."""

    points: tuple[Point, ...]
    skipped: tuple[Skipped, ...]

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point.model for point in self.points))


def design(bench: Bench) -> Design:
    """The same file gives the same design. Raises UsageError when nothing is left, or when it is too large."""
    points: list[Point] = []
    skipped: dict[str, Skipped] = {}
    done: set[str] = set()
    for spec in _specs(bench):
        try:
            planned = plan(spec)
        except SpecError as error:
            skipped.setdefault(spec, Skipped(spec, str(error)))
            continue
        if planned.spec in done:
            continue
        done.add(planned.spec)
        for batch in bench.own_batches.get(planned.family, bench.batches):
            flops = 2.0 * planned.macs * batch * (_TRAINING if bench.mode == "train" else 1)
            point = Point(planned.spec, planned.family, batch, flops)
            if why := _unwanted(point, bench):
                name = f"{point.model}, batch {batch}"
                skipped[name] = Skipped(name, f"{name}: {why}")
            else:
                points.append(point)
    if not points:
        first = next(iter(skipped.values())).reason
        raise UsageError(f"no network of the file can be measured: {first}", "Change the file")
    return Design(tuple(points), tuple(skipped.values()))


def share(points: tuple[Point, ...], number: int, of: int) -> tuple[Point, ...]:
    """Part ``number`` (from 1) of ``of``: whole networks, in turn, so that each part has some of each family."""
    models = list(dict.fromkeys(point.model for point in points))
    mine = set(models[number - 1 :: of])
    return tuple(point for point in points if point.model in mine)


def _unwanted(point: Point, bench: Bench) -> str | None:
    if bench.gflops is None:
        return None
    size, (least, most) = point.flops / 1e9, bench.gflops
    if least <= size <= most:
        return None
    return f"a step is {size:.3g} GFLOP, and gflops asks for {least:g} to {most:g}"


def _specs(bench: Bench) -> Iterator[str]:
    """One network of each family in turn, so that a bench that ends early has some of each."""
    each = [_of_family(family, values, bench) for family, values in bench.families.items()]
    for together in zip_longest(*each):
        yield from (spec for spec in together if spec is not None)


def _of_family(family: str, values: Mapping[str, Values], bench: Bench) -> Iterator[str]:
    if bench.design == "grid":
        size = prod(len(each) for each in values.values())
        if size > MOST:
            raise UsageError(
                f"the grid of {family} has {size:,} networks", 'Name fewer values, or say design = "latin"'
            )
        chosen: Iterator[tuple[int | str, ...]] = product(*values.values())
    else:
        chosen = zip(*_latin(family, values, bench), strict=True) if values else iter([()])
    for row in chosen:
        words = ",".join(f"{name}={value}" for name, value in zip(values, row, strict=True))
        yield f"{family}:{words}"


def _latin(family: str, values: Mapping[str, Values], bench: Bench) -> list[list[int | str]]:
    """A column a parameter: ``samples`` values, one from each of as many equal parts of its range, in random order."""
    if bench.samples > MOST:
        raise UsageError(f"samples = {bench.samples:,} networks of {family} are too many", f"{MOST:,} at most")
    chance = random.Random(f"{bench.seed} {family}")  # noqa: S311  # a design, no secret  # nosec B311
    columns = []
    for each in values.values():
        parts = list(range(bench.samples))
        chance.shuffle(parts)
        columns.append([each[int((part + chance.random()) / bench.samples * len(each))] for part in parts])
    return columns
