"""Synthetic runs without a profiler, as a bench leaves them: known step times on a named device."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """One run of a network of a family, training in fp32 with plain SGD."""

    model: str
    batch: int
    step_ms: tuple[float, ...]
    """Of each measured step, data phase included."""
    data_ms: float = 0.0
    device: str = "Tesla T4"
    watts: float | None = None
    threads: int | None = None
    """Of a CPU run; None: a GPU."""


def store(path: Path, rows: Iterable[Row]) -> Path:
    """A store with one run a row."""
    from perfctl.orchestrator.store import database
    from perfctl.orchestrator.store.write import RunFacts, SweepFacts, write_run

    with database.open_store_for_writing(path) as connection:
        for number, row in enumerate(rows):
            facts = RunFacts(
                "none",
                "ok",
                "measured",
                "families",
                row.batch,
                variant=f"model={row.model}",
                artifact_sha256=f"{number}:{row}",
            )
            write_run(
                connection,
                SweepFacts("bench", "sweep", None, None),
                facts,
                report(row),
            )
    return path


def report(row: Row) -> object:
    """Steps of 1 s apart, a data phase at the start of each, a reading of power in the middle of
    the first."""
    from perfctl.records.paper import OpShape
    from perfctl.records.report import Device, MemoryFigure, Report, Sample, Step

    steps = []
    for number, length in enumerate(row.step_ms):
        start = number * 10**9
        steps.append(Step(number, "step", start, round(length * 1e6)))
        steps.append(Step(number, "data", start, round(row.data_ms * 1e6)))
        steps.append(Step(number, "forward", start, round((length - row.data_ms) * 1e6 / 4)))
        steps.append(Step(number, "backward", start, round((length - row.data_ms) * 1e6 / 2)))
        steps.append(Step(number, "optimizer", start, round((length - row.data_ms) * 1e6 / 4)))
    ops = (
        OpShape(
            "linear",
            "Linear",
            "optim.SGD",
            "optimizer",
            ((4, 3),),
            ((4, 3),),
            ("float32",),
            parameters=12,
        ),
    )
    samples = [Sample(1000, 0.9, 1, 2, row.watts, 40.0, None)] if row.watts is not None else []
    return Report(
        "workload",
        Path("workload.json"),
        "synthetic",
        mode="train",
        precision="fp32",
        devices=(Device(row.device, "cpu" if row.threads else "gpu"),),
        environment={"option:model": row.model}
        | ({"threads": str(row.threads)} if row.threads else {}),
        steps=tuple(steps),
        samples=samples,
        ops=ops,
        memory=(MemoryFigure("peak", "allocated", 10**9),),
    )
