"""Derived counts against hardware counters: how many launches of an A100 with known shapes come out right.

    python scripts/silicon.py [--data DIR] [--wrong N]

DIR holds linear.csv and conv2d.csv: one row a launch, with kernel name, FFMA, FMUL, FADD and the layer's shape, as in
``../shared/datasets/a100_operators``. Its rows have no grid, so tiles follow from shape and name, and FMUL (one for each value,
slice and part of a sum) says how often a sum is split. It does not say either whether a layer has a bias: all are taken
to have one, PyTorch's default. A row is right when FFMA is within 2 % of the counter. Launches without fp32 work (copies,
offsets) are left out. The last column of each half says how rules did on rows that they were not fixed on.
Exits 1 when fewer than 97 % of all rows are right, 2 without the data.
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

from perfctl.orchestrator.analyse.derived.records import Derived, Launch, Work
from perfctl.orchestrator.analyse.derived.rules import derive
from perfctl.orchestrator.analyse.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.analyse.kernels.names import recognise

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "datasets" / "a100_operators"
VERIFIED = ROOT / "orchestrator" / "analyse" / "derived" / "verified.json"
NEAR, WANTED = 0.02, 0.97
CHIP = "an A100 (CUDA 11.4)"


@dataclass(frozen=True, slots=True)
class Row:
    """One launch: what was counted, and what its rule says."""

    number: int
    name: str
    shape: GemmShape | ConvShape
    ffma: float
    fp32: float
    derived: Derived | None

    @property
    def family(self) -> str:
        return self.derived.family if self.derived else f"no rule: {recognise(self.name).method or self.name[:40]}"

    @property
    def error(self) -> float | None:
        """Of FFMA; None without a rule."""
        return None if self.derived is None or self.derived.ffma is None else self.derived.ffma / self.ffma - 1

    @property
    def whole_error(self) -> float | None:
        """Of FADD + FMUL + 2 FFMA."""
        fp32 = self.derived.fp32 if self.derived else None
        return None if fp32 is None else fp32 / self.fp32 - 1

    @property
    def on_paper(self) -> float:
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
                launch, work = Launch(line["kernel"], scale=fmul), Work(shape, onto=isinstance(shape, GemmShape))
                yield Row(int(line["row"]), line["kernel"], shape, ffma, 2 * ffma + fmul + fadd, derive(launch, work))


def linear(line: dict[str, str]) -> GemmShape:
    return GemmShape(int(line["m"]), int(line["n"]), int(line["k"]))


def conv(line: dict[str, str]) -> ConvShape:
    read = {name: int(value) for name, value in line.items() if value.isdecimal()}
    height, width = (
        (read[size] + 2 * read[f"pad_{short}"] - read[f"kernel_{short}"]) // read[f"stride_{short}"] + 1
        for size, short in (("height", "h"), ("width", "w"))
    )
    return ConvShape(
        read["batch"], read["in_channels"], read["out_channels"], height, width, read["kernel_h"], read["kernel_w"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold derived counts against hardware counters.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with linear.csv and conv2d.csv")
    parser.add_argument("--wrong", type=int, default=0, help="also print that many rows that are off by more than 2 %%")
    parser.add_argument(
        "--write", action="store_true", help="store the errors, which perfctl states beside derived counts"
    )
    asked = parser.parse_args()
    if not all((asked.data / name).is_file() for name in ("linear.csv", "conv2d.csv")):
        print(f"silicon: {asked.data} has no linear.csv and conv2d.csv; give their folder with --data", file=sys.stderr)
        return 2
    found = list(rows(asked.data))
    print(
        f"{'family':<28}{'rows':>7}{'rule':>7}{'FFMA':>7}{'fp32':>7}{'paper':>7}{'worst':>9}   within 2 %: FFMA, all fp32, paper"
    )
    families = defaultdict(list)
    for row in found:
        families[row.family].append(row)
    for family, mine in sorted(families.items(), key=lambda item: -len(item[1])):
        line(family, mine)
    for half in (0, 1):
        line(f"rows, number {'even' if half == 0 else 'odd'}", [row for row in found if row.number % 2 == half])
    wrong = [row for row in found if not near(row.error)]
    for row in sorted(wrong, key=lambda row: -abs(row.error or 9))[: asked.wrong]:
        error = "no rule" if row.error is None else f"{row.error:+.1%}"
        print(f"    {error:>8}  {row.shape}  {row.name[:70]}  {row.derived.rule if row.derived else ''}")
    if asked.write:
        others = json.loads(VERIFIED.read_text(encoding="utf-8"))  # scripts/silicon_aten.py writes there, too
        VERIFIED.write_text(
            json.dumps(dict(sorted((others | facts(families)).items())), indent=2) + "\n", encoding="utf-8"
        )
    right = len(found) - len(wrong)
    print(f"{right} of {len(found)} rows within 2 %")
    return int(right < WANTED * len(found))


def line(family: str, mine: list[Row]) -> None:
    ruled = [abs(row.error) for row in mine if row.error is not None]
    cells = [len(mine), len(ruled), sum(near(row.error) for row in mine), sum(near(row.whole_error) for row in mine)]
    cells.append(sum(near(row.on_paper) for row in mine))
    print(f"{family:<28}{''.join(f'{cell:>7,}' for cell in cells)}{f'{max(ruled):.1%}' if ruled else '-':>9}")


def facts(families: dict[str, list[Row]]) -> dict[str, dict[str, object]]:
    """Family -> launches, the error that 95 % of them do not exceed, the worst, and the chip."""
    kept = {}
    for family, mine in sorted(families.items()):
        errors = sorted(abs(row.error) for row in mine if row.error is not None)
        if errors:
            within = quantiles(errors, n=20, method="inclusive")[-1] if len(errors) > 1 else errors[0]
            kept[family] = {
                "launches": len(errors),
                "within": round(within, 5),
                "worst": round(errors[-1], 5),
                "chip": CHIP,
            }
    return kept


if __name__ == "__main__":
    sys.exit(main())
