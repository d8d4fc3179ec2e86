"""Times of many models on many devices as compact JSON, for the calculator's page.

A step by the fit that ships is the product of two tables of ``predict.grid``, amounts of a model
and costs of a device, so that 84 models on 99 devices stay small. Every other step is a curve of
``predict.grid``. The page reads between two batch sizes on a straight line. Numbers of the tables
are 32-bit floats; those of a curve 16-bit levels, whose logarithms are evenly spaced (``LEVELS`` a
factor of e: 0.025% at most).
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log
from typing import Any

from perfctl.orchestrator.counts.hardware.machines import Machine
from perfctl.orchestrator.estimate.memory import (
    MemoryLine,
    find_largest_batch_by_lines,
    get_default_reserve_bytes,
    select_upper_envelope_lines,
)
from perfctl.orchestrator.predict.cost import TIGHT_SHARE_MIN
from perfctl.orchestrator.predict.fit import StepFit
from perfctl.orchestrator.predict.grid import (
    LARGEST,
    PROBE,
    GridCell,
    GroupAmount,
    NetworkAmounts,
    StepSplit,
    TimeGrid,
    WorkShare,
    compute_device_part_costs,
    compute_training_time_grid,
)
from perfctl.orchestrator.predict.models.calculator import SAME_BYTES, CalculatorModel
from perfctl.orchestrator.predict.operations import (
    OPTIMIZERS,
    StepMeasurement,
    get_activation_element_bytes,
)
from perfctl.orchestrator.predict.predict import PRECISIONS
from perfctl.orchestrator.predict.published import ShippedFit
from perfctl.orchestrator.predict.step_parts import LIMIT_OF, PARTS

FORMAT = "perfctl grid 2"
LEVELS, LEAST = 2000, 1e-7
"""Of a stored number: levels for each factor of e, and the smallest number (0 is kept as 0)."""
WORK = {
    "conv": "convolutions",
    "pointwise": "1x1 convolutions",
    "grouped": "grouped convolutions",
    "depthwise": "depthwise convolutions",
    "linear": "linear layers",
    "matmul": "matrix products of activations, attention",
    "norm": "normalisations",
    "activation": "activations",
    "elementwise": "elementwise operations",
    "pool": "pooling",
    "softmax": "softmax and loss",
    "memory": "copies and other moves of bytes",
    "optimizer": "the optimizer",
    "overhead": "overhead per step",
}
"""Group of work -> its name on the page."""
LIMITS = {"arithmetic": "FLOPs", "bytes": "bandwidth", "operations": "launches"}


class _NumberedItems:
    """Items that several refer to by their number."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[str, int] = {}

    def get_or_add_index(self, item: Any) -> int:
        """Return the number of an item, which is kept at its first use."""
        key = json.dumps(item)
        if key not in self._numbers:
            self._numbers[key] = len(self.items)
            self.items.append(item)
        return self._numbers[key]


def pack_time_grid(
    models: Sequence[CalculatorModel],
    machines: Sequence[Machine],
    measured: Sequence[StepMeasurement],
    fits: Sequence[StepFit],
    published: ShippedFit | None = None,
) -> dict[str, Any]:
    """Return the times of all models on all machines. Cells are in the order of machines,
    precisions, optimizers.

    ``layouts``: of each cell its sentences (``said``), curve and split, or -1, shared by models
    that have them alike. A curve is a row of knots, each four 16-bit numbers: batch - 1, then
    value, low and high as levels; a new one begins with batch 1. ``costs`` has, of each
    machine and precision by the fit that ships (:class:`grid.DeviceCost`), rows of ``rates``.
    """
    sentences, layouts, rows, lists = (
        _NumberedItems(),
        _NumberedItems(),
        _NumberedItems(),
        _NumberedItems(),
    )
    general = _SharedCells(machines, measured, fits, published, sentences)
    sizes = list(dict.fromkeys(map(_get_usable_memory_bytes, machines)))
    packed_models = []
    for model in models:
        beyond = _NumberedItems()
        cells, grid = general.build_cells_and_curves(model)
        numbers = {
            name: [-1 if (number := getattr(cell, name)) is None else number for _, cell in cells]
            for name in ("curve", "split", "backward")
        }
        layout = {
            "said": [sentence for sentence, _ in cells],
            **{name: row for name, row in numbers.items() if max(row, default=-1) >= 0},
            "beyond": [beyond.get_or_add_index(cell.beyond) for _, cell in cells],
        }
        splits = [
            {
                "batches": split.batches,
                "rows": [
                    (WORK[part.group], LIMITS[part.limit], name)
                    for part, name in _list_work_shares_with_optimizer(split)
                ],
            }
            for split in grid.splits
        ]  # (work, limit, optimizer or "" for all) of each row
        knots = [
            number
            for curve in grid.curves
            for knot in curve
            for number in (knot.batch - 1, *map(encode_log_level, knot[1:]))
        ]
        amounts = [
            encode_log_level(amount)
            for split in grid.splits
            for part, _ in _list_work_shares_with_optimizer(split)
            for amount in part.amounts
        ]
        packed_models.append(
            _pack_model(model, sizes)
            | {
                "layout": layouts.get_or_add_index(layout),
                "beyond": beyond.items,
                "knots": encode_uint16_base64(knots),
                "rows": [rows.get_or_add_index(split) for split in splits],
                "splits": encode_uint16_base64(amounts),
                **(_pack_network_amounts(model.amounts, lists) if published is not None else {}),
            }
        )
    return {
        "format": FORMAT,
        "machines": [machine.name for machine in machines],
        "precisions": PRECISIONS,
        "optimizers": OPTIMIZERS,
        "largest": LARGEST,
        "levels": LEVELS,
        "least": LEAST,
        "close": TIGHT_SHARE_MIN,
        "sizes": [sizes.index(_get_usable_memory_bytes(machine)) for machine in machines],
        "reserves": [get_default_reserve_bytes(machine.kind) for machine in machines],
        "same_bytes": SAME_BYTES,
        "bytes": [get_activation_element_bytes(precision) for precision in PRECISIONS],
        "limits": [LIMITS[LIMIT_OF[part]] for part in PARTS],
        "said": sentences.items,
        "layouts": layouts.items,
        "rows": rows.items,
        "lists": lists.items,
        "models": packed_models,
        **(_pack_device_costs(published, machines) if published is not None else {}),
        "measured": list(map(_pack_measured_step, measured)),
    }


def _pack_measured_step(step: StepMeasurement) -> dict[str, Any]:
    return {
        "model": step.case.model,
        "machine": step.machine,
        "batch": step.case.batch,
        "precision": step.case.precision,
        "optimizer": step.case.optimizer,
        "seconds": step.seconds,
        "low": min(step.low, step.seconds),
        "high": max(step.high, step.seconds),
        "backward": step.backward,
    }


class _SharedCells:
    """Cells of all models. If a device has no fit and no measured step of its own, its words are
    those of every model."""

    def __init__(
        self,
        machines: Sequence[Machine],
        measured: Sequence[StepMeasurement],
        fits: Sequence[StepFit],
        published: ShippedFit | None,
        sentences: _NumberedItems,
    ) -> None:
        self.machines, self.measured, self.fits = machines, measured, fits
        self.published, self.sentences = published, sentences
        own_machines = {fit.machine.name for fit in fits} | {step.machine for step in measured}
        self.is_plain = [
            published is not None and machine.kind == "gpu" and machine.name not in own_machines
            for machine in machines
        ]
        self.known: dict[str, list[tuple[int, GridCell]]] = {}

    def build_cells_and_curves(
        self, model: CalculatorModel
    ) -> tuple[list[tuple[int, GridCell]], TimeGrid]:
        """Return (the number of its words, the cell) of each, and the curves and splits that cells
        point at."""
        is_plain = self.is_plain if model.network.works else [False] * len(self.machines)
        missing = [
            machine
            for machine, is_shared in zip(self.machines, is_plain, strict=True)
            if not is_shared or machine.name not in self.known
        ]
        grid = compute_training_time_grid(
            model.network, missing, self.measured, self.fits, self.published
        )
        width = len(PRECISIONS) * len(OPTIMIZERS)
        computed: dict[str, list[tuple[int, GridCell]]] = {}
        for row, machine in enumerate(missing):
            computed[machine.name] = []
            for column, cell in enumerate(grid.cells[row * width : (row + 1) * width]):
                optimizer = OPTIMIZERS[column % len(OPTIMIZERS)]
                name = model.network.names.get(optimizer, model.network.name)
                sentences = _build_placeholder_sentences(cell, name, machine.name)
                computed[machine.name].append((self.sentences.get_or_add_index(sentences), cell))
        cells: list[tuple[int, GridCell]] = []
        for machine, is_shared in zip(self.machines, is_plain, strict=True):
            machine_cells = (self.known.get(machine.name) if is_shared else None) or computed[
                machine.name
            ]
            if is_shared:
                self.known[machine.name] = machine_cells
            cells += machine_cells
        return cells, grid


def _pack_network_amounts(
    amounts_of_model: NetworkAmounts, lists: _NumberedItems
) -> dict[str, Any]:
    """Return ``amounts``: by bytes of an activation and by optimizer, [number in ``lists`` of
    (work, part), the points of all].

    Points are pairs of 32-bit floats, batch and amount; a new row begins with batch 1.
    """

    def index_names_and_encode_points(rows: Sequence[GroupAmount]) -> tuple[int, str]:
        names = [(WORK[row.group], row.part) for row in rows]
        values = [value for row in rows for point in row.points for value in point]
        return lists.get_or_add_index(names), encode_float32_base64(values)

    parts = {
        str(size): index_names_and_encode_points(rows)
        for size, rows in amounts_of_model.steps.items()
    }
    parts |= {
        name: index_names_and_encode_points(rows)
        for name, rows in amounts_of_model.optimizers.items()
    }
    return {"amounts": parts, "operations": amounts_of_model.operations}


def _pack_device_costs(fit: ShippedFit, machines: Sequence[Machine]) -> dict[str, Any]:
    table = compute_device_part_costs(
        fit, [machine for machine in machines if machine.kind == "gpu"], PRECISIONS
    )
    return {
        "costs": [
            [table.of.get((machine.name, precision)) for precision in PRECISIONS]
            for machine in machines
        ],
        "rates": encode_float32_base64([rate for row in table.rows for rate in row]),
    }


def _build_placeholder_sentences(cell: GridCell, model: str, machine: str) -> dict[str, Any]:
    """Return the sentences about a cell's times, with {model}, {device} and {batch} for the names
    that the page puts in."""
    names = {machine: "{device}", f" {model} ": " {model} ", f" {PROBE}": " {batch}"}

    def insert_placeholders(text: str) -> str:
        for value, placeholder in names.items():
            text = text.replace(value, placeholder)
        return text

    if not cell.way:
        return {"reason": insert_placeholders(cell.reason)}
    return {
        "way": cell.way,
        "source": insert_placeholders(cell.source),
        "coverage": cell.coverage,
        "why_not": [insert_placeholders(text) for text in cell.why_not],
        "outside": [insert_placeholders(text) for text in cell.outside],
    }


def _get_usable_memory_bytes(machine: Machine) -> float | None:
    """Return the bytes for a step."""
    return machine.memory_bytes and machine.memory_bytes - get_default_reserve_bytes(machine.kind)


def _pack_model(model: CalculatorModel, sizes: Sequence[float | None]) -> dict[str, Any]:
    """Return what is known of a model. A largest batch, one for each size of memory, is None where
    the memory is not known or sets no end."""
    network, lines = model.network, model.lines

    def convert_memory_lines(convert: Any) -> Mapping[str, Mapping[str, Any]] | None:
        return lines and {
            precision: {name: convert(of_optimizer) for name, of_optimizer in each.items()}
            for precision, each in lines.items()
        }

    return {
        "name": network.name,
        "family": network.family,
        "parameters": network.parameters,
        "notes": model.notes,
        "names": dict(network.names),
        "lines": convert_memory_lines(_select_upper_envelope_lines),
        "largest": convert_memory_lines(
            lambda of: [
                None if size is None else find_largest_batch_by_lines(of, size) for size in sizes
            ]
        ),
    }


def _select_upper_envelope_lines(lines: Sequence[MemoryLine]) -> list[MemoryLine]:
    """Return the lines that are the upper one at some batch size."""
    batches = {1, LARGEST}
    for steep, flat in pairwise(select_upper_envelope_lines(lines)):
        crossing = (flat.fixed - steep.fixed) // (steep.per_sample - flat.per_sample)
        batches |= {min(max(batch, 1), LARGEST) for batch in (crossing, crossing + 1)}
    return sorted(
        {max(lines, key=lambda line: line.fixed + line.per_sample * batch) for batch in batches}
    )


def _list_work_shares_with_optimizer(split: StepSplit) -> list[tuple[WorkShare, str]]:
    """Return (part, optimizer or "" for all)."""
    optimizer_parts = [(part, name) for name, parts in split.optimizers.items() for part in parts]
    return [*((part, "") for part in split.parts), *optimizer_parts]


def encode_log_level(value: float) -> int:
    """Return the stored number of a value, 0 or more; :data:`LEAST` for smaller ones."""
    return min(max(round(log(value / LEAST) * LEVELS), 1), 0xFFFF) if value > 0 else 0


def encode_uint16_base64(numbers: Sequence[int]) -> str:
    """Return 16-bit numbers, little end first, in base64."""
    return b64encode(struct.pack(f"<{len(numbers)}H", *numbers)).decode("ascii")


def encode_float32_base64(numbers: Sequence[float]) -> str:
    """Return 32-bit floats, little end first, in base64."""
    return b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode("ascii")
