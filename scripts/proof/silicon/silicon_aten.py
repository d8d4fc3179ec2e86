"""Derived counts of PyTorch's own kernels against the counters of a real report: a
MultiheadAttention on an A100.

    python scripts/proof/silicon/silicon_aten.py [--report FILE] [--write]

FILE is ncu's long CSV with FADD, FMUL and FFMA. The shapes are those of the module in it, width
256, 8 heads, 2 sequences of 20: the softmax has 2 x 8 x 20 rows of 20, their mean over 8 heads has
2 x 20 x 20 values. Grids are printed as one number there, and the reduction's block of 128 threads
is 32 x 4, which the rule works out. --write adds the errors to verified.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from perfctl.orchestrator.counts.derived.operators import derive_row_kernel
from perfctl.orchestrator.counts.derived.pointwise import derive_pointwise_kernel
from perfctl.orchestrator.counts.derived.records import DerivedInstructions, Launch, RowWork
from perfctl.orchestrator.counts.kernels.names import recognise_kernel

ROOT = Path(__file__).resolve().parents[3]
REPORT = (
    ROOT.parent
    / "shared"
    / "reports"
    / "ncu"
    / "csv_long"
    / "leleucas_bert_nsight_with_prof_lines.csv"
)
VERIFIED = ROOT / "orchestrator" / "counts" / "derived" / "verified.json"
CHIP = "an A100 (PyTorch 1.13)"
WIDTH, HEADS, SEQUENCES, LENGTH = 256, 8, 2, 20
ROWS = (
    RowWork("softmax", SEQUENCES * HEADS * LENGTH, LENGTH),
    RowWork("sum", SEQUENCES * LENGTH * LENGTH, HEADS),
)
SIZES = {SEQUENCES * LENGTH * WIDTH, SEQUENCES * LENGTH * LENGTH}


class Counted(NamedTuple):
    name: str
    ffma: float
    fmul: float
    fadd: float
    derived: DerivedInstructions | None

    @property
    def fp32(self) -> float:
        return 2 * self.ffma + self.fmul + self.fadd

    @property
    def error(self) -> float | None:
        """Of FADD + FMUL + 2 FFMA; 0 where both are 0, None without a rule."""
        if self.derived is None or self.derived.fp32_flops is None:
            return None
        return (
            self.derived.fp32_flops / self.fp32 - 1
            if self.fp32
            else float(bool(self.derived.fp32_flops))
        )


def launches(report: Path) -> Iterator[Counted]:
    """PyTorch's own kernels of the report."""
    lines = [
        line for line in report.read_text(encoding="utf-8").splitlines() if line.startswith('"')
    ]
    values: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for row in csv.DictReader(lines):
        values[row["ID"], row["Kernel Name"]][row["Metric Name"]] = row["Metric Value"].replace(
            ",", ""
        )
    for (_, name), found in values.items():
        if "at::native" not in name and "softmax" not in name:
            continue
        threads = int(found["Block Size"])
        block = (32, threads // 32, 1) if "reduce_kernel" in name else (threads, 1, 1)
        launch = Launch(name, (int(found["Grid Size"]), 1, 1), block)
        derived = derive_row_kernel(launch, ROWS) or derive_pointwise_kernel(
            launch, recognise_kernel(name), SIZES, "8.0"
        )
        counts = (
            float(found[f"sm__sass_thread_inst_executed_op_{kind}_pred_on.sum"])
            for kind in ("ffma", "fmul", "fadd")
        )
        yield Counted(name, *counts, derived)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Hold derived counts of PyTorch's kernels against hardware counters."
    )
    parser.add_argument("--report", type=Path, default=REPORT, help="ncu's long CSV")
    parser.add_argument("--write", action="store_true", help="add the errors to verified.json")
    asked = parser.parse_args()
    if not asked.report.is_file():
        print(
            f"silicon_aten: no file {asked.report}; give ncu's CSV with --report", file=sys.stderr
        )
        return 2
    found = list(launches(asked.report))
    families = defaultdict(list)
    print(f"{'counted FFMA, FMUL, FADD':>30}{'derived':>30}{'FLOPs':>9}  kernel")
    for one in found:
        counted = f"{one.ffma:,.0f} {one.fmul:,.0f} {one.fadd:,.0f}"
        derived = (
            f"{one.derived.ffma:,} {one.derived.fmul:,} {one.derived.fadd:,}"
            if one.derived
            else "no rule"
        )
        error = "-" if one.error is None else f"{one.error:+.1%}"
        print(f"{counted:>30}{derived:>30}{error:>9}  {one.name[:90]}")
        if one.derived is not None and one.error is not None:
            families[one.derived.family].append(abs(one.error))
    if asked.write:
        kept = json.loads(VERIFIED.read_text(encoding="utf-8"))
        for family, errors in families.items():
            worst = round(max(errors), 5)
            kept[family] = {"launches": len(errors), "within": worst, "worst": worst, "chip": CHIP}
        VERIFIED.write_text(
            json.dumps(dict(sorted(kept.items())), indent=2) + "\n", encoding="utf-8"
        )
    right = sum(one.error is not None and abs(one.error) <= 0.02 for one in found)
    print(f"{right} of {len(found)} launches within 2 %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
