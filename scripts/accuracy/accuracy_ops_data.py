"""Input of scripts/accuracy/accuracy_ops.py: NeuSight's measured operations, device figures, and the results of its paper."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import accuracy_ops_model as ops
import numpy as np
from accuracy_ops_model import Chip, Parts, bytes_moved

from perfctl.orchestrator.analyse.predict.operations import Operation

DEVICES = {
    "V100": Chip("Tesla V100-PCIE-32GB", 0, 0, 0, 250, 12),
    "T4": Chip("Tesla T4", 0, 0, 0, 70, 12),
    "A100": Chip("NVIDIA A100-PCIE-40GB", 0, 0, 0, 250, 7),
}
"""Board power and process by NVIDIA's data sheets; the rest is read from NeuSight's device_configs. Of Linear."""
CONV_A100 = Chip("NVIDIA A100 80GB PCIe", 0, 0, 0, 300, 7)
"""Convolutions were measured on another A100."""


@dataclass(frozen=True, slots=True)
class Table:
    """One operation on one GPU; every array has one entry a row, in the order of measuring."""

    chip: Chip
    shapes: list[tuple[int, ...]]
    seconds: Any
    macs: Any
    floors: Any
    roofline: Any
    parts: list[Parts]
    features: Any
    drifts: bool
    """The measuring program slowed down from row to row: see docs/prediction.md."""


def tables(folder: Path, kind: str) -> dict[str, Table]:
    """Tables by device, in the order of DEVICES. Fills in the peaks of DEVICES."""
    found = {}
    for name, chip in DEVICES.items():
        DEVICES[name] = with_peaks(folder, chip)
        mine = with_peaks(folder, CONV_A100) if (kind, name) == ("conv", "A100") else DEVICES[name]
        found[name] = table(folder, kind, mine)
    return found


def with_peaks(folder: Path, chip: Chip) -> Chip:
    path = folder / "device_configs" / f"{chip.name.replace(' ', '_')}.json"
    given = json.loads(path.read_text(encoding="utf-8"))
    return replace(chip, flops=given["SingleFLOPs"] * 1e9, bandwidth=given["Mem_Bw"] * 1e9, sms=given["Num_Sm"])


def table(folder: Path, kind: str, chip: Chip) -> Table:
    path = folder / "op_samples" / f"{kind}_{chip.name.replace(' ', '_')}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        given = [
            (*(conv if kind == "conv" else linear)(row), float(row["Latency"]) / 1e3) for row in csv.DictReader(file)
        ]
    works = [(work, batch) for _, work, batch, _ in given]
    macs = np.array([batch * work.macs for work, batch in works])
    moved = np.array([bytes_moved(work, batch) for work, batch in works])
    return Table(
        chip, [shape for shape, *_ in given], np.array([each[-1] for each in given]), macs,
        np.array([ops.floor(work, batch, chip) for work, batch in works]),
        np.maximum(2 * macs / chip.flops, moved / chip.bandwidth),
        [ops.parts(work, batch, chip) for work, batch in works],
        np.array([ops.features(work, batch, chip) for work, batch in works]),
        kind == "conv",
    )  # fmt: skip


def linear(row: dict[str, str]) -> tuple[tuple[int, ...], Operation, int]:
    """B x M rows of N inputs, K outputs: M is the batch of single rows."""
    batch, inputs, outputs = int(row["B"]) * int(row["M"]), int(row["N"]), int(row["K"])
    work = Operation("", "linear", 1, inputs * outputs, inputs, outputs, inputs * outputs + outputs, 1, outputs, inputs)
    return (batch, inputs, outputs), work, batch


def conv(row: dict[str, str]) -> tuple[tuple[int, ...], Operation, int]:
    batch, inputs, outputs = (int(row[name]) for name in ("B", "Input_Channel", "Output_Channel"))
    kernel, size, stride, padding = (int(row[name]) for name in ("Kernel_Szie", "Input_Size", "Stride", "Padding"))
    side = (size + 2 * padding - kernel) // stride + 1
    depth, rows = inputs * kernel**2, side**2
    work = Operation("", "conv", 1, rows * depth * outputs, inputs * size**2, outputs * rows, depth * outputs + outputs,
                rows, outputs, depth, 1, kernel**2, stride)  # fmt: skip
    return (batch, inputs, outputs, kernel, size, stride, padding), work, batch


def literature(folder: Path) -> str:
    """Mean errors that the NeuSight paper reports for Linear (its column FC), over its own devices and split."""
    with (folder / "summary" / "perop.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.reader(file))
    near, far = (place for place, name in enumerate(found[1]) if name == "FC")
    said = [f"{row[0]} {float(row[near]):.1f} % and {float(row[far]):.1f} %" for row in found[2:] if row and row[0]]
    return (
        "Literature, mean error for Linear on GPUs trained on and on others (NeuSight, ASPLOS 2025, summary/perop.csv;\n"
        "its own split, over more GPUs and other shapes, means and not medians): " + "; ".join(said)
    )
