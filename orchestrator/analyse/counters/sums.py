"""Sums of weighted instruction counts of one launch: fp32, fp64, fp16. 1 multiply-add = 2 FLOPs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import isclose
from typing import NamedTuple

from perfctl.orchestrator.analyse.figure import Figure, missing

Values = Mapping[str, float | None]

PIPE_TENSOR = "inst_executed_pipe_tensor.sum"
HFMA2_ON_TENSOR_PIPE = "inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
AMPERE_OR_LATER = "8.0 or later"
"""A compute capability that only the names of kernels tell."""
PHANTOM_SLACK = 0.05
"""How far pipe_tensor may lie above hfma/32 (threads predicated off) and still be all constant moves."""
HALF_BEFORE = {"hadd": 1, "hmul": 1, "hfma": 2}
HALF_SINCE_2025 = {"hadd": 2, "hmul": 2, "hfma": 4}
"""An HADD2, HMUL2 or HFMA2 works on two numbers. ncu's half roofline weighs it 1, 1, 2 in 2022.3 (the section files of
that version) and 2, 2, 4 in 2025.1 (the derived metrics of a report); how many of the two lanes were used, no counter
says."""


def metric(values: Values, tail: str) -> float | None:
    """The ``sm__`` sum, else the ``smsp__`` one, which is the same."""
    value = values.get(f"sm__{tail}")
    return values.get(f"smsp__{tail}") if value is None else value


def asked(values: Values, tail: str) -> bool:
    """True when the report has the metric, with or without a value."""
    return f"sm__{tail}" in values or f"smsp__{tail}" in values


def op(name: str) -> str:
    """ "ffma" -> the counter of its threads, without the unit in front."""
    return f"sass_thread_inst_executed_op_{name}_pred_on.sum"


def major(capability: str | None) -> int:
    """8 for "8.6"; 0 when not known."""
    head = (capability or "").partition(".")[0]
    return int(head) if head.isdecimal() else 0


def weighted(values: Values, path: str, weights: Mapping[str, int]) -> Figure:
    """Sum of weight x threads over the instructions of one path; all of them are needed."""
    found = {name.upper(): metric(values, op(name)) for name in weights}
    lacking = [name for name, value in found.items() if value is None]
    if not lacking:
        total = sum(weights[name.lower()] * value for name, value in found.items() if value is not None)
        rule = " + ".join(f"{by} {name.upper()}" if by > 1 else name.upper() for name, by in weights.items())
        return Figure(total, "counted", rule=rule)
    if any(asked(values, op(name.lower())) for name in lacking):
        return missing("not_available", f"ncu printed no value for {', '.join(lacking)}")
    if len(lacking) == len(weights):
        return missing("not_collected", f"{path} counters were not collected ({', '.join(lacking)})")
    had = ", ".join(name for name in found if name not in lacking)
    return missing("not_collected", f"only {had} was collected; without {', '.join(lacking)} it is no count of FLOPs")


def fp32(values: Values, capability: str | None) -> Figure:
    """FADD + FMUL + 2 FFMA; on Blackwell also the instructions that work on two numbers."""
    figure = weighted(values, "fp32", {"fadd": 1, "fmul": 1, "ffma": 2})
    if figure.value is None or major(capability) < 10:
        return figure
    packed = weighted(values, "packed fp32", {"fadd2": 2, "fmul2": 2, "ffma2": 4})
    if packed.value is None:
        return replace(figure, reason="packed fp32 (FFMA2) was not collected", missing=("packed fp32",))
    figure = replace(figure, value=figure.value + packed.value, rule=f"{figure.rule} + {packed.rule}")
    return replace(figure, state="estimated", reason="packed fp32 weighted 2, 2, 4") if packed.value else figure


def fp64(values: Values) -> Figure:
    """DADD + DMUL + 2 DFMA."""
    return weighted(values, "fp64", {"dadd": 1, "dmul": 1, "dfma": 2})


def fp16(values: Values, capability: str | None, phantom: bool, version: str | None) -> Figure:
    """HADD + HMUL + 2 HFMA, or twice that, by the version of ncu; what only moves constants is left out."""
    weights = half_weights(values, version)
    if phantom and capability is not None:
        others = weighted(values, "fp16", {name: weights[name] for name in ("hadd", "hmul")})
        reason = "HFMA2 moved constants and is left out"
        if not others.value:
            return others if others.value is None else Figure(0, "counted", reason, rule=others.rule)
        return Figure(others.value, "estimated", reason, missing=("fp16 multiply-adds",), rule=others.rule)
    figure = weighted(values, "fp16", weights)
    if not figure.value:
        return figure
    if _may_move_constants(values, capability, phantom):
        chip = "" if capability else " (the chip is not known; it is so from CC 8.0 on)"
        return missing("refused", f"HFMA2 may only have moved constants{chip}: not added")
    reason = "2 HADD + 2 HMUL + 4 HFMA; down to half of that where one of two lanes is used"
    if weights is HALF_BEFORE:
        reason = "HADD + HMUL + 2 HFMA; up to twice that where instructions are packed"
    return replace(figure, state="estimated", reason=reason)


def half_weights(values: Values, version: str | None) -> Mapping[str, int]:
    """By the report's own derived metrics, else by the version; 2022.3's where neither says."""
    for ending, weights in (("op_hfma_pred_on_x4", HALF_SINCE_2025), ("op_hfma_pred_on_x2", HALF_BEFORE)):
        if any(name.endswith(ending) for name in values):
            return weights
    found = re.match(r"(\d{4})\.\d", version or "")
    return HALF_SINCE_2025 if found and int(found[1]) >= 2025 else HALF_BEFORE


def _may_move_constants(values: Values, capability: str | None, phantom: bool) -> bool:
    """True when nothing tells HFMA2 arithmetic from HFMA2 that loads a constant.

    ptxas 12.9 moves constants with HFMA2.MMA (counted by the tensor pipe too) on sm_80 and sm_90, with plain HFMA2 on
    sm_100 and sm_120, and not at all on sm_75 and before.
    """
    hfma, pipe = metric(values, op("hfma")), metric(values, PIPE_TENSOR)
    if not hfma or 0 < major(capability) < 8:
        return False
    late = major(capability) >= 10 or capability == AMPERE_OR_LATER
    return phantom or late or pipe is None or 32 * pipe >= hfma


def is_phantom(values: Values, capability: str | None) -> bool:
    """True when all tensor instructions are HFMA2 moving constants, which compilers for CC 8.x and 9.x emit.

    Where the chip is not known the equality makes it likely; then nothing is added, and nothing is called 0.
    """
    pipe, hfma = metric(values, PIPE_TENSOR), metric(values, op("hfma"))
    if not pipe or major(capability) not in (0, 8, 9):
        return False
    moves = metric(values, HFMA2_ON_TENSOR_PIPE)
    if moves is not None:
        return moves == pipe
    return bool(hfma) and hfma is not None and hfma <= 32 * pipe <= hfma * (1 + PHANTOM_SLACK)


PER_CYCLE = "rate x elapsed cycles: .sum.per_cycle_elapsed x cycles_elapsed.avg"
PER_SECOND = "rate x time: .sum.per_second x gpu__time_duration.sum"
AVERAGE = "average x units: .avg x {} {}"
PARTITIONS = 4
"""SM sub-partitions of an SM, since Volta; ``smsp__`` counts are averaged over them."""
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
    unit: str
    form: str
    times: int


@lru_cache(maxsize=4096)
def _form(name: str) -> _Form | None:
    if found := _BASE.fullmatch(name):
        return _Form(f"{found['base']}.sum", found["unit"], found["form"], 1)
    found = _MULTIPLIED.fullmatch(name)
    return _Form(f"{found['base']}.sum", found["unit"], "sum.per_cycle_elapsed", int(found["times"])) if found else None


def with_counts(values: Values, sm_count: int | None = None) -> tuple[Values, dict[str, str]]:
    """``values`` with the sums that follow from other forms, and metric -> rule of each sum that was added.

    Every product of a rate must be whole, as counts are; rates printed with a few decimals give none, and then none of
    the launch is used. Rates that are all 0 prove nothing either: they may have been rounded to it.
    """
    found: dict[str, float] = {}
    rules: dict[str, str] = {}
    averages: dict[str, float] = {}
    for name, value in values.items():
        read = _form(name)
        if value is None or read is None or values.get(read.total) is not None or read.total in found:
            continue
        if read.form == "avg":
            averages[read.total] = value
            continue
        product, rule = _product(values, read.unit, read.form, value / read.times)
        if product is None:
            continue
        count = round(product)
        if not isclose(product, count, rel_tol=1e-12, abs_tol=1e-4):
            return values, {}
        found[read.total], rules[read.total] = count, rule
    if not any(found.values()):
        found, rules = {}, {}
    if sm_count is not None:
        for total, average in averages.items():
            if total not in found:
                units, word = (
                    (sm_count, "SMs") if total.startswith("sm__") else (sm_count * PARTITIONS, "SM partitions")
                )
                found[total], rules[total] = round(average * units), AVERAGE.format(units, word)
    return {**values, **found}, rules


def unused(values: Values) -> frozenset[str]:
    """Instructions ("ffma") that a report has in forms that no whole counts follow from, and in no other."""
    found = (_form(name) for name, value in values.items() if value is not None)
    totals = {read.total for read in found if read is not None and values.get(read.total) is None}
    return frozenset(total.partition("_op_")[2].partition("_")[0] for total in totals if "_op_" in total)


def _product(values: Values, unit: str, form: str, rate: float) -> tuple[float | None, str]:
    duration = values.get("gpu__time_duration.sum")
    if form == "sum.per_second":
        return (None if duration is None else rate * duration / 1e9), PER_SECOND
    cycles = values.get(f"{unit}__cycles_elapsed.avg")
    frequency = values.get(f"{unit}__cycles_elapsed.avg.per_second")
    if cycles is None and frequency is not None and duration is not None:
        cycles = frequency * duration / 1e9
    return (None if cycles is None else rate * cycles), PER_CYCLE
