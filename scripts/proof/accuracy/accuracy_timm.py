"""Accuracy of predicted training steps on timm's published benchmark: 800 networks on an RTX 3090,
mixed precision.

    python scripts/proof/accuracy/accuracy_timm.py [--shared ../shared] [--layout nchw|nhwc]
    [--traces FILE] [--jobs N]

Published by huggingface/pytorch-image-models (results/benchmark-train-amp-*-rtx3090.csv): step time
at the batch that fits. Every architecture is built without weights, on meta tensors, and its
forward pass traced, which takes some minutes; the traces are kept in build/accuracy/ for the next
time (published_rows.py). Needs timm: perfctl[peers].

The split is fixed: five folds by timm's module (resnet.py, efficientnet.py, vision_transformer.py
... : a file holds all sizes, trainings and near relatives of an architecture), so that the fit sees
no relative of a held-out network. Each figure is shown with, on the same split, a line through
GMACs, the roofline as it is and times one factor, and plain gradient boosting on GMACs,
activations, parameters and batch.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from accuracy_lines import Line, parser_for, percent, print_lines
from accuracy_steps import beside, by_boosting, by_factor, by_line, held_out, spelled
from published_rows import KEPT, Traces

from perfctl.orchestrator.counts.hardware.machines import find_device
from perfctl.orchestrator.predict.efficiency import split_groups_into_folds
from perfctl.orchestrator.predict.fit import build_fit_arrays
from perfctl.orchestrator.predict.operations import HEAVY, StepMeasurement, StepSpec
from perfctl.orchestrator.predict.step_parts import compute_step_floor_seconds

FILE = "benchmark-train-amp-{}-pt112-cu113-rtx3090.csv"
SEED = 3
LITERATURE = (
    "Habitat -, NeuSight - (none published for these networks; training of language models: "
    "Habitat 3 to 5245 %, NeuSight 0.1 to 28 %, neusight/summary/nvidia_train.csv)"
)


def published(folder: Path, layout: str) -> list[dict[str, str]]:
    with (folder / FILE.format(layout)).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def records(rows: list[dict[str, str]], traces: Traces) -> Iterator[tuple[str, StepMeasurement]]:
    """(timm's module, record) of each row whose architecture was traced."""
    for row in rows:
        traced = traces.of(f"timm:{row['model']} {row['train_img_size']}")
        if traced is None:
            continue
        found, works = traced
        batch, seconds = int(row["train_batch_size"]), float(row["train_step_time"]) / 1e3
        case = StepSpec(
            row["model"],
            found["module"],
            works,
            batch,
            True,
            "fp16",
            "momentum",
            found["parameters"],
        )
        yield found["module"], StepMeasurement(case, "RTX 3090", seconds, seconds, seconds)


def activations(case: StepSpec) -> float:
    """Outputs of all products, of one sample: what timm calls activations."""
    return sum(work.calls * work.outputs for work in case.works if work.kind in HEAVY)


def lines(
    shared: Path, layout: str = "nchw", path: Path = KEPT, jobs: int = 2, aim: bool = True
) -> list[Line]:
    """The table's lines; none, and why, where timm or the published results are missing."""
    folder = shared / "datasets" / "timm"
    if not (folder / FILE.format(layout)).is_file():
        print(
            f"No results of timm in {folder}: their lines are left out; say where they are with "
            "--shared"
        )
        return []
    rows = published(folder, layout)
    traces = Traces(path)
    keys = [f"timm:{row['model']} {row['train_img_size']}" for row in rows]
    if find_spec("timm") is None and any(key not in traces.made for key in keys):
        print(
            "timm is not installed: the lines of its results are left out; pip install "
            "'perfctl[peers]'"
        )
        return []
    traces.prepare(keys, jobs)
    modules, found = zip(*records(rows, traces), strict=True)
    return _lines(list(modules), list(found), layout, len(rows), aim)


def _lines(
    modules: list[str], found: list[StepMeasurement], layout: str, published_rows: int, aim: bool
) -> list[Line]:
    machine = find_device("RTX 3090").machine
    given = build_fit_arrays(found, machine, modules)
    seconds = given.seconds
    split = list(split_groups_into_folds(modules, 5, SEED))
    roof = np.array([compute_step_floor_seconds(record.case, machine) for record in found])
    batches = np.array([float(record.case.batch) for record in found])
    macs = np.array([record.case.forward_macs_of_batch for record in found])
    figures = [
        (
            r.case.forward_macs_of_batch / r.case.batch,
            activations(r.case),
            r.case.parameters,
            r.case.batch,
        )
        for r in found
    ]
    predicted = held_out(given, split)
    errors, covered = predicted.errors(seconds), predicted.coverage(seconds)
    median = float(np.median(errors))
    baselines = beside(
        [
            ("GMACs alone", by_line(macs, seconds, split)),
            ("roofline alone", abs(roof / seconds - 1)),
            ("roofline x factor", by_factor(roof, seconds, split)),
            (
                "gradient boosting on four figures",
                by_boosting(np.array(figures), seconds, split, batches),
            ),
        ]
    )
    ratios = ", ".join(f"{value:.2f}" for value in np.quantile(seconds / roof, (0.05, 0.5, 0.95)))
    wanted = "< 10 %" if aim else ""
    return [
        Line(
            f"timm, RTX 3090, training, {layout}, 5-fold by module: median",
            percent(median),
            wanted,
            not aim or median < 0.10,
            baselines,
        ),
        Line(
            "  beside it",
            spelled(errors),
            "",
            True,
            f"{len(found)} of {published_rows} networks, {len(set(modules))} modules; {LITERATURE}",
        ),
        Line(
            "  90 % interval covers",
            percent(covered),
            "85..95 %" if aim else "",
            not aim or 0.85 <= covered <= 0.95,
            f"measured over roofline, 5th, 50th, 95th percentile: {ratios}",
        ),
    ]


def main() -> int:
    """Print the lines; return 1 when one misses its target."""
    parser = parser_for(__doc__, "datasets/timm", KEPT)
    parser.add_argument("--layout", choices=("nchw", "nhwc"), help="both, when it is not given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    layouts = [given.layout] if given.layout else ["nchw", "nhwc"]
    return print_lines(
        line
        for layout in layouts
        for line in lines(given.shared, layout, given.traces, given.jobs, aim=layout == "nchw")
    )


if __name__ == "__main__":
    sys.exit(main())
