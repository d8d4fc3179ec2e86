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
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.sweep.bench import PointToMeasure
from perfctl.workloads.models.plan import PARAMETERS, plan_model
from perfctl.workloads.spec import PRECISIONS, SpecError

MAX_VALUES = 10_000
MAX_NETWORKS = 100_000
"""Networks of one file; a grid over a dozen parameters soon has more than can be measured."""
BACKWARD = 3
"""Multiply-adds of a training step over those of its forward pass: backward has two products for
each of forward's."""
REMEDY = 'For example batches = [1, 4, 16] and mode = "infer"'

Positive = Annotated[int, Meta(ge=1)]
Values = tuple[int | str, ...]


class ValueRange(msgspec.Struct, forbid_unknown_fields=True):
    """Whole numbers: { from = 8, to = 64, step = 8 }."""

    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")
    step: Positive = 1


@dataclass(frozen=True, slots=True)
class BenchSpec:
    """The contents of a file, checked."""

    families: Mapping[str, Mapping[str, Values]]
    """Family -> parameter -> its values."""
    own_batches: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Family -> batch sizes, for families that do not use ``batches``."""
    batches: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (1, 4, 16)
    design: Literal["latin", "grid"] = "latin"
    samples: Positive = 12
    seed: Annotated[int, Meta(ge=0)] = 0
    device: Annotated[str, Meta(pattern="^(auto|cpu|cuda)$")] = "auto"
    mode: Literal["train", "infer"] = "train"
    precision: str = "fp32"
    threads: Positive | None = None
    steps: Positive = 30
    warmup: Positive = 3
    within: Annotated[float, Meta(gt=0, le=1e9)] = 3.0
    """Seconds for the measured steps of one point."""
    layer_steps: Annotated[int, Meta(ge=0)] = 5
    """Steps after the measured ones in which each layer is timed; 0 for none."""
    gflops: tuple[float, float] | None = None
    """Least and most FLOPs of a step in units of 1e9; None: any."""


def read_bench_file(path: Path) -> BenchSpec:
    """Raises UsageError naming the key, its value and what it may be."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        remedy = "Use a TOML file: perfctl bench grid.toml"
        raise UsageError(f"{path}: {error.strerror or error}", remedy) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", REMEDY) from error
    try:
        return _parse_bench(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.remedy) from None


def _parse_bench(content: dict[str, Any]) -> BenchSpec:
    tables = content.pop("families", None)
    if not isinstance(tables, dict) or not tables:
        raise UsageError(
            "no family was named", "For example [families.resnet] and depth = [10, 18]"
        )
    hints = get_type_hints(BenchSpec, include_extras=True)
    keys = [name for name in hints if name not in ("families", "own_batches")]
    checked: dict[str, Any] = {}
    for name, value in content.items():
        if name not in keys:
            raise UsageError(f"unknown key '{name}'", f"Keys: families, {', '.join(keys)}")
        checked[name] = _convert_value(name, value, hints[name])
    if "batches" in checked:
        checked["batches"] = tuple(sorted(set(checked["batches"])))
    if (precision := checked.get("precision", "fp32")) not in PRECISIONS:
        raise UsageError(f"invalid precision = '{precision}'", f"Choose {', '.join(PRECISIONS)}")
    low, high = checked.get("gflops") or (0, inf)
    if not 0 <= low < high:
        raise UsageError(
            f"gflops = {content['gflops']!r} must be the minimum and maximum of a step",
            "For example [0.05, 40]",
        )
    families: dict[str, dict[str, Values]] = {}
    own_batches: dict[str, tuple[int, ...]] = {}
    for family, table in tables.items():
        if family not in PARAMETERS:
            raise UsageError(
                f"unknown family of networks '{family}'", f"Choose {', '.join(PARAMETERS)}"
            )
        table = _convert_value(f"families.{family}", table, dict[str, Any])
        if "batches" in table:
            name, batches = f"families.{family}.batches", table.pop("batches")
            own_batches[family] = tuple(
                sorted(set(_convert_value(name, batches, hints["batches"])))
            )
        families[family] = {
            name: _parse_parameter_values(family, name, value) for name, value in table.items()
        }
    return BenchSpec(families=families, own_batches=own_batches, **checked)


def _convert_value(name: str, value: Any, hint: Any) -> Any:
    """Return a value of the file as its type has it. Raises UsageError with the key and value."""
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name} = {value!r}: {str(error).lower()}", REMEDY) from None


def _parse_parameter_values(family: str, name: str, value: object) -> Values:
    """Return the values of a parameter: a list (a value that is in it twice is drawn twice as
    often), one value, or a range.

    Whether a network can have these values is checked later, by its plan.
    """
    key = f"families.{family}.{name}"
    if name not in PARAMETERS[family]:
        raise UsageError(
            f"{key}: unknown parameter",
            f"Parameters: {', '.join(PARAMETERS[family])}, batches",
        )
    several = Annotated[tuple[int | str, ...], Meta(min_length=1)]
    values = _convert_value(key, value, several | int | str | ValueRange)
    if not isinstance(values, ValueRange):
        return values if isinstance(values, tuple) else (values,)
    if not 0 <= values.last - values.first < MAX_VALUES * values.step:
        problem = f"{key} = {value} is not a range of at most {MAX_VALUES:,} whole numbers"
        raise UsageError(problem, "For example { from = 8, to = 64, step = 8 }")
    return tuple(range(values.first, values.last + 1, values.step))


@dataclass(frozen=True, slots=True)
class SkippedPoint:
    """A network, or one batch size of it, that the file asks for and that is not measured."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class BenchDesign:
    """All points of a file, in the order they are measured: a network of each family in turn,
    smallest batch first."""

    points: tuple[PointToMeasure, ...]
    skipped: tuple[SkippedPoint, ...]

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point.model for point in self.points))


def expand_bench_into_points(bench: BenchSpec) -> BenchDesign:
    """Return the points of a file; the same file gives the same. Raises UsageError when there is
    none, or when there are too many."""
    points: list[PointToMeasure] = []
    skipped: dict[str, SkippedPoint] = {}
    done: set[str] = set()
    # one network of each family in turn, so that a bench that stops early has some of each
    columns = (
        _generate_network_specs(family, values, bench) for family, values in bench.families.items()
    )
    specs = (spec for row in zip_longest(*columns) for spec in row if spec is not None)
    for spec in specs:
        try:
            planned = plan_model(spec)
        except SpecError as error:
            skipped.setdefault(spec, SkippedPoint(spec, str(error)))
            continue
        if planned.spec in done:
            continue
        done.add(planned.spec)
        for batch in bench.own_batches.get(planned.family, bench.batches):
            flops = (
                2.0
                * planned.forward_macs_per_sample
                * batch
                * (BACKWARD if bench.mode == "train" else 1)
            )
            size, (least, most) = flops / 1e9, bench.gflops or (0.0, inf)
            if least <= size <= most:
                points.append(PointToMeasure(planned.spec, planned.family, batch, flops))
            else:
                name = f"{planned.spec}, batch {batch}"
                reason = (
                    f"{name}: a step is {size:.3g} GFLOP, but gflops allows {least:g} to {most:g}"
                )
                skipped[name] = SkippedPoint(name, reason)
    if not points:
        first = next(iter(skipped.values())).reason
        raise UsageError(
            f"the file has no network that perfctl can measure: {first}", "Change the file"
        )
    return BenchDesign(tuple(points), tuple(skipped.values()))


def select_points_of_part(
    points: tuple[PointToMeasure, ...], part_number: int, part_count: int
) -> tuple[PointToMeasure, ...]:
    """Return part ``part_number`` (from 1) of ``part_count``. Networks stay whole and are dealt in
    turn, so each part has some of each family."""
    models = list(dict.fromkeys(point.model for point in points))
    chosen = set(models[part_number - 1 :: part_count])
    return tuple(point for point in points if point.model in chosen)


def _generate_network_specs(
    family: str, values: Mapping[str, Values], bench: BenchSpec
) -> Iterator[str]:
    if bench.design == "grid":
        size = prod(len(each) for each in values.values())
        if size > MAX_NETWORKS:
            remedy = 'Use fewer values, or set design = "latin"'
            raise UsageError(f"the grid of {family} has {size:,} networks", remedy)
        chosen: Iterator[tuple[int | str, ...]] = product(*values.values())
    else:
        chosen = (
            zip(*_draw_latin_hypercube_columns(family, values, bench), strict=True)
            if values
            else iter([()])
        )
    for row in chosen:
        settings = ",".join(f"{name}={value}" for name, value in zip(values, row, strict=True))
        yield f"{family}:{settings}"


def _draw_latin_hypercube_columns(
    family: str, values: Mapping[str, Values], bench: BenchSpec
) -> list[list[int | str]]:
    """Return a column for each parameter: ``samples`` values, one from each of as many equal parts
    of its range, shuffled."""
    if bench.samples > MAX_NETWORKS:
        raise UsageError(
            f"samples = {bench.samples:,} networks of {family} are too many",
            f"{MAX_NETWORKS:,} at most",
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
