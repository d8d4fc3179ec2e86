"""Accuracy of the predicted time of one operation on NeuSight's public measurements: one table.

    python scripts/proof/accuracy/accuracy_ops.py [--shared ../shared]

Conv2d and Linear, forward, fp32, cuDNN 8.9, on V100, T4 and A100 (sitar-lab/NeuSight, MIT). Two
questions: shapes that were not measured, on a GPU that was (five folds by shape, seeded); and a GPU
that was not measured. Kernel names and grids are not used, because they are unknown before running.

The program that measured the convolutions slowed down from row to row on all GPUs. The
first figures of a line, which have to meet the target, know nothing of the order of rows: neither
when learning nor when predicting. The second figures use it; "=": there is nothing to use. Every
line also shows a line through GMACs (fitted in logarithms on the same rows), the roofline alone,
and what NeuSight's summary has of Habitat and NeuSight. Needs perfctl[predict]. Exits 1 when a line
misses its target; without the measurements it says so and exits 0.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import accuracy_ops_model as ops
import numpy as np
from accuracy_ops_model import (
    Chip,
    Parts,
    Rows,
    Shared,
    bytes_moved,
    learn,
    seconds,
    sustained_rate,
)

from perfctl.orchestrator.predict.efficiency import (
    FitSample,
    FitSettings,
    fit_interval,
    learn_efficiency_model,
    split_into_folds,
)
from perfctl.orchestrator.predict.operations import Operation

SEED = 11
WITHIN_WANTED, LEFT_OUT_WANTED = 0.06, 0.15
LARGE = 5e10
"""FLOPs from which a Linear shows what a GPU sustains."""
SHRUNK = 0.6
"""Of what a shape missed by on other GPUs (in logarithms) this much is expected on the next."""
UNEVEN = FitSettings(power=8, rounds=250, leaves=31, rate=0.1, part=0.5, seed=SEED)
EVEN = FitSettings(power=2, rounds=250, leaves=31, rate=0.1, part=0.5, seed=SEED)


DEVICES = {
    "V100": Chip("Tesla V100-PCIE-32GB", 0, 0, 0, 250, 12),
    "T4": Chip("Tesla T4", 0, 0, 0, 70, 12),
    "A100": Chip("NVIDIA A100-PCIE-40GB", 0, 0, 0, 250, 7),
}
"""Board power and process by NVIDIA's data sheets; the rest is read from NeuSight's device_configs.
Of Linear."""
CONV_A100 = Chip("NVIDIA A100 80GB PCIe", 0, 0, 0, 300, 7)
"""Convolutions were measured on another A100."""

NOTE = """
*: mean errors for Linear that NeuSight's authors published (ASPLOS 2025, summary/perop.csv), over more GPUs, other shapes and
another split: on GPUs that were learned from (first table) and on others (second). -: they published none for convolutions."""  # noqa: E501


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
    """The measuring program slowed down from row to row."""


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
    return replace(
        chip, flops=given["SingleFLOPs"] * 1e9, bandwidth=given["Mem_Bw"] * 1e9, sms=given["Num_Sm"]
    )


def table(folder: Path, kind: str, chip: Chip) -> Table:
    path = folder / "op_samples" / f"{kind}_{chip.name.replace(' ', '_')}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        given = [
            (*(conv if kind == "conv" else linear)(row), float(row["Latency"]) / 1e3)
            for row in csv.DictReader(file)
        ]
    works = [(work, batch) for _, work, batch, _ in given]
    macs = np.array([batch * work.macs for work, batch in works])
    moved = np.array([bytes_moved(work, batch) for work, batch in works])
    return Table(
        chip,
        [shape for shape, *_ in given],
        np.array([each[-1] for each in given]),
        macs,
        np.array([ops.floor(work, batch, chip) for work, batch in works]),
        np.maximum(2 * macs / chip.flops, moved / chip.bandwidth),
        [ops.parts(work, batch, chip) for work, batch in works],
        np.array([ops.features(work, batch, chip) for work, batch in works]),
        kind == "conv",
    )


def linear(row: dict[str, str]) -> tuple[tuple[int, ...], Operation, int]:
    """B x M rows of N inputs, K outputs: M is the batch of single rows."""
    batch, inputs, outputs = int(row["B"]) * int(row["M"]), int(row["N"]), int(row["K"])
    work = Operation(
        "",
        "linear",
        1,
        inputs * outputs,
        inputs,
        outputs,
        inputs * outputs + outputs,
        1,
        outputs,
        inputs,
    )
    return (batch, inputs, outputs), work, batch


def conv(row: dict[str, str]) -> tuple[tuple[int, ...], Operation, int]:
    batch, inputs, outputs = (int(row[name]) for name in ("B", "Input_Channel", "Output_Channel"))
    kernel, size, stride, padding = (
        int(row[name]) for name in ("Kernel_Szie", "Input_Size", "Stride", "Padding")
    )
    side = (size + 2 * padding - kernel) // stride + 1
    depth, rows = inputs * kernel**2, side**2
    work = Operation(
        "",
        "conv",
        1,
        rows * depth * outputs,
        inputs * size**2,
        outputs * rows,
        depth * outputs + outputs,
        rows,
        outputs,
        depth,
        1,
        kernel**2,
        stride,
    )
    return (batch, inputs, outputs, kernel, size, stride, padding), work, batch


@dataclass(frozen=True, slots=True)
class Found:
    """Predicted and measured seconds, in the same order; ``covered``: inside the 90 % interval."""

    predicted: Any
    measured: Any
    covered: Any
    gmacs: Any
    roofline: Any


def joined(parts: list[Found]) -> Found:
    return Found(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Found.__slots__)
    )


def missed(predicted: Any, measured: Any) -> Any:
    return abs(predicted / measured - 1.0)


def line_through(macs: Any, taken: Any, asked: Any) -> Any:
    """log seconds = a + b log GMACs, least squares."""
    slope, level = np.polyfit(np.log(macs), np.log(taken), 1)
    return np.exp(level + slope * np.log(asked))


def reached(table: Table) -> float:
    """FLOP/s that large products run at: the 95th percentile."""
    rates = 2 * table.macs / table.seconds
    return float(np.quantile(rates[2 * table.macs > LARGE], 0.95))


def rows(table: Table, sustained: float, chosen: Any = None) -> Rows:
    chosen = range(len(table.seconds)) if chosen is None else chosen
    places = [float(i) for i in chosen] if table.drifts else None
    return Rows(
        [table.parts[i] for i in chosen],
        [float(table.seconds[i]) for i in chosen],
        sustained,
        places,
    )


def physical(shared: Shared, table: Table, sustained: float) -> Any:
    """Seconds by the shared coefficients, without the measuring program's drift."""
    return np.array([seconds(shared, part, sustained) for part in table.parts])


def drift(shared: Shared, table: Table) -> Any:
    return shared.drift * np.arange(len(table.seconds))


def within(table: Table, sustained: float, even: bool) -> Found:
    """Each fold predicted from the other four; ``even``: constrained so that seconds never fall
    with batch."""
    settings = EVEN if even else UNEVEN
    growing = len(ops.GROWING)
    names = (*ops.GROWING, *ops.FIXED, *(() if even else ops.UNEVEN), "physical")
    increasing = (*ops.GROWING, "physical") if even else ()
    predicted, gmacs = np.zeros(len(table.seconds)), np.zeros(len(table.seconds))
    fixed = table.features[:, : growing + len(ops.FIXED)] if even else table.features
    for train, test in split_into_folds(table.shapes, 5, SEED):
        shared = learn([rows(table, sustained, train)])
        extra = drift(shared, table)
        every = np.column_stack([fixed, physical(shared, table, sustained)])
        net = np.maximum(table.seconds - extra, table.seconds / 5)
        sample = FitSample(
            names,
            every[train],
            table.floors[train],
            net[train],
            [table.shapes[i] for i in train],
            increasing,
        )
        base = table.floors[test] ** (settings.power / 8)
        predicted[test] = (
            np.exp(learn_efficiency_model(sample, settings).predict(every[test])) * base
            + extra[test]
        )
        gmacs[test] = line_through(table.macs[train], table.seconds[train], table.macs[test])
    return Found(predicted, table.seconds, covered(table, predicted), gmacs, table.roofline)


def covered(table: Table, predicted: Any) -> Any:
    """Whether each row is inside an interval whose width was learned from the errors of the
    other folds."""
    misses = abs(np.log(predicted / table.seconds))
    inside = np.zeros(len(misses), dtype=bool)
    for train, test in split_into_folds(table.shapes, 5, SEED):
        groups = [table.shapes[i] for i in train]
        spread, low, high, quantile = fit_interval(
            table.features[train], misses[train], groups, UNEVEN
        )
        inside[test] = misses[test] <= quantile * np.clip(
            spread.predict(table.features[test]), low, high
        )
    return inside


def left_out(found: dict[str, Table], rates: dict[str, float], device: str, same: bool) -> Found:
    """``device`` from the two others; ``same``: with the time that the same shape took there, where
    it was measured."""
    table, others = found[device], [name for name in found if name != device]
    known = {DEVICES[name]: rates[name] for name in others}
    limits = {
        name: min(rates[name], rates[name] * found[name].chip.watts / DEVICES[name].watts)
        for name in others
    }
    limits[device] = sustained_rate(table.chip, known)
    shared = learn([rows(found[name], limits[name]) for name in others])
    place = drift(shared, table)
    predicted = physical(shared, table, limits[device]) + place
    ratios: dict[Any, list[float]] = {}
    spread: list[float] = []
    for name in others:
        theirs = found[name]
        guess = physical(shared, theirs, limits[name]) + drift(shared, theirs)
        for shape, ratio in zip(theirs.shapes, np.log(theirs.seconds / guess), strict=True):
            ratios.setdefault(shape, []).append(float(ratio))
        one = learn([rows(found[other], limits[other]) for other in others if other != name])
        spread += list(
            abs(np.log((physical(one, theirs, limits[name]) + drift(one, theirs)) / theirs.seconds))
        )
    if same:
        known_rows = np.array([shape in ratios for shape in table.shapes])
        moved = np.array(
            [np.mean(ratios[shape]) if shape in ratios else 0.0 for shape in table.shapes]
        )
        predicted = predicted * np.exp(SHRUNK * moved)
    else:
        known_rows = np.ones(len(table.seconds), dtype=bool)
    inside = abs(np.log(predicted / table.seconds)) <= np.quantile(spread, 0.9)
    macs = np.concatenate([found[name].macs for name in others])
    taken = np.concatenate([found[name].seconds for name in others])
    gmacs = line_through(macs, taken, table.macs)
    return Found(
        *(each[known_rows] for each in (predicted, table.seconds, inside, gmacs, table.roofline))
    )


@dataclass(frozen=True, slots=True)
class Both:
    """Of the same rows: predicted without the order of measuring and, where the measuring program
    drifted, with it."""

    plain: Found
    ordered: Found

    @property
    def drifts(self) -> bool:
        return self.ordered is not self.plain


def without_order(table: Table) -> Table:
    return replace(table, drifts=False)


def within_both(table: Table, sustained: float, even: bool = False) -> Both:
    plain = within(without_order(table), sustained, even)
    return Both(plain, within(table, sustained, even) if table.drifts else plain)


def left_out_both(
    found: dict[str, Table], rates: dict[str, float], device: str, same: bool
) -> Both:
    plain = left_out(
        {name: without_order(table) for name, table in found.items()}, rates, device, same
    )
    return Both(plain, left_out(found, rates, device, same) if found[device].drifts else plain)


def joined_both(parts: list[Both]) -> Both:
    return Both(joined([part.plain for part in parts]), joined([part.ordered for part in parts]))


def published_means(folder: Path) -> dict[str, tuple[float, float]]:
    """Who -> mean error for Linear (FC in perop.csv) on GPUs that they learned from, and on others;
    {} without the file."""
    path = folder / "summary" / "perop.csv"
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        found = list(csv.reader(file))
    near, far = (place for place, name in enumerate(found[1]) if name == "FC")
    return {
        row[0]: (float(row[near]) / 100, float(row[far]) / 100)
        for row in found[2:]
        if row and row[0]
    }


def heading(what: str) -> str:
    """Two lines."""
    over = (
        f"{'':52}{'without the order':>24}{'with the order':>24}{'median (*: mean) of others':>41}"
    )
    three = f"{'median':>8}{'p90':>8}{'in 90 %':>8}"
    return (
        f"{over}\n{what:46}{'rows':>6}{three}{three}   "
        f"{'GMACs':>8}{'roofline':>10}{'Habitat*':>10}{'NeuSight*':>10}  wanted"
    )


def shown(
    what: str, both: Both, wanted: float | None, theirs: Mapping[str, float] | None = None
) -> bool:
    """Print one line; return whether the figure without the order of rows meets the target.
    ``theirs``: mean errors by who."""
    plain = both.plain
    median = float(np.median(missed(plain.predicted, plain.measured)))
    gmacs, roofline = (
        np.median(missed(each, plain.measured)) for each in (plain.gmacs, plain.roofline)
    )
    good = wanted is None or median < wanted
    mark = "" if wanted is None else f"< {wanted:.0%}  {'yes' if good else 'NO'}"
    ordered = _three(both.ordered) if both.drifts else f"{'=':>8}" * 3
    others = "".join(
        f"{theirs[who]:>10.1%}" if theirs else f"{'-':>10}" for who in ("Habitat", "NeuSight")
    )
    print(
        f"{what:46}{len(plain.measured):>6}{_three(plain)}{ordered}   "
        f"{gmacs:>8.1%}{roofline:>10.1%}{others}  {mark}".rstrip(),
        flush=True,
    )
    return good


def _three(found: Found) -> str:
    error = missed(found.predicted, found.measured)
    return f"{np.median(error):>8.1%}{np.quantile(error, 0.9):>8.1%}{found.covered.mean():>8.1%}"


Make = Callable[[str, str], Both]
"""Of a kind and a device."""


def block(
    every: Mapping[str, Any],
    made: Make,
    said: str,
    wanted: float | None,
    theirs: Mapping[str, float],
) -> bool:
    """For each device a line for each kind of operation, and one for both together, which has
    the target."""
    good = True
    for device in DEVICES:
        parts = {kind: made(kind, device) for kind in every}
        for kind, part in parts.items():
            shown(f"{device}, {kind}{said}", part, None, theirs if kind == "linear" else None)
        good &= shown(f"{device}, both{said}", joined_both(list(parts.values())), wanted)
    return good


def main() -> int:
    """Print the table; return 1 when a line misses its target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = Path(os.environ.get("PERFCTL_SHARED", Path(__file__).resolve().parents[4] / "shared"))
    parser.add_argument(
        "--shared", type=Path, default=shared, help="folder that holds datasets/neusight"
    )
    folder = parser.parse_args().shared / "datasets" / "neusight"
    if not (folder / "op_samples").is_dir():
        print(
            f"No measurements in {folder / 'op_samples'}: operations are left out; say where with "
            "--shared"
        )
        return 0
    begun = time.process_time()
    every = {kind: tables(folder, kind) for kind in ("conv", "linear")}
    rates = {name: reached(table) for name, table in every["linear"].items()}
    means = published_means(folder)
    near, far = ({who: pair[place] for who, pair in means.items()} for place in (0, 1))
    print(heading("Within a device: five folds by shape"))
    good = block(
        every,
        lambda kind, device: within_both(every[kind][device], rates[device]),
        "",
        WITHIN_WANTED,
        near,
    )
    block(
        every,
        lambda kind, device: within_both(every[kind][device], rates[device], even=True),
        ", never falling with batch",
        None,
        near,
    )
    print("\n" + heading("A device left out, learned from the two others"))
    for same, said, wanted in (
        (False, ", no time of the shape", None),
        (True, ", shape timed elsewhere", LEFT_OUT_WANTED),
    ):
        good &= block(
            every,
            lambda kind, device, same=same: left_out_both(every[kind], rates, device, same),
            said,
            wanted,
            far,
        )
    print(NOTE)
    print(f"{time.process_time() - begun:.0f} s of CPU")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
