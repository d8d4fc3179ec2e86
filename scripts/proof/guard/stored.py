"""What perfctl says about results databases that 1.0.0 wrote, and what else it answers without
real reports."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from recorder import Recorder, Values, query_runs, rounded
from reports import ATTRIBUTION, RUN

STORES = Path(__file__).with_name("stores")
FRAMES = """
import json, sys, perfctl
found = {}
for name in ("runs", "ledger", "kernels", "counters", "layer_calls"):
    frame = getattr(perfctl, name)(sys.argv[1])
    if hasattr(frame, "columns"):
        sums = {str(column): float(frame[column].sum()) for column in frame.select_dtypes("number")}
        found[name] = {"rows": len(frame), "columns": sorted(map(str, frame.columns)), "sums": sums}
    else:
        found[name] = {"rows": len(frame)}
print(json.dumps(found))
"""
"""Prints the tables of the Python API."""
PREDICTIONS = [
    "predict resnet:depth=26 --device A100 --batch 64 --dataset-size 50000 --epochs 10",
    (
        "predict torchvision:resnet50 --device H100 --batch 64 --gpus 8 --frontier --dataset-size "
        "1281167 --epochs 90"
    ),
    (
        "predict mnist_cnn --device-spec name=X,fp32_tflops=20,bandwidth_gbs=900,memory_gb=24 "
        "--batch 64"
    ),
    "estimate mnist_cnn --batch 64 --layer conv2 --sheet",
    "estimate mnist_cnn --batches 16,32 --mode infer --all",
    "estimate mnist_cnn --batch 64 --layer conv2 --check 141557760",
    "predict --list-prices",
    "predict --list-prices a100",
]
PLANS = [
    "replay tests/data/recorded-cpu/torch --dry-run",
    "replay tests/data/recorded-cpu/nsys --batches 16 --dry-run",
    "infer --models resnet18,vgg11 --batches 1,5 --dry-run",
    "infer --models resnet18 --batches 1 --profiler torch --precision bf16 --dry-run",
    "study flops --quick --dry-run",
    "study inference --quick --dry-run",
    "study speedup --quick --dry-run",
    "study cost --quick --dry-run",
]


VOLATILE = re.compile(r"older_than_a_year$|(report|calculator) / bytes$")
"""Keys of values that change from day to day, or with every sentence."""
THREADS = re.compile(r" --threads \d+")
"""An option that depends on this machine."""


def unpacked(recorder: Recorder) -> Iterator[tuple[str, Path]]:
    """Yield the name of each recorded results database, and a copy of it."""
    for dump in recorder.some(sorted(STORES.glob("*.sql.gz"))):
        name = dump.name.removesuffix(".sql.gz")
        path = recorder.work / f"written-{name}.db"
        if not path.exists():
            with closing(sqlite3.connect(path)) as base:
                base.executescript(gzip.decompress(dump.read_bytes()).decode())
        yield name, path


def stores(recorder: Recorder) -> Values:
    """Yield what perfctl reads in the results databases of 1.0.0."""
    for name, path in unpacked(recorder):
        for command in ("runs", "ledger"):
            for key, value in recorder.json(command, "--store", str(path)).items():
                yield f"{name} / {command} / {key}", value
        with closing(sqlite3.connect(path)) as base:
            runs = [str(run) for (run,) in base.execute("select id from run order by id")]
        for run in runs[::2]:
            for key, value in recorder.json("show", run, "--store", str(path)).items():
                yield f"{name} / show {run} / {key}", value
        for number, what, rows in query_runs(path, RUN | ATTRIBUTION):
            yield f"{name} / run {number} / {what}", rows
        done = recorder.run(recorder.python, "-c", FRAMES, str(path))
        for table, facts in (json.loads(done.stdout) if done.returncode == 0 else {}).items():
            for what, value in facts.items():
                yield f"{name} / import perfctl / {table} / {what}", value


def answers(recorder: Recorder) -> Values:
    """Yield what further commands answer: charts, exports, traces, gates, speed-ups,
    plans, prices."""
    for key, value in all_answers(recorder):
        if not VOLATILE.search(key):
            yield key, value


def all_answers(recorder: Recorder) -> Values:
    """Yield the answers, volatile ones too."""
    for name, path in unpacked(recorder):
        store = ["--store", str(path)]
        for what, values in (
            ("history", recorder.json("history", *store)),
            ("compare", recorder.json("compare", "1", "2", *store)),
            ("plot", recorder.json("plot", "--list", *store)),
            (
                "trace",
                recorder.json("trace", "1", "--whole", "--out", f"{name}-trace.json", *store),
            ),
            (
                "speedup",
                recorder.json("speedup", "--runs", "1,2", "--page", f"{name}.html", *store),
            ),
            (
                "gate update",
                recorder.json("gate", f"{name}-gate.json", "--update", "--runs", str(path)),
            ),
            ("gate", recorder.json("gate", f"{name}-gate.json")),
            ("report", recorder.json("report", "--out", f"{name}-report.html", *store)),
        ):
            yield from ((f"{name} / {what} / {key}", value) for key, value in values.items())
        yield from (
            (f"{name} / trace events / {key}", value)
            for key, value in traced(recorder.work / f"{name}-trace.json")
        )
        out = recorder.work / f"{name}-export"
        yield (
            f"{name} / export / exit",
            recorder.call("export", "--all", "--out", str(out), *store).returncode,
        )
        for table in sorted(out.glob("*.csv")):
            yield from (
                (f"{name} / export / {table.stem} / {key}", value) for key, value in exported(table)
            )
    for call in recorder.some(PREDICTIONS):
        yield from (
            (f"{call} / {key}", value) for key, value in recorder.json(*call.split()).items()
        )
    for call in recorder.some(PLANS):
        done = recorder.call(
            *call.replace("tests/data", str(recorder.project / "tests/data")).split()
        )
        yield f"{call} / exit", done.returncode
        yield from (
            (f"{call} / {line}", count)
            for line, count in recorder.plain(THREADS.sub("", done.stdout)).items()
        )
    page = recorder.json("calculator", "--models", "none", "--out", "calculator.html")
    yield from ((f"calculator / {key}", value) for key, value in page.items())


def traced(path: Path) -> Values:
    """Yield the number of events of a trace by phase and category, and their time."""
    if path.exists():
        document = json.loads(path.read_text(encoding="utf-8"))
        events = document["traceEvents"] if isinstance(document, dict) else document
        counts = Counter(f"{event.get('ph')} {event.get('cat', '')}".strip() for event in events)
        yield from sorted(counts.items())
        yield "microseconds", rounded(float(sum(event.get("dur", 0) for event in events)))


def exported(path: Path) -> Values:
    """Yield the columns of a CSV file, its rows, and the sums of its numbers."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
        file.seek(0)
        columns = next(csv.reader(file), [])
    yield "columns", columns
    yield "rows", len(rows)
    if path.stem in ("ledger", "kernel", "layer_call", "operation", "summary"):
        for column in columns:
            numbers = [
                float(row[column]) for row in rows if row[column].replace(".", "", 1).isdecimal()
            ]
            if numbers and not column.endswith("id"):
                yield f"sum of {column}", rounded(sum(numbers))
