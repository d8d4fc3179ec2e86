"""Accuracy of the predicted time of one operation on NeuSight's public measurements: one table.

    python scripts/accuracy/accuracy_ops.py [--shared ../shared]

Conv2d and Linear, forward, fp32, cuDNN 8.9, on V100, T4 and A100 (sitar-lab/NeuSight, MIT). Two questions: shapes that
were not measured, on a GPU that was (five folds by shape, seeded); and a GPU that was not measured. Kernel names and grids
are not used, because they are unknown before running. Every line also shows a line through GMACs (fitted in
logarithms on the same rows) and the roofline alone. Needs perfctl[predict]. Exits 1 when a line misses its
target; without the measurements it says so and exits 0.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accuracy_ops_model as ops
import numpy as np
from accuracy_ops_data import DEVICES, Table, literature, tables
from accuracy_ops_model import Rows, Shared, learn, seconds, sustained_rate

from perfctl.orchestrator.analyse.predict.trees import totals
from perfctl.orchestrator.analyse.predict.trees_fit import Sample, Settings, folds, interval, trees_of

SEED = 11
WITHIN_WANTED, LEFT_OUT_WANTED = 0.06, 0.15
LARGE = 5e10
"""FLOPs from which a Linear shows what a GPU sustains."""
SHRUNK = 0.6
"""Of what a shape missed by on other GPUs (in logarithms) this much is expected on the next."""
UNEVEN = Settings(power=8, rounds=250, leaves=31, rate=0.1, part=0.5, seed=SEED)
EVEN = Settings(power=2, rounds=250, leaves=31, rate=0.1, part=0.5, seed=SEED)


@dataclass(frozen=True, slots=True)
class Found:
    """Predicted and measured seconds, in the same order; ``covered``: inside the 90 % interval."""

    predicted: Any
    measured: Any
    covered: Any
    gmacs: Any
    roofline: Any


def joined(parts: list[Found]) -> Found:
    return Found(*(np.concatenate([getattr(part, name) for part in parts]) for name in Found.__slots__))


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
    return Rows([table.parts[i] for i in chosen], [float(table.seconds[i]) for i in chosen], sustained, places)


def physical(shared: Shared, table: Table, sustained: float) -> Any:
    """Seconds by the shared coefficients, without the measuring program's drift."""
    return np.array([seconds(shared, part, sustained) for part in table.parts])


def drift(shared: Shared, table: Table) -> Any:
    return shared.drift * np.arange(len(table.seconds))


def within(table: Table, sustained: float, even: bool, drifting: bool = True) -> Found:
    """Each fold predicted from the other four; ``even``: constrained so that seconds never fall with batch."""
    settings = EVEN if even else UNEVEN
    growing = len(ops.GROWING)
    names = (*ops.GROWING, *ops.FIXED, *(() if even else ops.UNEVEN), "physical")
    increasing = (*ops.GROWING, "physical") if even else ()
    predicted, gmacs = np.zeros(len(table.seconds)), np.zeros(len(table.seconds))
    fixed = table.features[:, : growing + len(ops.FIXED)] if even else table.features
    for train, test in folds(table.shapes, 5, SEED):
        shared = learn([rows(table, sustained, train)])
        extra = drift(shared, table) if drifting else np.zeros(len(table.seconds))
        every = np.column_stack([fixed, physical(shared, table, sustained)])
        net = np.maximum(table.seconds - extra, table.seconds / 5)
        sample = Sample(
            names, every[train], table.floors[train], net[train], [table.shapes[i] for i in train], increasing
        )
        base = table.floors[test] ** (settings.power / 8)
        predicted[test] = np.exp(totals(trees_of(sample, settings), every[test])) * base + extra[test]
        gmacs[test] = line_through(table.macs[train], table.seconds[train], table.macs[test])
    return Found(predicted, table.seconds, covered(table, predicted), gmacs, table.roofline)


def covered(table: Table, predicted: Any) -> Any:
    """Whether each row is inside an interval whose width was learned from the errors of the other folds."""
    misses = abs(np.log(predicted / table.seconds))
    inside = np.zeros(len(misses), dtype=bool)
    for train, test in folds(table.shapes, 5, SEED):
        groups = [table.shapes[i] for i in train]
        trees, low, high, quantile = interval(table.features[train], misses[train], groups, UNEVEN)
        inside[test] = misses[test] <= quantile * np.clip(totals(trees, table.features[test]), low, high)
    return inside


def left_out(found: dict[str, Table], rates: dict[str, float], device: str, same: bool) -> Found:
    """``device`` from the two others; ``same``: with the time that the same shape took there, where it was measured."""
    table, others = found[device], [name for name in found if name != device]
    known = {DEVICES[name]: rates[name] for name in others}
    limits = {name: min(rates[name], rates[name] * found[name].chip.watts / DEVICES[name].watts) for name in others}
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
        spread += list(abs(np.log((physical(one, theirs, limits[name]) + drift(one, theirs)) / theirs.seconds)))
    if same:
        known_rows = np.array([shape in ratios for shape in table.shapes])
        moved = np.array([np.mean(ratios[shape]) if shape in ratios else 0.0 for shape in table.shapes])
        predicted = predicted * np.exp(SHRUNK * moved)
    else:
        known_rows = np.ones(len(table.seconds), dtype=bool)
    inside = abs(np.log(predicted / table.seconds)) <= np.quantile(spread, 0.9)
    macs = np.concatenate([found[name].macs for name in others])
    taken = np.concatenate([found[name].seconds for name in others])
    gmacs = line_through(macs, taken, table.macs)
    return Found(*(each[known_rows] for each in (predicted, table.seconds, inside, gmacs, table.roofline)))


def shown(what: str, found: Found, wanted: float | None) -> bool:
    """Print one line; return whether it meets its target."""
    error = missed(found.predicted, found.measured)
    median = float(np.median(error))
    gmacs, roofline = (np.median(missed(each, found.measured)) for each in (found.gmacs, found.roofline))
    good = wanted is None or median < wanted
    mark = "" if wanted is None else f"< {wanted:.0%}  {'yes' if good else 'NO'}"
    quantiles = f"{len(error):>6}{median:>8.1%}{np.quantile(error, 0.9):>8.1%}{found.covered.mean():>8.1%}"
    print(f"{what:58}{quantiles}{gmacs:>10.1%}{roofline:>10.1%}  {mark}".rstrip(), flush=True)
    return good


def table_within(every: dict[str, dict[str, Table]], rates: dict[str, float]) -> bool:
    good = True
    for device in DEVICES:
        parts = {}
        for kind, found in every.items():
            parts[kind] = within(found[device], rates[device], even=False)
            shown(f"{device}, {kind}", parts[kind], None)
        good &= shown(f"{device}, both", joined(list(parts.values())), WITHIN_WANTED)
        plain = within(every["conv"][device], rates[device], even=False, drifting=False)
        shown(f"{device}, conv, the program's drift not known", plain, None)
        even = [within(found[device], rates[device], even=True) for found in every.values()]
        shown(f"{device}, both, never falling with batch", joined(even), None)
    return good


def table_left_out(every: dict[str, dict[str, Table]], rates: dict[str, float]) -> bool:
    good = True
    for device in DEVICES:
        for same in (False, True):
            said = "shapes measured on another GPU" if same else "no time of the shape used"
            parts = {kind: left_out(found, rates, device, same) for kind, found in every.items()}
            for kind, part in parts.items():
                shown(f"{device}, {kind}, {said}", part, None)
            both = shown(f"{device}, both, {said}", joined(list(parts.values())), LEFT_OUT_WANTED if same else None)
            good &= both
    return good


def main() -> int:
    """Print the table; return 1 when a line misses its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("PERFCTL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    parser.add_argument("--shared", type=Path, default=shared, help="folder that holds datasets/neusight")
    folder = parser.parse_args().shared / "datasets" / "neusight"
    if not (folder / "op_samples").is_dir():
        print(f"No measurements in {folder / 'op_samples'}: operations are left out; say where with --shared")
        return 0
    begun = time.process_time()
    every = {kind: tables(folder, kind) for kind in ("conv", "linear")}
    rates = {name: reached(table) for name, table in every["linear"].items()}
    heading = f"{'rows':>6}{'median':>8}{'p90':>8}{'in 90 %':>8}{'GMACs':>10}{'roofline':>10}  wanted"
    print(f"{'Within a device: five folds by shape':58}{heading}")
    good = table_within(every, rates)
    print(f"\n{'A device left out, learned from the two others':58}{heading}")
    good &= table_left_out(every, rates)
    print("\n" + literature(folder))
    print(f"{time.process_time() - begun:.0f} s of CPU")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
