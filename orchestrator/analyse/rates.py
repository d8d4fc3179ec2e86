"""Counts from other forms of a counter: rates per cycle and per second, averages over the units, doubled rates.

ncu forms ``X.sum.per_cycle_elapsed`` as X.sum over the average of elapsed cycles, so rate x average gives the count
back. Checked where a report holds both forms or the size of the problem is known: ncu 2024.2 on a T4 (1000 x 1000
additions, and the instruction count itself), ncu 2025.1 on an A100 (8192 x 8192), 2023.1 on an RTX 4090 and 2020.2 on
an RTX 3080 (average = average per second x duration). The maximum of elapsed cycles does not give whole numbers.

``X.avg`` is X.sum over the number of units: SMs for ``sm__``, four partitions an SM for ``smsp__``. A console prints
two decimals of it, which leaves up to a few instructions open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from math import isclose
from typing import NamedTuple

Values = Mapping[str, float | None]

PER_CYCLE = "rate x elapsed cycles: .sum.per_cycle_elapsed x cycles_elapsed.avg"
PER_SECOND = "rate x time: .sum.per_second x gpu__time_duration.sum"
AVERAGE = "average x units: .avg x {} {}"
PARTITIONS = 4
"""SM sub-partitions of an SM, since Volta; ``smsp__`` counts are averaged over them."""
_DURATION = "gpu__time_duration.sum"
_BASE = re.compile(
    r"(?P<base>(?P<unit>sm(?:sp)?)__(?:sass_thread_inst_executed_op_[a-z0-9]+_pred_on|ops_path_tensor_\w+"
    r"|inst_executed_pipe_tensor\w*))\.(?P<form>sum\.per_cycle_elapsed|sum\.per_second|avg)"
)
_MULTIPLIED = re.compile(
    r"derived__(?P<base>(?P<unit>smsp)__sass_thread_inst_executed_op_[a-z0-9]+_pred_on)_x(?P<times>[24])"
)
"""What ncu's roofline sections print instead of the rate: per elapsed cycle, times its weight. (The ``sm__`` form of
the same name is the chip's peak.)"""


class _Form(NamedTuple):
    """A metric that a sum can be worked out from."""

    total: str
    """Name of that sum."""
    unit: str
    form: str
    times: int


@lru_cache(maxsize=4096)
def _form(name: str) -> _Form | None:
    found = _BASE.fullmatch(name)
    if found:
        return _Form(f"{found['base']}.sum", found["unit"], found["form"], 1)
    found = _MULTIPLIED.fullmatch(name)
    return _Form(f"{found['base']}.sum", found["unit"], "sum.per_cycle_elapsed", int(found["times"])) if found else None


def with_counts(values: Values, sm_count: int | None = None) -> tuple[Values, dict[str, str]]:
    """``values`` with the sums that follow from other forms, and metric -> rule of each sum that was added.

    Every product of a rate must come out whole, as counts are; rates printed with a few decimals do not, and then none
    of the launch is used. Rates that are all 0 prove nothing either: they may have been rounded to it.
    """
    found: dict[str, float] = {}
    rules: dict[str, str] = {}
    averages: dict[str, float] = {}
    for name, value in values.items():
        read = _form(name)
        if value is None or read is None or values.get(read.total) is not None or read.total in found:
            continue
        total = read.total
        if read.form == "avg":
            averages[total] = value
            continue
        product, rule = _product(values, read.unit, read.form, value / read.times)
        if product is None:
            continue
        count = round(product)
        if not isclose(product, count, rel_tol=1e-12, abs_tol=1e-4):
            return values, {}
        found[total], rules[total] = count, rule
    if not any(found.values()):
        found, rules = {}, {}
    for total, average in averages.items():
        units = _units(total, sm_count)
        if total not in found and units is not None:
            found[total] = round(average * units)
            rules[total] = AVERAGE.format(units, "SMs" if total.startswith("sm__") else "SM partitions")
    return {**values, **found}, rules


def unused(values: Values) -> frozenset[str]:
    """Instructions ("ffma") that a report has in forms that no whole counts follow from, and in no other."""
    found = (_form(name) for name, value in values.items() if value is not None)
    totals = {read.total for read in found if read is not None and values.get(read.total) is None}
    return frozenset(total.partition("_op_")[2].partition("_")[0] for total in totals if "_op_" in total)


def _product(values: Values, unit: str, form: str, rate: float) -> tuple[float | None, str]:
    """Rate x what it is a rate of."""
    if form == "sum.per_second":
        duration = values.get(_DURATION)
        return (None if duration is None else rate * duration / 1e9), PER_SECOND
    cycles = _cycles(values, unit)
    return (None if cycles is None else rate * cycles), PER_CYCLE


def _units(total: str, sm_count: int | None) -> int | None:
    """SMs, or partitions of them, that an average is over."""
    if sm_count is None:
        return None
    return sm_count * (1 if total.startswith("sm__") else PARTITIONS)


def _cycles(values: Values, unit: str) -> float | None:
    """Elapsed cycles, averaged over the units; None when the report cannot say."""
    average = values.get(f"{unit}__cycles_elapsed.avg")
    if average is not None:
        return average
    frequency, duration = values.get(f"{unit}__cycles_elapsed.avg.per_second"), values.get(_DURATION)
    return None if frequency is None or duration is None else frequency * duration / 1e9
