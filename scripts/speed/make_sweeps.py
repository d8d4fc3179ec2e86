"""Synthetic sweeps of any size: ``python scripts/speed/make_sweeps.py SWEEPS BATCHES LAYERS
KERNELS FOLDER``

Each sweep is a folder of runs as ``perfctl nsys`` writes them, with its own model (bench-0,
bench-1, ...) of square Linear layers: run.json, the workload's record, and an nsys export whose
kernels lie in the ranges of the layers. All values are made up, the same every time, and marked
synthetic, so perfctl labels every figure made from them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from make_nsys import (
    INSERT_CALL,
    INSERT_KERNEL,
    INSERT_RANGE,
    MAIN,
    PROCESS,
    TABLES,
    Row,
    kernel_names,
)

WIDTH = 256
"""Features in and out of each layer."""
STEPS = 3
LAUNCH_NS, KERNEL_NS = 6_000, 4_000
STARTED = "2026-01-01T00:00:00.000+00:00"


def make(sweeps: int, batches: int, layers: int, kernels: int, out: Path) -> None:
    """Write the folders below ``out`` and replace existing ones. ``kernels``: per run, in all
    its steps."""
    shutil.rmtree(out, ignore_errors=True)
    for sweep in range(sweeps):
        for number in range(1, batches + 1):
            name, batch = f"bench-{sweep}", 8 * number
            folder = out / f"nsys-{name}" / f"b{batch}"
            folder.mkdir(parents=True)
            write_export(folder / "report.sqlite", sweep, batch, layers, kernels)
            write_json(folder / "workload.json", workload(name, batch, layers))
            write_json(
                folder / "run.json", record(name, batch, (folder / "report.sqlite").stat().st_size)
            )


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def record(name: str, batch: int, size: int) -> dict[str, Any]:
    """run.json"""
    return {
        "perfctl_run": 1,
        "profiler": "nsys",
        "origin": "synthetic",
        "workload": name,
        "workload_arguments": [],
        "batch_size": batch,
        "device": "cuda",
        "status": "ok",
        "reason": None,
        "exit_code": 0,
        "started_at": STARTED,
        "duration_ns": 3_000_000_000,
        "artifact": "report.sqlite",
        "artifact_bytes": size,
        "commands": [["synthetic"]],
    }


def workload(name: str, batch: int, layers: int) -> dict[str, Any]:
    """workload.json: the shapes of every layer in every direction, as the workload sees them."""
    device = {
        "name": "Synthetic GPU",
        "kind": "gpu",
        "index": 0,
        "compute_capability": "9.0",
        "sm_count": 100,
        "memory_bytes": 85_899_345_920,
        "memory_bandwidth_bps": None,
        "clock_hz": None,
        "driver_version": None,
    }
    ops = [op for layer in range(layers) for op in layer_ops(f"layers.{layer}", batch)]
    return {
        "perfctl_workload_record": 1,
        "workload": name,
        "batch_size": batch,
        "mode": "train",
        "precision": "fp32",
        "seed": 0,
        "status": "ok",
        "reason": None,
        "options": {"batch_size": batch, "mode": "train", "steps": STEPS, "warmup": 1},
        "environment": {"torch": "synthetic", "cuda": "synthetic"},
        "device": device,
        "started_at": STARTED,
        "duration_ns": 2_000_000_000,
        "clock": "monotonic",
        "memory": [],
        "parameters": {},
        "gaps": [],
        "steps": [
            {
                "number": step,
                "phase": "step",
                "start_ns": 1_000_000_000 + step * 50_000_000,
                "duration_ns": 40_000_000 + 100_000 * batch,
                "loss": None,
                "accuracy": None,
            }
            for step in range(STEPS)
        ],
        "ops": [{**op, "position": position} for position, op in enumerate(ops)],
    }


def layer_ops(layer: str, batch: int) -> Iterator[dict[str, Any]]:
    """One Linear layer of a training step."""

    def op(
        name: str, direction: str, inputs: list[list[int]], output: list[int], **attributes: Any
    ) -> dict[str, Any]:
        return {
            "layer": layer,
            "kind": "Linear",
            "op": name,
            "direction": direction,
            "inputs": inputs,
            "outputs": [output],
            "dtypes": ["float32"] * (len(inputs) + 1),
            "attributes": attributes,
            "parameters": WIDTH * (WIDTH + 1),
            "calls": 1,
        }

    seen, square = [batch, WIDTH], [WIDTH, WIDTH]
    yield op("aten.addmm", "forward", [[WIDTH], seen, square], seen)
    yield op("aten.mm", "backward", [seen, square], seen, role="grad_input")
    yield op("aten.mm", "backward", [[WIDTH, batch], seen], square, role="grad_weight")
    yield op("optim.SGD", "optimizer", [square], square)


def write_export(path: Path, sweep: int, batch: int, layers: int, kernels: int) -> None:
    """The nsys export: steps with a range for each layer and direction, the kernels spread evenly
    over them."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.executescript(f"BEGIN;{TABLES}")
    made = (f"bench-{sweep} at batch {batch}",)  # so that no two files are the same
    connection.execute("INSERT INTO EXPORT_META_DATA VALUES ('SYNTHETIC', ?)", made)
    texts = [
        "cudaLaunchKernel_v7000",
        *(name for _, name in kernel_names()),
        *(short for short, _ in kernel_names()),
    ]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(texts, 1))
    ranges, calls, launched = rows(batch, layers, kernels)
    connection.executemany(INSERT_RANGE, ranges)
    connection.executemany(INSERT_CALL, calls)
    connection.executemany(INSERT_KERNEL, launched)
    connection.execute("COMMIT")
    connection.close()


def rows(batch: int, layers: int, kernels: int) -> tuple[list[Row], list[Row], list[Row]]:
    """(ranges, calls, kernels) of all steps."""
    places = [
        (layer, way) for way in ("forward", "backward", "optimizer") for layer in range(layers)
    ]
    slots = STEPS * len(places)
    ranges: list[Row] = []
    calls: list[Row] = []
    launched: list[Row] = []
    now = 1_000_000_000
    for step in range(STEPS):
        began = now
        for slot, (layer, way) in enumerate(places, step * len(places)):
            opened = now + 50
            for _ in range((slot + 1) * kernels // slots - slot * kernels // slots):
                now += LAUNCH_NS
                number = len(launched)
                kernel, correlation = number * 7 % 60, 9 + 2 * number
                calls.append((now - 4_000, now - 300, MAIN, correlation))
                names = (kernel + 2, kernel + 62)
                took = KERNEL_NS + 10 * batch + number * 13 % 1000
                launched.append(
                    (now + 2_500, took, correlation, PROCESS, *names, 32, 1 + slot % 997, 128)
                )
            now += 300
            ranges.append((opened, now - 50, f"layers.{layer}:{way}", MAIN))
        ranges.append((began, now, f"perfctl:step:{step}", MAIN))
        now += 10_000
    return sorted(ranges), calls, launched


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for count in ("sweeps", "batches", "layers", "kernels"):
        parser.add_argument(count, type=int)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    make(asked.sweeps, asked.batches, asked.layers, asked.kernels, asked.out)
