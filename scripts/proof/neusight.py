"""Accuracy of families and predicted grids from kernel names, on NeuSight's public measurements.

    python scripts/proof/neusight.py [--shared ../shared] [--rows N] [--csv FILE]

One row of the data is one operation (a Conv2d or Linear, forward, fp32, cuDNN 8.9) with the kernels
that served it. A row's family is right when every one of its kernels is recognised, together they
make an algorithm that can serve the operation (a product for Linear; implicit or explicit GEMM,
Winograd or FFT for a convolution, Winograd only with a filter of 3 x 3 and stride 1), and the
longest kernel has its role in it. A row's grid matches when the thread blocks predicted from the
shape and the kernel's name were launched. The predicted multiplies are summed and compared with
those on paper; --csv writes them for every row. Exits 1 when a line misses its target, 2 without
the measurements.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from perfctl.orchestrator.counts.kernels.grids import (
    ConvShape,
    GemmShape,
    TilePrediction,
    predict_forward_tiles,
)
from perfctl.orchestrator.counts.kernels.names import (
    Algorithm,
    choose_main_layer_algorithm,
    recognise_kernel,
)

FAMILIES_WANTED, GRIDS_WANTED = 0.995, 0.999
VERIFIED = ("implicit gemm", "winograd fused", "winograd not fused", "gemm")
ALLOWED = {
    "linear": {"gemm": {"gemm", "copy"}},
    "conv": {
        "conv": {"conv", "layout"},
        "winograd": {"winograd", "gemm", "layout"},
        "fft": {"fft", "gemm", "layout"},
    },
}
"""Operation, the algorithms that can serve it, and the families that their kernels have (Linear
copies a strided input first)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One operation and the kernels that served it."""

    operation: str
    longest: str
    kernels: tuple[str, ...]
    grid: tuple[int, int, int]
    """Of the longest kernel."""
    shape: ConvShape | GemmShape
    stride: int


@dataclass
class Tally:
    """What was found in one file."""

    rows: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    methods: Counter[str] = field(default_factory=Counter)
    matched: Counter[str] = field(default_factory=Counter)
    predicted: Counter[str] = field(default_factory=Counter)
    multiplies: Counter[str] = field(default_factory=Counter)
    paper: Counter[str] = field(default_factory=Counter)
    factors: dict[str, list[float]] = field(default_factory=dict)
    off: list[str] = field(default_factory=list)


def rows(path: Path) -> Iterator[Row]:
    """The measurements of one file."""
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            kernels = tuple(name for part in row["Kernels"].split(";") if (name := part.strip()))
            grid = (int(row["Grid x"]), int(row["Grid y"]), int(row["Grid z"]))
            shape, stride = _linear(row) if row["OPName"] == "linear" else _conv(row)
            yield Row(row["OPName"], row["Kernel Name"], kernels, grid, shape, stride)


def _linear(row: dict[str, str]) -> tuple[GemmShape, int]:
    """B x M rows of N inputs, K outputs."""
    return GemmShape(int(row["B"]) * int(row["M"]), int(row["K"]), int(row["N"])), 1


def _conv(row: dict[str, str]) -> tuple[ConvShape, int]:
    kernel, size, stride = int(row["Kernel_Szie"]), int(row["Input_Size"]), int(row["Stride"])
    out = (size + 2 * int(row["Padding"]) - kernel) // stride + 1
    channels = int(row["Input_Channel"]), int(row["Output_Channel"])
    return ConvShape(int(row["B"]), *channels, out, out, kernel, kernel), stride


def right_family(row: Row) -> bool:
    """By the rules in the docstring of this file."""
    layer = choose_main_layer_algorithm(row.kernels)
    parts = [recognise_kernel(name) for name in row.kernels]
    allowed = ALLOWED[row.operation].get(layer.family or "")
    if allowed is None or any(part.family not in allowed for part in parts):
        return False
    if layer.family == "winograd":
        assert isinstance(row.shape, ConvShape)
        return row.shape.kernel_h == 3 and row.stride == 1 and layer.winograd is not None
    return _has_its_part(recognise_kernel(row.longest), layer)


def _has_its_part(longest: Algorithm, layer: Algorithm) -> bool:
    if layer.family == "fft":
        return longest.family in ("fft", "gemm")
    return longest.family == layer.family


def predicted(row: Row) -> TilePrediction | None:
    """Return the tiles of the longest kernel, if it is the one that multiplies."""
    prediction = predict_forward_tiles(recognise_kernel(row.longest), row.grid, row.shape)
    if prediction is not None and prediction.family == "gemm" and row.operation == "conv":
        return None  # a product between Fourier transforms: complex numbers, no formula
    return prediction


def tally(path: Path, limit: int | None = None) -> Tally:
    """Families and grids of one file, or of its first ``limit`` rows."""
    found = Tally()
    for row in islice(rows(path), limit):
        found.rows += 1
        found.methods[choose_main_layer_algorithm(row.kernels).method or "not recognised"] += 1
        if right_family(row):
            found.right += 1
        else:
            found.wrong.append(" + ".join(row.kernels))
        prediction = predicted(row)
        if prediction is not None:
            _add(found, row, prediction)
    return found


def _add(found: Tally, row: Row, prediction: TilePrediction) -> None:
    kind = prediction.family
    found.predicted[kind] += 1
    if not prediction.tilings:
        found.off.append(f"{row.longest[:80]} {row.grid}: {kind} of {row.shape}")
        return
    multiplies = prediction.tilings[0].padded_macs
    found.matched[kind] += 1
    found.multiplies[kind] += multiplies
    found.paper[kind] += row.shape.macs
    found.factors.setdefault(kind, []).append(multiplies / row.shape.macs)


def together(tallies: list[Tally]) -> Tally:
    """All files as one."""
    whole = Tally()
    for one in tallies:
        whole.rows, whole.right = whole.rows + one.rows, whole.right + one.right
        for name in ("methods", "matched", "predicted", "multiplies", "paper"):
            getattr(whole, name).update(getattr(one, name))
        for kind, factors in one.factors.items():
            whole.factors.setdefault(kind, []).extend(factors)
        whole.wrong += one.wrong
        whole.off += one.off
    return whole


def files(shared: Path) -> list[Path]:
    """The measurements, in order of name; empty when there are none."""
    return sorted((shared / "datasets/neusight/op_samples").glob("*.csv"))


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    options.add_argument(
        "--shared", type=Path, default=Path(__file__).resolve().parents[3] / "shared"
    )
    options.add_argument("--csv", type=Path, help="write every prediction to this file")
    options.add_argument("--rows", type=int, help="only the first N rows of each file")
    given = options.parse_args()
    paths = files(given.shared)
    if not paths:
        print(
            f"no measurements in {given.shared}/datasets/neusight/op_samples; say where with "
            "--shared"
        )
        return 2
    tallies = [tally(path, given.rows) for path in paths]
    print(f"{'file':38} {'rows':>6} {'family right':>13} {'grids predicted':>16} {'matched':>8}")
    for path, one in zip(paths, tallies, strict=True):
        print(
            f"{path.name:38} {one.rows:6,} {one.right / one.rows:13.3%} "
            f"{one.predicted.total():16,} {one.matched.total():8,}"
        )
    if given.csv:
        print(f"\nWrote {given.csv}: {write(paths, given.csv, given.rows):,} predictions")
    return _summary(together(tallies))


def write(paths: list[Path], target: Path, limit: int | None) -> int:
    """Every prediction as a line of CSV; the number of them."""
    written = 0
    with target.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(
            (
                "file",
                "row",
                "kernel",
                "grid",
                "formula",
                "matches",
                "multiplies",
                "paper",
                "factor",
            )
        )
        for path in paths:
            for number, row in enumerate(islice(rows(path), limit)):
                prediction = predicted(row)
                if prediction is not None:
                    grid = "x".join(map(str, row.grid))
                    cut = next(iter(prediction.tilings), None)
                    lines.writerow(
                        (
                            path.name,
                            number,
                            row.longest,
                            grid,
                            prediction.family,
                            cut is not None,
                            cut.padded_macs if cut else None,
                            row.shape.macs,
                            round(cut.padded_macs / row.shape.macs, 4) if cut else None,
                        )
                    )
                    written += 1
    return written


def _summary(whole: Tally) -> int:
    print(
        "\nalgorithms: "
        + ", ".join(f"{method} {count:,}" for method, count in whole.methods.most_common())
    )
    print(
        f"\n{'grid formula':20} {'rows':>6} {'matched':>8} {'share':>9} "
        f"{'multiplies predicted':>26} {'multiply-adds on paper':>26} {'factor: median':>15} "
        f"{'least':>6} {'most':>6}"
    )
    for kind in sorted(whole.predicted):
        factors = whole.factors[kind]
        print(
            f"{kind:20} {whole.predicted[kind]:6,} {whole.matched[kind]:8,} "
            f"{whole.matched[kind] / whole.predicted[kind]:9.3%} {whole.multiplies[kind]:26,} "
            f"{whole.paper[kind]:26,} {statistics.median(factors):15.2f} {min(factors):6.2f} "
            f"{max(factors):6.2f}"
        )
    families = whole.right / whole.rows
    grids = sum(whole.matched[kind] for kind in VERIFIED) / sum(
        whole.predicted[kind] for kind in VERIFIED
    )
    print(
        f"\nfamily right: {whole.right:,} of {whole.rows:,} rows, {families:.3%} (wanted "
        f"{FAMILIES_WANTED:.1%})"
    )
    print(f"grid matched: {grids:.3%} of the rows with a formula (wanted {GRIDS_WANTED:.1%})")
    for title, lines in (("family wrong", whole.wrong), ("grid not matched", whole.off)):
        for line in lines[:5]:
            print(f"{title}: {line}")
    return 0 if families >= FAMILIES_WANTED and grids >= GRIDS_WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
