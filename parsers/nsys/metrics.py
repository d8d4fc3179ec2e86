"""GPU metrics that nsys sampled, page faults of unified memory and CUDA graphs of an nsys export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from perfctl.parsers.nsys.tables import GPU_METRICS, GRAPH, NODES, opened
from perfctl.parsers.text.sqlite import Database
from perfctl.records.report import Sample, Summary

ACTIVE = "GR Active"
"""Metric of the share of time in which the graphics and compute engine was busy; in percent."""
CLOCKS = ("SM Clock Frequency", "GPC Clock Frequency", "SYS Clock Frequency")
"""Metrics of the clock, the best first; in MHz."""
COUNTED = {
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "unified memory: CPU page faults",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "unified memory: GPU page faults",
    NODES: "CUDA graphs: nodes created",
    "CUDA_GRAPH_EVENTS": "CUDA graphs: events of creation",
}
"""Table of events -> name of the summary that counts them."""
GPU_BITS = 0xFF
"""Of typeId: which GPU."""


def _metrics(database: Database) -> dict[tuple[int, int], str]:
    """(type, number) -> name of a metric, as in "SMs Active [Throughput %]"."""
    rows = database.rows("TARGET_INFO_GPU_METRICS", "typeId", "metricId", "metricName")
    return {
        (kind, number): str(name)
        for kind, number, name in rows
        if isinstance(kind, int) and isinstance(number, int) and name
    }


def samples(path: Path, database: Database) -> Iterable[Sample]:
    """One Sample a reading of a GPU: its utilisation and clock. The means of all metrics are summaries."""
    names = _metrics(database)
    active = {key for key, name in names.items() if name.startswith(ACTIVE)}
    clock: dict[int, tuple[int, int]] = {}
    for start in reversed(CLOCKS):
        clock |= {key[0]: key for key, name in names.items() if name.startswith(start)}
    if not database.filled(GPU_METRICS) or not (active or clock):
        return ()
    return _readings(path, active, set(clock.values()))


def _readings(path: Path, active: set[tuple[int, int]], clock: set[tuple[int, int]]) -> Iterator[Sample]:
    numbers = ", ".join(str(number) for number in sorted({number for _, number in active | clock}))
    query = f"SELECT timestamp, typeId, metricId, value FROM {GPU_METRICS} WHERE metricId IN ({numbers}) ORDER BY 1, 2"
    with opened(path) as database:
        for (at, kind), rows in groupby(database.connection.execute(query), itemgetter(0, 1)):
            busy = hertz = None
            for _, _, number, value in rows:
                if (kind, number) in active:
                    busy = value / 100
                elif (kind, number) in clock:
                    hertz = round(value * 1e6)
            yield Sample(at, busy, None, None, None, None, hertz, kind & GPU_BITS)


def summaries(database: Database) -> tuple[Summary, ...]:
    """Means of the sampled metrics, page faults, and what is known of CUDA graphs."""
    return (*_means(database), *_counts(database), *_graph_launches(database))


def _means(database: Database) -> Iterator[Summary]:
    if not database.filled(GPU_METRICS):
        return
    names = _metrics(database)
    query = f"SELECT typeId, metricId, avg(value), max(value) FROM {GPU_METRICS} GROUP BY 1, 2 ORDER BY 1, 2"
    rows = database.connection.execute(query).fetchall()
    several = len({kind & GPU_BITS for kind, *_ in rows}) > 1
    for kind, number, mean, highest in rows:
        name, _, unit = names.get((kind, number), f"metric {number}").partition(" [")
        unit = unit.rstrip("]")
        place = f"GPU {kind & GPU_BITS} " if several else "GPU "
        unit = "%" if unit.endswith("%") else unit
        yield Summary(f"{place}metric: {name}, mean", mean, unit or None)
        yield Summary(f"{place}metric: {name}, highest", highest, unit or None)


def _counts(database: Database) -> Iterator[Summary]:
    for table, name in COUNTED.items():
        if not database.filled(table):
            continue
        if database.has(table, "numberOfPageFaults"):
            query = f"SELECT sum(numberOfPageFaults) FROM {table}"
            yield Summary(name, database.connection.execute(query).fetchone()[0], None)
            yield Summary(f"{name}, groups", database.count(table), None)
        else:
            yield Summary(name, database.count(table), None)


def _graph_launches(database: Database) -> Iterator[Summary]:
    """Graphs that were recorded whole, without their kernels."""
    if not database.filled(GRAPH):
        return
    launches, time = database.connection.execute(f"SELECT count(*), sum(end - start) FROM {GRAPH}").fetchone()
    yield Summary("CUDA graphs: launches recorded whole", launches, None)
    yield Summary("CUDA graphs: GPU time of these", time, "ns")
