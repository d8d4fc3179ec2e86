"""Counts from rates: ``--set full`` prints some counters only per elapsed cycle.

ncu forms ``X.sum.per_cycle_elapsed`` as X.sum over the average of elapsed cycles, so rate x average gives the count
back. Checked where a report holds both forms or the size of the problem is known: ncu 2024.2 on a T4 (1000 x 1000
additions, and the instruction count itself), ncu 2025.1 on an A100 (8192 x 8192), 2023.1 on an RTX 4090 and 2020.2 on
an RTX 3080 (average = average per second x duration). The maximum of elapsed cycles does not give whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose

Values = Mapping[str, float | None]

RULE = "rate x elapsed cycles: .sum.per_cycle_elapsed x cycles_elapsed.avg"
SUFFIX = ".sum.per_cycle_elapsed"
_OPERATION = "sass_thread_inst_executed_op_"
_DURATION = "gpu__time_duration.sum"


def with_counts(values: Values) -> tuple[Values, bool]:
    """``values`` with the sums that follow from rates, and whether there are any.

    Every product must come out whole, as counts are; rates printed with a few decimals do not, and then none of the
    launch is used. Rates that are all 0 prove nothing either: they may have been rounded to it.
    """
    found: dict[str, float] = {}
    for name, rate in values.items():
        if rate is None or _OPERATION not in name or not name.endswith(f"_pred_on{SUFFIX}"):
            continue
        total = name.removesuffix(".per_cycle_elapsed")
        cycles = _cycles(values, name.partition("__")[0])
        if cycles is None or values.get(total) is not None:
            continue
        count = round(rate * cycles)
        if not isclose(rate * cycles, count, rel_tol=1e-12, abs_tol=1e-4):
            return values, False
        found[total] = count
    if not any(found.values()):
        return values, False
    return {**values, **found}, True


def _cycles(values: Values, unit: str) -> float | None:
    """Elapsed cycles, averaged over the units; None when the report cannot say."""
    average = values.get(f"{unit}__cycles_elapsed.avg")
    if average is not None:
        return average
    frequency, duration = values.get(f"{unit}__cycles_elapsed.avg.per_second"), values.get(_DURATION)
    return None if frequency is None or duration is None else frequency * duration / 1e9
