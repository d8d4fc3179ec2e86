"""Sums of one launch: weighted instruction counts (fp32, fp64, fp16) and operations of the tensor
cores. 1 multiply-add = 2 FLOPs.

``sm__ops_path_tensor_[op_<instruction>_]src_<type>[_dst_<type>][_sparsity_<on|off>].sum`` counts
operations, 2 per multiply-add. A form that says less is the sum of those that say more, so of each
input type only the coarsest level counts. Without these metrics (ncu before 2023) there are only
instructions, whose size depends on their shape: FLOPs per instruction of a warp were measured from
compiled PTX, and the kernel's name has the shape.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import isclose
from typing import NamedTuple

from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from perfctl.orchestrator.counts.kernels.names import Algorithm

Values = Mapping[str, float | None]

PIPE_TENSOR = "inst_executed_pipe_tensor.sum"
SUBPIPES = tuple(
    f"inst_executed_pipe_tensor_subpipe_{kind}.sum" for kind in ("hmma", "imma", "dmma")
)
"""The parts of the tensor pipe of Blackwell, which has no counter of the whole; CC 12 has
no dmma."""
HFMA2_ON_TENSOR_PIPE = "inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
AMPERE_OR_LATER = "8.0 or later"
"""A compute capability that only the names of kernels tell."""
PHANTOM_SLACK = 0.05
"""How far pipe_tensor may lie above hfma/32 (threads predicated off) and still be all
constant moves."""
PATHS = {
    "fp32": {"fadd": 1, "fmul": 1, "ffma": 2},
    "fp64": {"dadd": 1, "dmul": 1, "dfma": 2},
    "fp16": {"hadd": 1, "hmul": 1, "hfma": 2},
}
"""Instructions of each path, and the FLOPs of one thread of them."""
HALF_SINCE_2025 = {"hadd": 2, "hmul": 2, "hfma": 4}
"""An HADD2, HMUL2 or HFMA2 works on two numbers. ncu's half roofline weighs it 1, 1, 2 in 2022.3
(the section files of that version) and 2, 2, 4 in 2025.1 (the derived metrics of a report); how
many of the two lanes were used, no counter says."""

PER_CYCLE = "rate x elapsed cycles: .sum.per_cycle_elapsed x cycles_elapsed.avg"
PER_SECOND = "rate x time: .sum.per_second x gpu__time_duration.sum"
AVERAGE = "average x units: .avg x {} {}"
PARTITIONS = 4
"""SM sub-partitions of an SM, since Volta; ``smsp__`` counts are averaged over them."""
_BASE = re.compile(
    "(?P<base>(?P<unit>sm(?:sp)?)__(?:sass_thread_inst_executed_op_[a-z0-9]+_pred_on|"
    r"ops_path_tensor_\w+|inst_executed_pipe_tensor\w*))\.(?P<form>sum\.per_cycle_elapsed|"
    r"sum\.per_second|avg)"
)
_MULTIPLIED = re.compile(
    "derived__(?P<base>(?P<unit>smsp)__sass_thread_inst_executed_op_[a-z0-9]+_pred_on)_x(?P<times>"
    "[24])"
)
"""What ncu's roofline sections print instead of the rate: per elapsed cycle, times its weight. (The
``sm__`` form of the same name is the chip's peak.)"""

PREFIX = "sm__ops_path_tensor_"
VOLTA_FLOPS_PER_INSTRUCTION = 512
"""HMMA.884 with fp32 accumulation: one step of a warp is 256 multiply-adds. fp16 accumulation does
twice that."""
FLOPS_PER_INSTRUCTION = {
    ("fp16", "s884"): 512,
    ("fp16", "h884"): 1024,
    ("fp16", "s1688"): 2048,
    ("fp16", "h1688"): 2048,
    ("tf32", "s1684"): 1024,
    ("tf32", "s1688"): 2048,
    ("fp16", "s16816"): 4096,
    ("fp16", "h16816"): 4096,
    ("bf16", "s1688"): 2048,
    ("bf16", "s16816"): 4096,
    ("fp64", "d884"): 512,
    ("fp8", "s16832"): 8192,
    ("tf32", "c1688"): 2048,
    ("tf32", "gc1688"): 2048,
    ("fp64", "z884"): 512,
    ("fp64", "gz884"): 512,
}
"""(type, accumulator and shape) -> FLOPs of one instruction of a warp. Complex products (c, z; g
for Gauss's three) and 3xTF32 are several real instructions of the same size."""
WARPS = 4
"""Of a warpgroup: each counts one instruction of wgmma, and does a quarter of it."""
_WARPGROUP = re.compile(r"[shi](64)x(\d+)x(\d+)")
DEPTHS = {"tf32": 8, "fp16": 16, "bf16": 16, "fp8": 32}
"""Type -> elements of the sum that one wgmma takes."""
INTEGER = ("int8", "int4", "int1")
"""Types whose operations are no FLOPs."""
EXPECTED = {7: ("fp16",), 8: ("fp16", "bf16", "tf32"), 9: ("fp16", "bf16", "tf32")}
"""Types that must be there before a sum of them is whole; 10 and later as 9. fp64, fp8 and fp4 are
rare enough to be asked for only where the kernel's name says so."""
_PATH = re.compile(
    r"sm__ops_path_tensor_(?:op_(?P<op>[a-z0-9]+)_)?src_(?P<src>[a-z0-9]+(?:_fp\d)*?)"
    "(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?\.sum"
)

UNSURE = 0.02
"""Share of the tensor instructions that may be HFMA2 above which what is left is a lower bound."""
HIDDEN = "tensor instructions that may be HFMA2"
MOVES_OR_HALVES = "HFMA2 moves constants or multiplies halves, and no counter distinguishes them"

Tensor = tuple[Figure, tuple[tuple[str, Figure], ...]]
"""FLOPs of all types together, and ("tf32", figure) of the types told apart."""


def read_sm_or_smsp_metric(values: Values, metric_suffix: str) -> float | None:
    """The ``sm__`` sum, else the ``smsp__`` one, which is the same."""
    value = values.get(f"sm__{metric_suffix}")
    return values.get(f"smsp__{metric_suffix}") if value is None else value


def has_sm_or_smsp_metric(values: Values, metric_suffix: str) -> bool:
    """True when the report has the metric, with or without a value."""
    return f"sm__{metric_suffix}" in values or f"smsp__{metric_suffix}" in values


def count_tensor_instructions(values: Values) -> float | None:
    """Instructions of the tensor pipe: its own counter, else the sum of its parts; None without
    hmma and imma."""
    total = read_sm_or_smsp_metric(values, PIPE_TENSOR)
    parts = [read_sm_or_smsp_metric(values, tail) for tail in SUBPIPES]
    if total is not None or None in parts[:2]:
        return total
    return sum(value for value in parts if value is not None)


def make_instruction_counter_name(name: str) -> str:
    """ "ffma" -> the counter of its threads, without the unit in front."""
    return f"sass_thread_inst_executed_op_{name}_pred_on.sum"


def _read_instruction_thread_count(values: Values, name: str) -> float | None:
    """Return how many threads executed the instruction; None if that was not counted."""
    return read_sm_or_smsp_metric(values, make_instruction_counter_name(name))


def read_thread_counts_by_instruction(
    values: Values, names: Iterable[str] = ("fadd", "fmul", "ffma")
) -> dict[str, float]:
    """Instruction -> how many threads executed it, for those that were counted."""
    counts = ((name, _read_instruction_thread_count(values, name)) for name in names)
    return {name: count for name, count in counts if count is not None}


def parse_major_capability(capability: str | None) -> int:
    """8 for "8.6"; 0 when not known."""
    head = (capability or "").partition(".")[0]
    return int(head) if head.isdecimal() else 0


def sum_weighted_instructions(
    values: Values, data_type: str, weights: Mapping[str, int] | None = None
) -> Figure:
    """Sum of weight x threads over the instructions of one path; all of them are needed."""
    weights = weights or PATHS[data_type]
    counted = read_thread_counts_by_instruction(values, weights)
    lacking = [name for name in weights if name not in counted]
    if not lacking:
        total = sum(weights[name] * count for name, count in counted.items())
        terms = (f"{by} {name}" if by > 1 else name for name, by in weights.items())
        return Figure(total, "counted", rule=" + ".join(terms).upper())
    listed = ", ".join(lacking).upper()
    if any(has_sm_or_smsp_metric(values, make_instruction_counter_name(name)) for name in lacking):
        return make_missing_figure("not_available", f"ncu printed no value for {listed}")
    reason = f"{data_type} counters were not collected ({listed})"
    if counted:
        had = ", ".join(counted).upper()
        reason = f"ncu collected only {had}, which gives no FLOPs without {listed}"
    return make_missing_figure("not_collected", reason)


def compute_fp32_flops(values: Values, capability: str | None) -> Figure:
    """FADD + FMUL + 2 FFMA; on Blackwell also the instructions that work on two numbers."""
    figure = sum_weighted_instructions(values, "fp32")
    if figure.value is None or parse_major_capability(capability) < 10:
        return figure
    packed = sum_weighted_instructions(values, "packed fp32", {"fadd2": 2, "fmul2": 2, "ffma2": 4})
    if packed.value is None:
        reason = "packed fp32 (FFMA2) was not collected"
        return replace(figure, reason=reason, missing=("packed fp32",), lacking=(reason,))
    figure = replace(
        figure, value=figure.value + packed.value, rule=f"{figure.rule} + {packed.rule}"
    )
    return (
        replace(figure, state="estimated", reason="packed fp32 weighted 2, 2, 4")
        if packed.value
        else figure
    )


def compute_fp16_flops(
    values: Values,
    capability: str | None,
    only_constant_moves: bool,
    ncu_version: str | None,
    has_half_type: bool | None = None,
) -> Figure:
    """HADD + HMUL + 2 HFMA, or twice that, by the version of ncu; what only moves constants is
    left out.

    ``has_half_type``: whether the kernel's name has a half-precision type among its types; None
    where it has no types. The compiler puts real half-precision multiply-adds on the tensor pipe
    too (every other HFMA2 for sm_80 and sm_90), so that only a kernel of other types shows that all
    of them move constants.
    """
    weights = choose_half_instruction_flop_weights(values, ncu_version)
    if only_constant_moves and capability is not None:
        half_figure = sum_weighted_instructions(
            values, "fp16", {name: weights[name] for name in ("hadd", "hmul")}
        )
        most = weights["hfma"] * (_read_instruction_thread_count(values, "hfma") or 0)
        only_moves = has_half_type is False or not most
        reason = "HFMA2 moved constants and is not included"
        if not only_moves:
            reason = f"{MOVES_OR_HALVES}: 0 to {most:,.0f} FLOPs"
        if half_figure.value == 0 and only_moves:
            return Figure(
                0,
                "counted",
                reason,
                rule=half_figure.rule,
                moves_constants=True,
                only_moves_constants=True,
            )
        if half_figure.value == 0:
            return make_missing_figure(
                "not_available", reason, lacking=(MOVES_OR_HALVES,), moves_constants=True
            )
        if half_figure.value is None:
            return half_figure
        return replace(
            half_figure,
            state="estimated",
            reason=reason,
            missing=("fp16 multiply-adds",),
            lacking=(reason if only_moves else MOVES_OR_HALVES,),
            moves_constants=True,
            only_moves_constants=only_moves,
        )
    figure = sum_weighted_instructions(values, "fp16", weights)
    if not figure.value:
        return figure
    if _may_hfma2_move_constants(values, capability, only_constant_moves):
        chip = "" if capability else " (the chip is unknown; this applies from CC 8.0 on)"
        reason = f"HFMA2 may only have moved constants{chip}: not included"
        return make_missing_figure("refused", reason, moves_constants=True)
    reason = "2 HADD + 2 HMUL + 4 HFMA; down to half if only one of two lanes is used"
    if weights is PATHS["fp16"]:
        reason = "HADD + HMUL + 2 HFMA; up to twice if instructions are packed"
    return replace(figure, state="estimated", reason=reason)


def choose_half_instruction_flop_weights(
    values: Values, ncu_version: str | None
) -> Mapping[str, int]:
    """By the report's own derived metrics, else by the version; 2022.3's where neither says."""
    for ending, weights in (
        ("op_hfma_pred_on_x4", HALF_SINCE_2025),
        ("op_hfma_pred_on_x2", PATHS["fp16"]),
    ):
        if any(name.endswith(ending) for name in values):
            return weights
    match = re.match(r"(\d{4})\.\d", ncu_version or "")
    return HALF_SINCE_2025 if match and int(match[1]) >= 2025 else PATHS["fp16"]


def _may_hfma2_move_constants(
    values: Values, capability: str | None, only_constant_moves: bool
) -> bool:
    """True when nothing tells HFMA2 arithmetic from HFMA2 that loads a constant.

    ptxas 12.9 moves constants with HFMA2.MMA (counted by the tensor pipe too) on sm_80 and sm_90,
    with plain HFMA2 on sm_100 and sm_120, and not at all on sm_75 and before.
    """
    hfma, pipe = _read_instruction_thread_count(values, "hfma"), count_tensor_instructions(values)
    if not hfma or 0 < parse_major_capability(capability) < 8:
        return False
    late = parse_major_capability(capability) >= 10 or capability == AMPERE_OR_LATER
    return only_constant_moves or late or pipe is None or 32 * pipe >= hfma


def has_only_constant_move_instructions(
    values: Values, capability: str | None, is_tensor_core_kernel: bool | None = None
) -> bool:
    """True when all tensor instructions are HFMA2, which compilers for CC 8.x and 9.x emit to
    move constants.

    Where the chip is not known the equality makes it likely; then nothing is added, and nothing is
    called 0. A kernel that is a product on tensor cores by its name (``is_tensor_core_kernel``) may
    meet the equality by chance: there only the counter of HFMA2 on the tensor pipe proves it, which
    GA100 and GH100 have and other chips of 8.x have not.
    """
    pipe, hfma = count_tensor_instructions(values), _read_instruction_thread_count(values, "hfma")
    if not pipe or parse_major_capability(capability) not in (0, 8, 9):
        return False
    moves = read_sm_or_smsp_metric(values, HFMA2_ON_TENSOR_PIPE)
    if moves is not None:
        return moves == pipe
    if is_tensor_core_kernel or not hfma:
        return False
    return hfma <= 32 * pipe <= hfma * (1 + PHANTOM_SLACK)


class _RateMetric(NamedTuple):
    """A metric that a sum can be worked out from."""

    total: str
    unit: str
    form: str
    times: int


@lru_cache(maxsize=4096)
def _parse_rate_metric(name: str) -> _RateMetric | None:
    if match := _BASE.fullmatch(name):
        return _RateMetric(f"{match['base']}.sum", match["unit"], match["form"], 1)
    match = _MULTIPLIED.fullmatch(name)
    return (
        _RateMetric(
            f"{match['base']}.sum", match["unit"], "sum.per_cycle_elapsed", int(match["times"])
        )
        if match
        else None
    )


def add_counts_from_rates(
    values: Values, sm_count: int | None = None
) -> tuple[Values, dict[str, str]]:
    """``values`` with the sums that follow from other forms, and metric -> rule of each sum that
    was added.

    Every product of a rate must be whole, as counts are; rates printed with a few decimals give
    none, and then none of the launch is used. Rates that are all 0 prove nothing either: they may
    have been rounded to it.
    """
    totals: dict[str, float] = {}
    rules: dict[str, str] = {}
    averages: dict[str, float] = {}
    for name, value in values.items():
        read = _parse_rate_metric(name)
        if (
            value is None
            or read is None
            or values.get(read.total) is not None
            or read.total in totals
        ):
            continue
        if read.form == "avg":
            averages[read.total] = value
            continue
        product, rule = _compute_count_and_formula_from_rate(
            values, read.unit, read.form, value / read.times
        )
        if product is None:
            continue
        count = round(product)
        if not isclose(product, count, rel_tol=1e-12, abs_tol=1e-4):
            return values, {}
        totals[read.total], rules[read.total] = count, rule
    if not any(totals.values()):
        totals, rules = {}, {}
    if sm_count is not None:
        for total, average in averages.items():
            if total not in totals:
                of_sms = total.startswith("sm__")
                units, unit_name = (
                    (sm_count, "SMs") if of_sms else (sm_count * PARTITIONS, "SM partitions")
                )
                totals[total], rules[total] = (
                    round(average * units),
                    AVERAGE.format(units, unit_name),
                )
    return {**values, **totals}, rules


def find_rate_only_instructions(values: Values) -> frozenset[str]:
    """Instructions ("ffma") that a report has in forms that no whole counts follow from, and in
    no other."""
    forms = (_parse_rate_metric(name) for name, value in values.items() if value is not None)
    totals = {read.total for read in forms if read is not None and values.get(read.total) is None}
    return frozenset(
        total.partition("_op_")[2].partition("_")[0] for total in totals if "_op_" in total
    )


def _compute_count_and_formula_from_rate(
    values: Values, unit: str, form: str, rate: float
) -> tuple[float | None, str]:
    duration = values.get("gpu__time_duration.sum")
    if form == "sum.per_second":
        return (None if duration is None else rate * duration / 1e9), PER_SECOND
    cycles = values.get(f"{unit}__cycles_elapsed.avg")
    frequency = values.get(f"{unit}__cycles_elapsed.avg.per_second")
    if cycles is None and frequency is not None and duration is not None:
        cycles = frequency * duration / 1e9
    return (None if cycles is None else rate * cycles), PER_CYCLE


def compute_flops_per_tensor_instruction(algorithm: Algorithm) -> int | None:
    """Return the FLOPs of one tensor instruction of a warp, from its shape in the kernel's name;
    None if the name does not state it."""
    instruction, math = algorithm.instruction or "", algorithm.math or ""
    match = _WARPGROUP.fullmatch(instruction)
    if match is None:
        return FLOPS_PER_INSTRUCTION.get((math, instruction))
    m, n, k = (int(side) for side in match.groups())
    return 2 * m * n * k // WARPS if DEPTHS.get(math) == k else None


def compute_tensor_flops(
    values: Values, capability: str | None, only_constant_moves: bool, algorithm: Algorithm
) -> Tensor:
    """From the counters of operations where there are any, else from instructions."""
    paths = {
        name: value
        for name, value in values.items()
        if name.startswith(PREFIX) and name.endswith(".sum")
    }
    if any(value is not None for value in paths.values()):
        types = _compute_tensor_flops_by_type(paths)
        floats = {kind: types[kind] for kind in sorted(types) if kind not in INTEGER}
        return _sum_float_tensor_flops(floats, capability, algorithm), tuple(floats.items())
    pipe = count_tensor_instructions(values)
    if pipe and algorithm.math in INTEGER and algorithm.tensor_core is not False:
        reason = "its tensor instructions multiply integers, according to the kernel name: no FLOPs"
        return Figure(0, "estimated", reason), ()
    figure = _compute_tensor_flops_from_instructions(
        values, pipe, capability, only_constant_moves, algorithm, bool(paths)
    )
    return figure, ((algorithm.math, figure),) if figure.value and algorithm.math else ()


def sum_tensor_operations(values: Values) -> float | None:
    """Operations of the tensor cores, integer ones too, no form of a counter added to its own
    parts; None without."""
    values_ = [
        figure.value
        for figure in _compute_tensor_flops_by_type(values).values()
        if figure.value is not None
    ]
    return sum(values_) if values_ else None


def _compute_tensor_flops_by_type(paths: Values) -> dict[str, Figure]:
    levels: dict[str, dict[int, list[tuple[str | None, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for name, value in paths.items():
        match = _PATH.fullmatch(name)
        if match is None or value is None:
            continue
        level = (
            4 * (match["op"] is not None)
            + 2 * (match["sparsity"] is not None)
            + (match["dst"] is not None)
        )
        part = match["sparsity"] or (f"op {match['op']}" if match["op"] else None)
        levels[match["src"]][level].append((part, value))
    return {kind: _sum_coarsest_type_counters(kind, figures) for kind, figures in levels.items()}


def _sum_coarsest_type_counters(
    kind: str, levels: dict[int, list[tuple[str | None, float]]]
) -> Figure:
    level = min(levels)
    value = sum(count for _, count in levels[level])
    by_instruction = next((levels[number] for number in (4, 5) if number in levels), [])
    of_memory = sum(count for part, count in by_instruction if (part or "").startswith("op utc"))
    # the total is without the instructions of tensor memory (tcgen05)
    if level < 4 and value < of_memory:
        return Figure(
            value + of_memory, "counted", rule=f"{PREFIX}src_{kind} + {PREFIX}op_utc*_src_{kind}"
        )
    parts = {part for part, _ in levels[level] if part}
    without: tuple[str, ...] = ()
    if level & 4:
        without = (f"tensor {kind} of other instructions",)
    elif level & 2 and parts != {"on", "off"}:
        without = (f"tensor {kind} with sparsity {'off' if parts == {'on'} else 'on'}",)
    if without and not value:
        return make_missing_figure(
            "not_collected", f"{without[0]} was not collected, and the rest is 0"
        )
    lacking = tuple(f"{part} was not collected" for part in without)
    return Figure(value, "counted", missing=without, lacking=lacking, rule=f"{PREFIX}src_{kind}")


def _sum_float_tensor_flops(
    floats: dict[str, Figure], capability: str | None, algorithm: Algorithm
) -> Figure:
    present = {kind: figure for kind, figure in floats.items() if figure.value is not None}
    value = sum(figure.value or 0 for figure in present.values())
    expected = dict.fromkeys(EXPECTED.get(min(parse_major_capability(capability), 9), ()))
    if algorithm.tensor_core and algorithm.math and algorithm.math not in INTEGER:
        expected[algorithm.math] = None
    lacking = tuple(
        f"tensor {kind}"
        for kind in expected
        if not any(kind in name.split("_") for name in present)
    )
    without = (*lacking, *(part for figure in present.values() for part in figure.missing))
    missing_types = ", ".join(without).replace("tensor ", "") or "floating-point types"
    reason = f"tensor operations of {missing_types} were not collected"
    if not present or (without and not value):
        return make_missing_figure(
            "not_collected",
            reason + (f", and those of {', '.join(sorted(present))} are 0" if present else ""),
        )
    rule = f"{PREFIX}src: " + " + ".join(sorted(present))
    if not without:
        return Figure(value, "counted", rule=rule)
    return Figure(value, "counted", reason, missing=without, lacking=(reason,), rule=rule)


def _compute_tensor_flops_from_instructions(
    values: Values,
    tensor_instructions: float | None,
    capability: str | None,
    only_constant_moves: bool,
    algorithm: Algorithm,
    has_operation_counters: bool,
) -> Figure:
    if 0 < parse_major_capability(capability) < 7:
        return Figure(
            0,
            "counted",
            f"compute capability {capability} has no tensor cores",
            launches=0,
            of_launches=0,
        )
    if tensor_instructions is None and (
        has_operation_counters
        or any(has_sm_or_smsp_metric(values, tail) for tail in (PIPE_TENSOR, *SUBPIPES))
    ):
        return make_missing_figure(
            "not_available", "ncu printed no value for the tensor counters on this chip"
        )
    if tensor_instructions is None:
        return make_missing_figure("not_collected", "tensor counters were not collected")
    if tensor_instructions == 0 and algorithm.tensor_core:
        reason = (
            "its name is that of a GEMM on tensor cores, but the tensor pipe counted no "
            "instruction: other counters may have those of wgmma and tcgen05"
        )
        return make_missing_figure("not_available", reason)
    if tensor_instructions == 0:
        return Figure(0, "counted", rule="no tensor instruction was executed")
    if only_constant_moves and capability is None:
        reason = (
            "it has as many tensor instructions as HFMA2, which moves constants on CC 8.x and "
            "9.x; the chip is unknown"
        )
        return make_missing_figure("refused", reason, moves_constants=True)
    if only_constant_moves:
        reason = "the tensor pipe only moved constants (HFMA2 = 32 x its instructions)"
        if read_sm_or_smsp_metric(values, HFMA2_ON_TENSOR_PIPE) is not None:
            reason = (
                "the tensor pipe only ran HFMA2, which moves constants or multiplies halves "
                "outside of tensor cores"
            )
        rule = "tensor instructions - HFMA2 / 32"
        return Figure(0, "counted", reason, rule=rule, moves_constants=True)
    return _compute_flops_from_instruction_shape(values, tensor_instructions, capability, algorithm)


def _compute_flops_from_instruction_shape(
    values: Values, tensor_instructions: float, capability: str | None, algorithm: Algorithm
) -> Figure:
    """Instructions x the FLOPs of the shape that the kernel's name states, or of the only one that
    Volta has."""
    each = compute_flops_per_tensor_instruction(algorithm)
    shape = f"{algorithm.instruction} of {algorithm.math}, from the kernel name"
    if capability == "7.0":
        each = each or VOLTA_FLOPS_PER_INSTRUCTION
        shape = f"HMMA.884, {'fp16' if each == 1024 else 'fp32'} accumulation"
    elif each is None or capability is None:
        reason = "ncu counted tensor instructions, but not their shape, so their FLOPs are unknown"
        return make_missing_figure("not_available", reason)
    moves: float = 0  # as ncu counts them, else at most HFMA2 / 32 on CC 8.x and 9.x
    counted_moves = None
    if parse_major_capability(capability) in (8, 9):
        counted_moves = read_sm_or_smsp_metric(values, HFMA2_ON_TENSOR_PIPE)
        moves = (
            counted_moves
            if counted_moves is not None
            else min(
                (read_sm_or_smsp_metric(values, make_instruction_counter_name("hfma")) or 0) // 32,
                tensor_instructions,
            )
        )
    less = f", without {moves:,.0f} that move constants" if moves else ""
    rule = f"{each} x tensor instructions ({shape}){less}"
    if counted_moves is not None or not moves:
        flops = each * (tensor_instructions - moves)
        return Figure(flops, "estimated", rule, rule=rule, moves_constants=bool(moves))
    most = (
        f"HFMA2 that multiplies halves runs on both pipes, so up to {each * moves:,.0f} FLOPs more "
        f"({moves / tensor_instructions:.1%})"
    )
    if moves >= tensor_instructions:
        return make_missing_figure(
            "not_available",
            f"its tensor instructions may all be HFMA2: 0 to {each * tensor_instructions:,.0f}"
            f" FLOPs",
        )
    without = (HIDDEN,) if moves > UNSURE * tensor_instructions else ()
    return Figure(
        each * (tensor_instructions - moves),
        "estimated",
        f"{rule}; {most}",
        missing=without,
        lacking=tuple(f"no counter includes {part}" for part in without),
        rule=rule,
        moves_constants=True,
    )
