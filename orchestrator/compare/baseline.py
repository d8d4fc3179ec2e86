"""The committed baseline: a small JSON file, with one line for each place, so that a review shows
what changed.

::

    {"format": "perfctl gate", "version": 1,
     "tolerances": {"time": 0.05},
     "entries": [
      {"name": "resnet18", "subject": {"model": "torchvision:resnet18", "batches": [16], ...},
       "environment": {...}, "places": [
        {"batch": 16, "layer": "conv1", "direction": "forward", "flops": 3776446464, ...},
        ...
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from perfctl.orchestrator.compare.gate import (
    KINDS,
    SETUP,
    TIME,
    MeasuredQuantities,
    QuantityPlace,
    Value,
)
from perfctl.orchestrator.errors import PerfctlError, UsageError

FILE = Path("perfctl-gate.json")
FORMAT, VERSION = "perfctl gate", 1
_LARGEST = 64 << 20
_FIELDS = QuantityPlace._fields
_REMEDY = "Restore it from version control, or create it again with `update`"


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """One subject, and what it was."""

    name: str
    subject: Mapping[str, Any]
    """What to measure again: {"model": ...} or {"runs": ...}; paths are relative to
    the baseline."""
    measured: MeasuredQuantities


@dataclass(frozen=True, slots=True)
class Baseline:
    """The whole file."""

    entries: tuple[BaselineEntry, ...] = ()
    tolerances: Mapping[str, float] = field(default_factory=dict)
    """Quantity -> share that was chosen instead of its kind's."""

    def add_or_replace_entry(self, entry: BaselineEntry) -> Baseline:
        """Its older one of the same name goes."""
        names = [existing.name for existing in self.entries]
        if entry.name not in names:
            return replace(self, entries=(*self.entries, entry))
        return replace(
            self,
            entries=tuple(
                entry if existing.name == entry.name else existing for existing in self.entries
            ),
        )


def read_baseline(path: Path) -> Baseline:
    """Raises UsageError where there is none, PerfctlError for what is no baseline."""
    try:
        if path.stat().st_size > _LARGEST:
            raise PerfctlError(f"{path} is too large for a baseline", _REMEDY)
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"baseline {path} not found",
            "Create it with `update` and `models` (or `runs`), and commit it",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise PerfctlError(f"{path} cannot be read: {error}", _REMEDY) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PerfctlError(f"{path} is not a baseline of perfctl gate", _REMEDY)
    if document.get("version") != VERSION:
        raise PerfctlError(
            f"{path} is version {document.get('version')!r} of a baseline, and this perfctl reads "
            f"{VERSION}",
            "Use the perfctl version that wrote it, or create it again with `update`",
        )
    try:
        entries = tuple(map(_parse_entry, document["entries"]))
        if not entries or len({entry.name for entry in entries}) < len(entries):
            raise ValueError("two entries have the same name" if entries else "it has no entries")
        return Baseline(entries, _parse_tolerances(document.get("tolerances", {})))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, UsageError) as error:
        raise PerfctlError(
            f"{path} is damaged: {type(error).__name__}: {error!s:.200}", _REMEDY
        ) from error


def _parse_entry(document: Mapping[str, Any]) -> BaselineEntry:
    subject = _validate_model_or_runs_subject(document["subject"])
    places: dict[QuantityPlace, dict[str, Value]] = {}
    for line in document["places"]:
        fields = [
            line.get(name, default) for name, default in QuantityPlace._field_defaults.items()
        ]
        location = msgspec.convert(fields, QuantityPlace)
        if location in places:
            raise ValueError(f"{location.name} exists twice")
        places[location] = {
            name: _parse_value(name, value) for name, value in line.items() if name not in _FIELDS
        }
    environment = msgspec.convert(document.get("environment", {}), dict[str, dict[str, str]])
    if not places:
        raise ValueError("an entry is empty")
    return BaselineEntry(
        str(document["name"]), subject, MeasuredQuantities(places, {}, environment)
    )


def _validate_model_or_runs_subject(document: Mapping[str, Any]) -> dict[str, Any]:
    names = [document[kind] for kind in ("model", "runs") if kind in document]
    if not msgspec.convert(names, list[str]):
        raise ValueError("an entry has neither a model nor runs")
    batches = msgspec.convert(document.get("batches", [1]), list[int])
    if not batches or min(batches) < 1:
        raise ValueError(f"{batches!r:.80} are not batch sizes")
    return dict(document)


def _parse_value(quantity: str, value: Any) -> Value:
    if quantity == TIME:
        times = tuple(float(item) for item in value)
        if not times or not all(math.isfinite(item) and item >= 0 for item in times):
            raise ValueError("a time is not a list of nanoseconds")
        return times
    if isinstance(value, dict):
        return {str(name): _parse_number(item) for name, item in value.items()}
    if quantity in KINDS and isinstance(value, str) != (quantity in (SETUP, "algorithm")):
        raise ValueError(f"{quantity} is {value!r:.80}")
    return value if isinstance(value, str) else _parse_number(value)


def _parse_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**1000:
        raise ValueError(f"{value!r} is not a valid value")
    return value


def _parse_tolerances(document: Mapping[str, Any]) -> dict[str, float]:
    return {
        str(name): validate_quantity_tolerance(str(name), _parse_number(value))
        for name, value in document.items()
    }


def validate_quantity_tolerance(quantity: str, share: float) -> float:
    """Raises UsageError for a quantity that no gate has, or a share below 0."""
    if quantity not in KINDS:
        raise UsageError(
            f"`tolerances`: unknown quantity '{quantity}'", f"There are {', '.join(KINDS)}"
        )
    if not (math.isfinite(share) and share >= 0):
        raise UsageError(f"`tolerances`: {quantity} must be 0 or more, got {share}", "0.05 is 5%")
    return share


def format_baseline(baseline: Baseline) -> str:
    """Return the text of the file, one line per place."""
    entries = ",\n".join(map(_format_entry, baseline.entries))
    return (
        f'{{\n "format": {_encode_json(FORMAT)}, "version": {VERSION},\n'
        f' "tolerances": {_encode_json(baseline.tolerances)},\n "entries": [\n{entries}\n ]\n}}\n'
    )


def _format_entry(entry: BaselineEntry) -> str:
    places = []
    for location, values in entry.measured.places.items():
        fields = {name: value for name, value in location._asdict().items() if value}
        places.append(f"    {_encode_json(fields | dict(values))}")
    lines = ",\n".join(places)
    name, subject, environment = map(
        _encode_json, (entry.name, entry.subject, entry.measured.environment)
    )
    return (
        f'  {{"name": {name},\n   "subject": {subject},\n'
        f'   "environment": {environment},\n   "places": [\n{lines}\n   ]}}'
    )


def _encode_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=dict)
