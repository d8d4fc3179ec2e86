"""The file that describes a bench (TOML): which networks, at which batch sizes, and how they
are measured; and the design, which is every point of it.

::

    design = "latin"                # or "grid": every combination
    samples = 12                    # networks of each family, for "latin"
    seed = 1
    batches = [1, 4, 16]
    gflops = [0.05, 40]             # leave out steps with fewer or more FLOPs (in units of 1e9)

    [families.resnet]
    depth = [10, 14, 18, 26]
    width = { from = 8, to = 64, step = 8 }
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product, zip_longest
from math import inf, prod
from pathlib import Path
from typing import Any, TypeGuard

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.sweep.bench import Point
from perfctl.workloads.models.plan import PARAMETERS, plan
from perfctl.workloads.spec import MODES, PRECISIONS, SpecError

MOST_VALUES = 10_000
MOST = 100_000
"""Networks of one file at most; a grid over a dozen parameters soon has more than can
be measured."""
_TRAINING = 3
"""Multiply-adds of a training step over those of its forward pass: backward has two products for
each of forward's."""
_EXAMPLE = "docs/commands/bench.md shows a whole file"

Values = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Bench:
    """The contents of a file, checked."""

    families: Mapping[str, Mapping[str, Values]]
    """Family -> parameter -> its values."""
    own_batches: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Family -> batch sizes, for families that do not use ``batches``."""
    batches: tuple[int, ...] = (1, 4, 16)
    design: str = "latin"
    samples: int = 12
    seed: int = 0
    device: str = "auto"
    mode: str = "train"
    precision: str = "fp32"
    threads: int | None = None
    steps: int = 30
    warmup: int = 3
    within: float = 3.0
    """Seconds for the measured steps of one point."""
    layer_steps: int = 5
    """Steps after the measured ones in which each layer is timed; 0 for none."""
    gflops: tuple[float, float] | None = None
    """Least and most FLOPs of a step in units of 1e9; None: any."""


def read_bench(path: Path) -> Bench:
    """Raises UsageError naming the key, its value and what it may be."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        remedy = "Name a file in TOML: perfctl bench grid.toml"
        raise UsageError(f"{path}: {error.strerror or error}", remedy) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", _EXAMPLE) from error
    try:
        return _bench(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.remedy) from None


def _bench(content: dict[str, Any]) -> Bench:
    tables = content.pop("families", None)
    if not isinstance(tables, dict) or not tables:
        raise UsageError(
            "no family is named", "Write for instance [families.resnet] and depth = [10, 18]"
        )
    checked: dict[str, Any] = {}
    for name, value in content.items():
        if name not in _KEYS:
            raise UsageError(f"there is no key '{name}'", f"There are families, {', '.join(_KEYS)}")
        checked[name] = _KEYS[name](name, value)
    for family, table in tables.items():
        if family not in PARAMETERS:
            raise UsageError(
                f"'{family}' is not a family of networks", f"There are {', '.join(PARAMETERS)}"
            )
        if not isinstance(table, dict):
            raise UsageError(
                f"families.{family} is not a table",
                f"Write [families.{family}] and its parameters below",
            )
    batches = {
        one: _batches("batches", table.pop("batches"))
        for one, table in tables.items()
        if "batches" in table
    }
    families = {
        family: {name: _values(family, name, value) for name, value in table.items()}
        for family, table in tables.items()
    }
    return Bench(families=families, own_batches=batches, **checked)


def _is_whole(value: object, least: float = -inf) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _values(family: str, name: str, value: object) -> Values:
    """A list (a value that is in it twice is drawn twice as often), one value, or a range of
    whole numbers.

    Whether a network can have these values is checked later, by its plan.
    """
    where = f"families.{family}.{name}"
    if name not in PARAMETERS[family]:
        raise UsageError(
            f"{where}: there is no such parameter",
            f"It has {', '.join(PARAMETERS[family])}, batches",
        )
    if isinstance(value, dict):
        return _range(where, value)
    found = value if isinstance(value, list) else [value]
    if not found or any(isinstance(one, bool) or not isinstance(one, int | str) for one in found):
        remedy = (
            f"Write for instance {name} = [1, 2, 3] or {name} = {{ from = 8, to = 64, step = 8 }}"
        )
        raise UsageError(f"{where} = {value!r} is not a list of whole numbers or words", remedy)
    return tuple(found)


def _range(where: str, value: dict[str, Any]) -> Values:
    given = [value.get("from"), value.get("to"), value.get("step", 1)]
    first, last, step = given if all(map(_is_whole, given)) else (1, 0, 1)
    if (
        set(value) - {"from", "to", "step"}
        or step < 1
        or not 0 <= last - first < MOST_VALUES * step
    ):
        problem = f"{where} = {value} is not a range of at most {MOST_VALUES:,} whole numbers"
        raise UsageError(problem, "Write for instance { from = 8, to = 64, step = 8 }")
    return tuple(range(first, last + 1, step))


def _batches(name: str, value: object) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or not value
        or not all(_is_whole(one, least=1) for one in value)
    ):
        raise UsageError(
            f"{name} = {value!r} is not a list of batch sizes",
            "Write for instance batches = [1, 4, 16]",
        )
    return tuple(sorted(set(value)))


def _whole(least: int) -> Any:
    def check(name: str, value: object) -> int:
        if not _is_whole(value, least):
            raise UsageError(
                f"{name} = {value!r} must be a whole number of at least {least}", _EXAMPLE
            )
        return value

    return check


def _word(*words: str) -> Any:
    def check(name: str, value: object) -> str:
        if value not in words:
            raise UsageError(f"{name} = {value!r} is not known", f"Use {', '.join(words)}")
        return str(value)

    return check


def _seconds(name: str, value: object) -> float:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 < value < float("inf")
    ):
        raise UsageError(f"{name} = {value!r} must be a number of seconds above 0", _EXAMPLE)
    return float(value)


def _limits(name: str, value: object) -> tuple[float, float]:
    numbers = value if isinstance(value, list) else []
    known = len(numbers) == 2 and all(isinstance(one, int | float) for one in numbers)
    if not known or not 0 <= numbers[0] < numbers[1]:
        problem = f"{name} = {value!r} must be the least and the most of a step"
        raise UsageError(problem, "Write for instance [0.05, 40]")
    return float(numbers[0]), float(numbers[1])


_KEYS: Mapping[str, Any] = {
    "design": _word("latin", "grid"),
    "samples": _whole(1),
    "seed": _whole(0),
    "batches": _batches,
    "device": _word("auto", "cpu", "cuda"),
    "mode": _word(*MODES),
    "precision": _word(*PRECISIONS),
    "threads": _whole(1),
    "steps": _whole(1),
    "warmup": _whole(1),
    "within": _seconds,
    "layer_steps": _whole(0),
    "gflops": _limits,
}


@dataclass(frozen=True, slots=True)
class Skipped:
    """A network, or one batch size of it, that the file asks for and that is not measured."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class Design:
    """All points of a file, in the order they are measured: a network of each family in turn,
    smallest batch first."""

    points: tuple[Point, ...]
    skipped: tuple[Skipped, ...]

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point.model for point in self.points))


def design(bench: Bench) -> Design:
    """The points of a file; the same file gives the same. Raises UsageError when there is none, or
    when there are too many."""
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
            size, (least, most) = flops / 1e9, bench.gflops or (0.0, inf)
            if least <= size <= most:
                points.append(Point(planned.spec, planned.family, batch, flops))
            else:
                name = f"{planned.spec}, batch {batch}"
                why = (
                    f"{name}: a step is {size:.3g} GFLOP, and gflops asks for {least:g} to {most:g}"
                )
                skipped[name] = Skipped(name, why)
    if not points:
        first = next(iter(skipped.values())).reason
        raise UsageError(f"no network of the file can be measured: {first}", "Change the file")
    return Design(tuple(points), tuple(skipped.values()))


def share(points: tuple[Point, ...], number: int, of: int) -> tuple[Point, ...]:
    """Part ``number`` (from 1) of ``of``. Networks stay whole and are dealt in turn, so each part
    has some of each family."""
    models = list(dict.fromkeys(point.model for point in points))
    mine = set(models[number - 1 :: of])
    return tuple(point for point in points if point.model in mine)


def _specs(bench: Bench) -> Iterator[str]:
    """One network of each family in turn, so that a bench that stops early has some of each."""
    each = (_of_family(family, values, bench) for family, values in bench.families.items())
    yield from (spec for together in zip_longest(*each) for spec in together if spec is not None)


def _of_family(family: str, values: Mapping[str, Values], bench: Bench) -> Iterator[str]:
    if bench.design == "grid":
        size = prod(len(each) for each in values.values())
        if size > MOST:
            remedy = 'Name fewer values, or say design = "latin"'
            raise UsageError(f"the grid of {family} has {size:,} networks", remedy)
        chosen: Iterator[tuple[int | str, ...]] = product(*values.values())
    else:
        chosen = zip(*_latin(family, values, bench), strict=True) if values else iter([()])
    for row in chosen:
        words = ",".join(f"{name}={value}" for name, value in zip(values, row, strict=True))
        yield f"{family}:{words}"


def _latin(family: str, values: Mapping[str, Values], bench: Bench) -> list[list[int | str]]:
    """A column for each parameter: ``samples`` values, one from each of as many equal parts of its
    range, shuffled."""
    if bench.samples > MOST:
        raise UsageError(
            f"samples = {bench.samples:,} networks of {family} are too many", f"{MOST:,} at most"
        )
    # a design, no secret
    chance = random.Random(f"{bench.seed} {family}")  # noqa: S311  # nosec B311
    columns = []
    for each in values.values():
        parts = list(range(bench.samples))
        chance.shuffle(parts)
        columns.append(
            [each[int((part + chance.random()) / bench.samples * len(each))] for part in parts]
        )
    return columns
