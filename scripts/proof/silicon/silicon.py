"""Derived counts against hardware counters: how many launches of an A100 with known shapes come
out right.

    python scripts/proof/silicon/silicon.py [--data DIR] [--reports DIR] [--wrong N]

DIR holds linear.csv and conv2d.csv: one row a launch, with kernel name, FFMA, FMUL, FADD and the
layer's shape, as in ``../shared/datasets/a100_operators``. Its rows have no grid, so tiles follow
from shape and name, and FMUL (one for each value, slice and part of a sum) says how often a sum is
split. It does not say either whether a product adds a bias: a product that does reads its output
first, which shows in the bytes read from DRAM (without dram_bytes all are taken to add one). A row
is right when FFMA is within 2 % of the counter. Launches without fp32 work (copies, offsets) are
left out. The last two columns are the share of right rows with an even and an odd number. Rules of
convolutions were fixed on the even rows; those of Linear layers were read off all.
``silicon_reports.py`` beside this file prints a second table before it: ncu reports of other chips,
if their folder exists. Exits 1 when fewer than 97 % of all rows are right, 2 without the data.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from perfctl.orchestrator.counts.derived.records import DerivedInstructions, Launch, LaunchWork
from perfctl.orchestrator.counts.derived.rules import derive_instructions
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape, round_up
from perfctl.orchestrator.counts.kernels.names import recognise_kernel

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT.parent / "shared" / "datasets" / "a100_operators"
REPORTS = ROOT.parent / "shared" / "reports"
VERIFIED = ROOT / "orchestrator" / "counts" / "derived" / "verified.json"
NEAR, WANTED = 0.02, 0.97
CHIP = "an A100 (CUDA 11.4)"
L2_BYTES = 40e6
"""Of an A100: what a launch writes beyond it reaches DRAM while the launch still runs."""
LINE = 128
"""Bytes that are read together."""


@dataclass(frozen=True, slots=True)
class Row:
    """One launch: what was counted, and what its rule says."""

    number: int
    name: str
    shape: GemmShape | ConvShape
    ffma: float
    fp32: float
    derived: DerivedInstructions | None

    @property
    def family(self) -> str:
        return (
            self.derived.family
            if self.derived
            else f"no rule: {recognise_kernel(self.name).method or self.name[:40]}"
        )

    @property
    def error(self) -> float | None:
        """Of FFMA; None without a rule."""
        return (
            None
            if self.derived is None or self.derived.ffma is None
            else self.derived.ffma / self.ffma - 1
        )

    @property
    def whole_error(self) -> float | None:
        """Of FADD + FMUL + 2 FFMA."""
        fp32 = self.derived.fp32_flops if self.derived else None
        return None if fp32 is None else fp32 / self.fp32 - 1

    @property
    def has_ledger(self) -> float:
        return self.shape.macs / self.ffma - 1


def near(error: float | None) -> bool:
    return error is not None and abs(error) <= NEAR


def rows(data: Path) -> Iterator[Row]:
    """The launches that do fp32 work."""
    for file in ("linear.csv", "conv2d.csv"):
        with (data / file).open(newline="", encoding="utf-8") as lines:
            for line in csv.DictReader(lines):
                ffma, fmul, fadd = (float(line[name]) for name in ("ffma", "fmul", "fadd"))
                if not ffma:
                    continue
                shape = linear(line) if file == "linear.csv" else conv(line)
                launch = Launch(line["kernel"], scale=fmul)
                work = LaunchWork(
                    shape, onto=isinstance(shape, GemmShape) and adds_bias(line, shape)
                )
                yield Row(
                    int(line["row"]),
                    line["kernel"],
                    shape,
                    ffma,
                    2 * ffma + fmul + fadd,
                    derive_instructions(launch, work),
                )


def adds_bias(line: dict[str, str], shape: GemmShape) -> bool:
    """True where DRAM delivered the product's output, too, beside what it multiplies: it is added
    to what is there."""
    if not line.get("dram_bytes"):
        return True
    output = 4 * shape.m * shape.n
    more = (
        float(line["dram_bytes"])
        - round_up(4 * shape.k * shape.m, LINE)
        - round_up(4 * shape.k * shape.n, LINE)
    )
    return more > 0.95 * output + max(output - L2_BYTES, 0)


def linear(line: dict[str, str]) -> GemmShape:
    return GemmShape(int(line["m"]), int(line["n"]), int(line["k"]))


def conv(line: dict[str, str]) -> ConvShape:
    read = {name: int(value) for name, value in line.items() if value.isdecimal()}
    height, width = (
        (read[size] + 2 * read[f"pad_{short}"] - read[f"kernel_{short}"]) // read[f"stride_{short}"]
        + 1
        for size, short in (("height", "h"), ("width", "w"))
    )
    return ConvShape(
        read["batch"],
        read["in_channels"],
        read["out_channels"],
        height,
        width,
        read["kernel_h"],
        read["kernel_w"],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold derived counts against hardware counters.")
    parser.add_argument(
        "--data", type=Path, default=DATA, help="folder with linear.csv and conv2d.csv"
    )
    parser.add_argument(
        "--reports",
        type=Path,
        default=REPORTS,
        help="folder with ncu reports, for the second table",
    )
    parser.add_argument(
        "--wrong",
        type=int,
        default=0,
        help="also print that many rows that are off by more than 2 %%",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="store the errors, which perfctl states beside derived counts",
    )
    asked = parser.parse_args()
    if not all((asked.data / name).is_file() for name in ("linear.csv", "conv2d.csv")):
        print(
            f"silicon: {asked.data} has no linear.csv and conv2d.csv; give their folder with "
            "--data",
            file=sys.stderr,
        )
        return 2
    second_table(asked.reports, write=asked.write)
    found = list(rows(asked.data))
    print(
        f"{'family':<28}{'rows':>7}{'rule':>7}{'FFMA':>7}{'fp32':>7}{'paper':>7}{'worst':>9}"
        f"{'even':>8}{'odd':>8}   within 2 %: FFMA, all fp32, paper"
    )
    families = defaultdict(list)
    for row in found:
        families[row.family].append(row)
    for family, mine in sorted(families.items(), key=lambda item: -len(item[1])):
        line(family, mine)
    line("all", found)
    wrong = [row for row in found if not near(row.error)]
    for row in sorted(wrong, key=lambda row: -abs(row.error or 9))[: asked.wrong]:
        error = "no rule" if row.error is None else f"{row.error:+.1%}"
        print(
            f"    {error:>8}  {row.shape}  {row.name[:70]}  "
            f"{row.derived.rule if row.derived else ''}"
        )
    if asked.write:
        keep(facts(families))
    right = len(found) - len(wrong)
    print(f"{right} of {len(found)} rows within 2 %")
    return int(right < WANTED * len(found))


def keep(errors: dict[str, dict[str, object]]) -> None:
    """Put the errors of these families in place of those that perfctl stated."""
    others = json.loads(VERIFIED.read_text(encoding="utf-8"))
    VERIFIED.write_text(
        json.dumps(dict(sorted((others | errors).items())), indent=2) + "\n", encoding="utf-8"
    )


def second_table(folder: Path, *, write: bool) -> None:
    """The table of reports; a line where there are none."""
    import silicon_reports  # beside this file, which is run as a script

    if not folder.is_dir():
        print(f"No second table: there is no {folder}")
        return
    silicon_reports.print_table(folder)
    if write:
        keep(silicon_reports.facts(folder))


def line(family: str, mine: list[Row]) -> None:
    ruled = [abs(row.error) for row in mine if row.error is not None]
    cells = [
        len(mine),
        len(ruled),
        sum(near(row.error) for row in mine),
        sum(near(row.whole_error) for row in mine),
    ]
    cells.append(sum(near(row.has_ledger) for row in mine))
    halves = []
    for half in (0, 1):
        rows = [near(row.error) for row in mine if row.number % 2 == half]
        halves.append(f"{f'{sum(rows) / len(rows):.1%}' if rows else '-':>8}")
    print(
        f"{family:<28}{''.join(f'{cell:>7,}' for cell in cells)}"
        f"{f'{max(ruled):.1%}' if ruled else '-':>9}{''.join(halves)}"
    )


def facts(families: dict[str, list[Row]]) -> dict[str, dict[str, object]]:
    """Family -> launches, the error that 95 % of them do not exceed, the worst, and the chip."""
    kept = {}
    for family, mine in sorted(families.items()):
        errors = sorted(abs(row.error) for row in mine if row.error is not None)
        if errors:
            within = (
                quantiles(errors, n=20, method="inclusive")[-1] if len(errors) > 1 else errors[0]
            )
            kept[family] = {
                "launches": len(errors),
                "within": round(within, 5),
                "worst": round(errors[-1], 5),
                "chip": CHIP,
            }
    return kept


if __name__ == "__main__":
    sys.exit(main())
