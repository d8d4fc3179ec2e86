"""Derived counts against the counters of an H100, in the recordings below tests/data/h100: training
of mnist_cnn in fp32 at five batch sizes and in three other precisions, products of 4,096 x 4,096
matrices in four, and a transformer in bf16.

    python scripts/proof/silicon/silicon_h100.py [--write]

Unlike in ``silicon.py``, nothing tells a rule which operation a launch belongs to: it has the
layer's operations, as in any ledger. A row is right when FADD + FMUL + 2 FFMA (or FLOPs of the
tensor cores) are within 2 % of the counters. --write adds the errors to verified.json, except those
of families that another chip verified.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from perfctl import parsers
from perfctl.orchestrator.counts.derived.records import DerivedInstructions
from perfctl.orchestrator.counts.derived.run import derive_launch_instructions

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests/data/h100"
RECORDINGS = ("ncu", "ncu-tf32", "ncu-bf16", "ncu-fp16", "ncu-products", "ncu-blocks")
VERIFIED = ROOT / "orchestrator/counts/derived/verified.json"
SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
TENSOR = "sm__ops_path_tensor_"
CHIP, CAPABILITY = "an H100 (CUDA 13.0)", "9.0"
NEAR = 0.02


class Counted(NamedTuple):
    """One launch: what ncu counted, and what its rule gives."""

    batch: int
    name: str
    layer: str
    ffma: int
    fmul: int
    fadd: int
    tensor: int
    derived: DerivedInstructions | None

    @property
    def family(self) -> str:
        return self.derived.family if self.derived else f"no rule: {self.name[:50]}"

    @property
    def is_exact(self) -> bool:
        """True if every count that the rule gives is that of the counter."""
        return self.derived is not None and all(
            value in (None, getattr(self, count))
            for count in ("ffma", "fmul", "fadd", "tensor")
            for value in (getattr(self.derived, count),)
        )

    @property
    def error(self) -> float | None:
        """Relative error of tensor FLOPs, else of FADD + FMUL + 2 FFMA or of FFMA; None without a
        rule."""
        if self.derived is None:
            return None
        if self.derived.tensor is not None:
            return self.derived.tensor / self.tensor - 1
        if self.derived.fp32_flops is not None:
            return self.derived.fp32_flops / (2 * self.ffma + self.fmul + self.fadd) - 1
        return None if self.derived.ffma is None else self.derived.ffma / self.ffma - 1


def launches() -> Iterator[Counted]:
    """Yield the launches that did arithmetic, each with its derived counts."""
    for folder in (folder for name in RECORDINGS for folder in sorted((DATA / name).glob("b*"))):
        report = parsers.parse(folder / "report.csv")
        values: defaultdict[int, dict[str, float]] = defaultdict(dict)
        for counter in report.counters:
            values[counter.launch][counter.name] = counter.value or 0
        kernels = [kernel for kernel in report.kernels if kernel.layer is not None]
        derived = derive_launch_instructions(
            [(kernel, (kernel.layer or "", kernel.direction or "")) for kernel in kernels],
            parsers.parse(folder / "workload.json").ops,
            CAPABILITY,
        )
        for kernel in kernels:
            counted = values[kernel.launch]
            sass = [int(counted[SASS.format(op)]) for op in ("ffma", "fmul", "fadd")]
            tensor = sum(
                int(value)
                for name, value in counted.items()
                if name.startswith(TENSOR) and name.endswith(".sum") and "src_int" not in name
            )
            if any((*sass, tensor)):
                yield Counted(
                    int(folder.name[1:]),
                    kernel.name,
                    kernel.layer or "",
                    *sass,
                    tensor,
                    derived.get(kernel.launch),
                )


def facts(rows: list[Counted]) -> dict[str, dict[str, object]]:
    """Return family -> launches, the largest error, and the chip; not of the family of all
    elementwise kernels, of which one functor was counted."""
    errors: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.error is not None and row.family != "elementwise":
            errors[row.family].append(abs(row.error))
    return {
        family: {
            "launches": len(values),
            "within": round(max(values), 5),
            "worst": round(max(values), 5),
            "chip": CHIP,
        }
        for family, values in errors.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="store the errors of new families")
    arguments = parser.parse_args()
    rows = list(launches())
    families: defaultdict[str, list[Counted]] = defaultdict(list)
    for row in rows:
        families[row.family].append(row)
    print(f"{'family':<62}{'launches':>9}{'exact':>7}{'worst':>9}")
    for family, members in sorted(families.items(), key=lambda item: -len(item[1])):
        errors = [abs(row.error) for row in members if row.error is not None]
        worst = f"{max(errors):.1%}" if errors else "-"
        print(f"{family:<62}{len(members):>9}{sum(row.is_exact for row in members):>7}{worst:>9}")
    if arguments.write:
        stated = json.loads(VERIFIED.read_text(encoding="utf-8"))
        new = {
            family: fact
            for family, fact in facts(rows).items()
            if stated.get(family, fact)["chip"] == CHIP
        }
        text = json.dumps(dict(sorted((stated | new).items())), indent=2)
        VERIFIED.write_text(text + "\n", encoding="utf-8")
    near = sum(row.error is not None and abs(row.error) <= NEAR for row in rows)
    print(f"{near} of {len(rows)} launches within 2 %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
