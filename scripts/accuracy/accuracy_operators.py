"""Operators against values worked out by hand: one table. Each has to be right, or to be called "at least".

    python scripts/accuracy/accuracy_operators.py

Runs on the CPU, without data where the operator allows it, in some seconds. 1 multiply-add is 2 FLOPs. Exits 1 when a value
is wrong.
"""

from __future__ import annotations

import sys
import warnings

import torch
from accuracy_operator_cases import CASES, LEAST, RIGHT, WRONG, Case, elementwise_of, verdict

from perfctl.orchestrator.actions.estimate import estimate
from perfctl.orchestrator.analyse.memory.estimate import Estimate


def line(case: Case, found: Estimate, end: str) -> str:
    hand, mine = f"{case.forward:,.0f}", f"{found.forward.flops:,}"
    if case.integers:
        hand, mine = f"{case.integers:,} int", f"{found.integer_macs:,} int"
    elif case.elementwise is not None:
        kind, flops = case.elementwise
        hand, mine = f"{flops:,} ew", f"{elementwise_of(kind, found):,} ew"
    back = "" if case.backward is None else f"{case.backward:,.0f}"
    least = " ".join(f"({kind})" for kind, _ in found.forward.unknown)
    return f"{case.name:<40}{hand:>14}{mine:>14}{back:>14}{found.backward.flops:>14,}  {end} {least}".rstrip()


def main() -> int:
    """Print the table and a last line that counts; 1 when a value is wrong."""
    print("FLOPs by hand and by perfctl; ew: elementwise FLOPs of its row; int: multiply-adds of integers, no FLOPs")
    print(f"{'operator':<40}{'forward':>14}{'perfctl':>14}{'backward':>14}{'perfctl':>14}")
    ends = []
    for case in CASES:
        found = estimate(case.make(), case.inputs, device=case.device)
        ends.append(verdict(case, found))
        print(line(case, found, ends[-1]))
        if found.problem:
            print(f"    {found.problem}")
    counts = ", ".join(f"{ends.count(end)} {end}" for end in (RIGHT, LEAST, WRONG))
    print(f"{len(CASES)} operator cases: {counts}")
    return int(WRONG in ends)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    sys.exit(main())
