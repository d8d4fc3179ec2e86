"""The file that describes a bench (TOML): which networks, at which batch sizes, and how they
are measured.

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

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, TypeGuard

from perfctl.orchestrator.errors import UsageError
from perfctl.workloads.models.plan import PARAMETERS
from perfctl.workloads.spec import MODES, PRECISIONS

MOST_VALUES = 10_000
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
