"""Accuracy of predicted steps for networks measured on a CPU by ``perfctl bench``:
tests/data/bench-cpu.

    python scripts/proof/accuracy/accuracy_bench.py [--file bench.json] [--seed 3]

The split is fixed: five folds by model (no batch size of a held-out model is seen), then each
family left out. Each figure is shown with, on the same split, a line through GMACs, the roofline as
it is, and the roofline times one factor.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from accuracy_lines import Line, parser_for, percent, print_lines
from accuracy_steps import beside, by_factor, by_line, held_out, leaving_out, spelled
from bench_steps import convert_bench_point

from perfctl.orchestrator.counts.hardware.machines import Machine, build_measured_device
from perfctl.orchestrator.predict.efficiency import split_groups_into_folds
from perfctl.orchestrator.predict.fit import StepTable, build_fit_arrays
from perfctl.orchestrator.predict.operations import StepMeasurement
from perfctl.orchestrator.predict.step_parts import compute_step_floor_seconds
from perfctl.parsers.own.bench import read_bench_points
from perfctl.workloads.models.plan import plan_model

DATA = Path(__file__).resolve().parents[3] / "tests" / "data" / "bench-cpu"
SEED = 3
LITERATURE = (
    "published: NeuSight 0.1 to 28 % on other networks and GPUs (neusight/summary/nvidia_train.csv)"
)


def measured(path: Path) -> tuple[list[StepMeasurement], Machine]:
    """The records of a bench file and the machine's measured peaks from the file beside it."""
    records = [
        convert_bench_point(point, plan_model(point.model)) for point in read_bench_points(path)
    ]
    machine = build_measured_device(
        json.loads(path.with_name("peaks.json").read_text(encoding="utf-8"))
    ).machine
    return records, machine


def lines(path: Path = DATA / "bench.json", seed: int = SEED) -> list[Line]:
    """The table's lines; another seed makes other folds."""
    records, machine = measured(path)
    given = build_fit_arrays(records, machine)
    families = [record.case.family for record in records]
    roof = np.array([compute_step_floor_seconds(record.case, machine) for record in records])
    macs = np.array([record.case.forward_macs_of_batch for record in records])
    models = len(set(given.groups))
    print(
        f"{path.name}: {len(records)} steps of {models} networks, "
        f"{', '.join(sorted(set(families)))}; {machine.name}"
    )
    return [*_by_model(given, macs, roof, seed), *_by_family(given, families, macs, roof)]


def _baselines(given: StepTable, macs: Any, roof: Any, split: Any) -> str:
    return beside(
        [
            ("GMACs alone", by_line(macs, given.seconds, split)),
            ("roofline alone", abs(roof / given.seconds - 1)),
            ("roofline x factor", by_factor(roof, given.seconds, split)),
        ]
    )


def _by_model(given: StepTable, macs: Any, roof: Any, seed: int) -> list[Line]:
    split = list(split_groups_into_folds(given.groups, 5, seed))
    found = held_out(given, split)
    errors, covered = found.errors(given.seconds), found.coverage(given.seconds)
    median, high = float(np.median(errors)), float(np.quantile(errors, 0.9))
    return [
        Line(
            "CPU bench, 5-fold by model: median error",
            percent(median),
            "< 10 %",
            median < 0.10,
            _baselines(given, macs, roof, split),
        ),
        Line("  90th percentile", percent(high), "< 25 %", high < 0.25, LITERATURE),
        Line(
            "  90 % interval covers",
            percent(covered),
            "85..95 %",
            0.85 <= covered <= 0.95,
            f"median width: {_width(found)}",
        ),
    ]


def _width(found: Any) -> str:
    return (
        f"{np.median(found.low / found.seconds):.2f} to "
        f"{np.median(found.high / found.seconds):.2f} of the prediction"
    )


def _by_family(given: StepTable, families: list[str], macs: Any, roof: Any) -> list[Line]:
    split = leaving_out(families)
    found = held_out(given, split)
    errors = found.errors(given.seconds)
    each = {name: errors[np.array(families) == name] for name in sorted(set(families))}
    median = float(np.median(errors))
    note = "; ".join(f"{name} {percent(float(np.median(some)))}" for name, some in each.items())
    return [
        Line(
            "CPU bench, each family left out: median error",
            percent(median),
            "< 25 %",
            median < 0.25,
            note,
        ),
        Line("  beside it", spelled(errors), "", True, _baselines(given, macs, roof, split)),
        Line(
            "  90 % interval covers",
            percent(found.coverage(given.seconds)),
            "",
            True,
            f"median width: {_width(found)}; outside of what was measured: "
            f"{int((~found.inside).sum())} of {len(errors)}",
        ),
    ]


def main() -> int:
    """Print the lines; return 1 when one misses its target."""
    parser = parser_for(__doc__)
    parser.add_argument("--file", type=Path, default=DATA / "bench.json")
    parser.add_argument("--seed", type=int, default=SEED, help="of the folds; the table's is 3")
    asked = parser.parse_args()
    return print_lines(lines(asked.file, asked.seed))


if __name__ == "__main__":
    sys.exit(main())
