"""Accuracy of predicted training steps on timm's published benchmark: 800 networks on an RTX 3090, mixed precision.

    python scripts/accuracy/accuracy_timm.py [--shared ../shared] [--layout nchw|nhwc] [--traces FILE] [--jobs N]

Published by huggingface/pytorch-image-models (results/benchmark-train-amp-*-rtx3090.csv): step time at the batch that fits.
Every architecture is built without weights, on meta tensors, and its forward pass traced, which takes some minutes; the
traces are kept in build/ for the next time. Needs timm: perfctl[peers].

The split is fixed: five folds by timm's module (resnet.py, efficientnet.py, vision_transformer.py ... : a file holds all
sizes, trainings and near relatives of an architecture), so that the fit sees no relative of a held-out network. Each
figure is shown with, on the same split, a line through GMACs, the roofline as it is and times one factor, and plain gradient boosting
on GMACs, activations, parameters and batch.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
from accuracy_steps import Line, beside, by_boosting, by_factor, by_line, held_out, percent, spelled

from perfctl.orchestrator.analyse.hardware.machines import named
from perfctl.orchestrator.analyse.predict.fit import table
from perfctl.orchestrator.analyse.predict.operations import HEAVY, Measured, Operation, StepSpec, operations_of
from perfctl.orchestrator.analyse.predict.step_parts import merged, roofline
from perfctl.orchestrator.analyse.predict.trees_fit import folds
from perfctl.workloads.tracing.recorder import trace

FILE = "benchmark-train-amp-{}-pt112-cu113-rtx3090.csv"
KEPT = Path(__file__).resolve().parents[2] / "build" / "accuracy" / "timm_works.json.gz"
TRACED_AT = 2
"""Batch of the trace: normalisation over 1x1 maps needs two samples."""
SEED = 3
LITERATURE = (
    "published for other networks: NeuSight 0.1 to 28 %, Habitat 3 to 5245 % (neusight/summary/nvidia_train.csv)"
)


def trace_one(name: str, size: int, fused: bool = False) -> dict[str, Any] | None:
    """Module, parameters and merged operations of one architecture; None when this timm no longer has it.

    fused: in inference with fused attention, as PyTorch 2 runs it; else in training as the benchmark ran, with PyTorch 1.12.
    """
    os.environ["TIMM_FUSED_ATTN"] = "1" if fused else "0"
    warnings.filterwarnings("ignore")
    import timm
    import torch
    from timm.layers import set_fused_attn

    set_fused_attn(fused)
    torch.set_num_threads(1)
    for options in ({}, {"img_size": size}):
        try:
            with torch.device("meta"):
                model = timm.create_model(name, pretrained=False, **options)
        except (RuntimeError, TypeError, ValueError):
            continue
        mode = "infer" if fused else "train"
        model = model.eval() if fused else model
        seen = trace(model, (torch.empty(TRACED_AT, 3, size, size, device="meta"),), mode=mode, grad=False)
        if seen.problem is None:
            module = type(model).__module__.rpartition(".")[2]
            works = merged(
                alone(op, work) for op, work in zip(_forward(seen.ops), operations_of(seen.ops, TRACED_AT), strict=True)
            )
            parameters = sum(each.numel() for each in model.parameters())
            return {"module": module, "parameters": parameters, "works": [astuple(work)[1:] for work in works]}
    return None


def _forward(ops: Iterable[Any]) -> list[Any]:
    return [op for op in sorted(ops, key=lambda op: op.position) if op.direction == "forward"]


def alone(op: Any, work: Operation) -> Operation:
    """What is done to weights (their standardisation) has no batch: its elements are read whatever the batch."""
    shapes = [shape for shape in op.outputs if shape]
    if work.kind in HEAVY or not shapes or any(shape[0] != 1 for shape in shapes):
        return work
    return replace(work, inputs=0.0, outputs=0.0, weights=(work.inputs + work.outputs) * TRACED_AT)


def traced(wanted: list[tuple[str, int]], path: Path, jobs: int) -> dict[str, dict[str, Any]]:
    """ "name size" -> what :func:`trace_one` found, from the file and, what is not in it, by tracing. {} without timm."""
    known: dict[str, Any] = {}
    if path.is_file():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            known = json.load(file)
    missing = [pair for pair in wanted if f"{pair[0]} {pair[1]}" not in known]
    if missing:
        from importlib.util import find_spec

        if find_spec("timm") is None:
            return {}
        with ProcessPoolExecutor(jobs) as pool:
            for (name, size), found in zip(
                missing, pool.map(trace_one, *zip(*missing, strict=True), chunksize=8), strict=True
            ):
                known[f"{name} {size}"] = found
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as file:
            json.dump(known, file, separators=(",", ":"))
    return known


def published(folder: Path, layout: str) -> list[dict[str, str]]:
    with (folder / FILE.format(layout)).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def records(rows: list[dict[str, str]], known: dict[str, Any]) -> Iterator[tuple[str, Measured]]:
    """(timm's module, record) of each row whose architecture was traced."""
    for row in rows:
        found = known.get(f"{row['model']} {row['train_img_size']}")
        if found is None:
            continue
        works = tuple(Operation("", *figures) for figures in found["works"])
        batch, seconds = int(row["train_batch_size"]), float(row["train_step_time"]) / 1e3
        case = StepSpec(row["model"], found["module"], works, batch, True, "fp16", "momentum", found["parameters"])
        yield found["module"], Measured(case, "RTX 3090", seconds, seconds, seconds)


def activations(case: StepSpec) -> float:
    """Outputs of all products, of one sample: what timm calls activations."""
    return sum(work.calls * work.outputs for work in case.works if work.kind in HEAVY)


def lines(shared: Path, layout: str = "nchw", path: Path = KEPT, jobs: int = 2, aim: bool = True) -> list[Line]:
    """The table's lines; none, and why, where timm or the published results are missing."""
    folder = shared / "datasets" / "timm"
    if not (folder / FILE.format(layout)).is_file():
        print(f"No results of timm in {folder}: their lines are left out; say where they are with --shared")
        return []
    rows = published(folder, layout)
    known = traced([(row["model"], int(row["train_img_size"])) for row in rows], path, jobs)
    if not known:
        print("timm is not installed: the lines of its results are left out; pip install 'perfctl[peers]'")
        return []
    modules, found = zip(*records(rows, known), strict=True)
    return _lines(list(modules), list(found), layout, len(rows), aim)


def _lines(modules: list[str], found: list[Measured], layout: str, published_rows: int, aim: bool) -> list[Line]:
    machine = named("RTX 3090").machine
    given = table(found, machine, modules)
    seconds = given.seconds
    split = list(folds(modules, 5, SEED))
    roof = np.array([roofline(record.case, machine) for record in found])
    batches = np.array([float(record.case.batch) for record in found])
    macs = np.array([record.case.macs for record in found])
    figures = [(r.case.macs / r.case.batch, activations(r.case), r.case.parameters, r.case.batch) for r in found]
    predicted = held_out(given, split)
    errors, covered = predicted.errors(seconds), predicted.coverage(seconds)
    median = float(np.median(errors))
    baselines = beside(
        [
            ("GMACs alone", by_line(macs, seconds, split)),
            ("roofline alone", abs(roof / seconds - 1)),
            ("roofline x factor", by_factor(roof, seconds, split)),
            ("gradient boosting on four figures", by_boosting(np.array(figures), seconds, split, batches)),
        ]
    )
    ratios = ", ".join(f"{value:.2f}" for value in np.quantile(seconds / roof, (0.05, 0.5, 0.95)))
    wanted = "< 10 %" if aim else ""
    return [
        Line(f"timm, RTX 3090, training, {layout}, 5-fold by module: median", percent(median), wanted,
             not aim or median < 0.10, baselines),
        Line("  beside it", spelled(errors), "", True,
             f"{len(found)} of {published_rows} networks, {len(set(modules))} modules; {LITERATURE}"),
        Line("  90 % interval covers", percent(covered), "85..95 %" if aim else "", not aim or 0.85 <= covered <= 0.95,
             f"measured over roofline, 5th, 50th, 95th percentile: {ratios}"),
    ]  # fmt: skip


def main() -> int:
    """Print the lines; return 1 when one misses its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("PERFCTL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    parser.add_argument("--shared", type=Path, default=shared, help="folder that holds datasets/timm")
    parser.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw")
    parser.add_argument("--traces", type=Path, default=KEPT, help="where traced operations are kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    found = lines(given.shared, given.layout, given.traces, given.jobs)
    print("\n".join(line.text() for line in found))
    return 0 if all(line.good for line in found) else 1


if __name__ == "__main__":
    sys.exit(main())
