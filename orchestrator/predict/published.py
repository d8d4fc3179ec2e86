"""The fit that ships with perfctl: step times of GPUs that others measured and published, in
published.json.

One model for all devices. A step is the sum of its parts (``step_parts``), each at the device's
own peaks::

    seconds = max(sum(cost[part, regime] * factor[device, class] * part),
                  host seconds an operation * operations)

A regime is training or inference, with four or two bytes an element, on vector or tensor units, and
contiguous or channels-last. Two more terms are learned: bytes over what the SMs can issue (SMs x
clock), because fast memory is not filled by few SMs, and fp32 FLOPs (1 multiply-add = 2) over what
the power limit sustains. ``scripts/proof/accuracy/publish.py`` makes the file.

Two rules hold whatever was learned: no device is slower than one whose peaks are all lower, and
TF32 is not slower than fp32.

CPUs have a fit of their own, published_cpu.json, of one CPU: inference in fp32 under torch.compile,
one sample. It has the same parts, without issued bytes and power, which one device does not tell
apart, and without the host's time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from perfctl.orchestrator.counts.hardware.machines import BOARDS, Machine, build_board_machine
from perfctl.orchestrator.predict.operations import (
    Operation,
    StepSpec,
    get_activation_element_bytes,
)
from perfctl.orchestrator.predict.step_parts import (
    CLASS_OF,
    PARTS,
    PHASE_OF,
    PHASES,
    PRODUCTS,
    get_peak_flops_or_raise,
)
from perfctl.orchestrator.predict.step_parts import sum_step_part_seconds as parts_on

FORMAT = "perfctl published 1"
FILE = Path(__file__).with_name("published.json")
FILES = {"gpu": FILE, "cpu": FILE.with_name("published_cpu.json")}
UNIT = Machine(
    "unit",
    "gpu",
    dict.fromkeys(
        ("fp32", "fp16", "bf16", *(f"tensor {one}" for one in ("fp16", "bf16", "tf32"))), 1.0
    ),
    1.0,
)
"""A machine of 1 FLOP/s and 1 byte/s: its parts are FLOPs, bytes and counts, which any other
machine's peaks divide."""
ISSUED = 8.0
"""Bytes of an SM in one cycle that "issued" counts with; the learned cost takes up the rest."""
PER_SM = 11e9
"""Bytes/s for one SM: where the SMs of a device are not known, about as many as GPUs with such
memory have."""
CLOCK = 1.6e9
FP32_WATT = 0.05e12
"""fp32 FLOP/s for one watt at 12 nm (a V100: 15.7 TFLOP/s, 300 W)."""
ENERGY = {16: 1.35, 12: 1.0, 8: 0.5, 7: 0.5, 6: 0.5, 5: 0.27, 4: 0.27}
"""Process in nm -> energy of an fp32 FLOP, 12 nm = 1: from peak and power of the largest products
of each process."""
TRAINING_STARTS = 3.0
"""Operations started in training for one started in inference: no published row of training is
that small."""
COVERED = 0.9
"""Share of held-out steps that lie in the interval."""
WIDER = 1.5
"""Factor on the interval (in logarithms) for each of: a process, a class of power, a precision that
nobody published."""
WIDER_CPU = 2.0
"""Factor on the interval (in logarithms) for each of: another CPU than the measured one, eager
mode, more than one sample. An assumption: one CPU cannot tell how CPUs differ."""

_KEPT: dict[int, tuple[ShippedFit, dict[tuple[Any, ...], FitOnMachine]]] = {}


def classify_part_resource(part: str) -> str:
    """Return A for arithmetic of products, D for depthwise arithmetic, B for bytes, H for
    counts."""
    kind = CLASS_OF[part]
    if kind in ("bytes", "operations", "step"):
        return "B" if kind == "bytes" else "H"
    return "D" if part.startswith(("depthwise ", "unpacked ")) else "A"


KINDS = tuple(classify_part_resource(part) for part in PARTS)
ISSUING = tuple(f"issued {part.rpartition(' ')[2]}" if " bytes " in part else "" for part in PARTS)
POWERED = tuple(
    part.rpartition(" ")[0] in PRODUCTS and kind == "A"
    for part, kind in zip(PARTS, KINDS, strict=True)
)

LAYOUTS = tuple(
    not part.startswith(("linear ", "matmul ", "softmax ")) and not part.endswith(" optimizer")
    for part in PARTS
)
"""Is a part's cost another one when images lie channels-last? Not that of work on sequences, and
not the optimizer's."""


def _classify_part_for_compile_factor(part: str) -> str:
    if part.startswith(("grouped ", "depthwise ")):
        return "grouped"
    return (
        "products" if part.startswith((*PRODUCTS, "narrow ", "shallow ", "weights ")) else "plain"
    )


COMPILED = tuple(_classify_part_for_compile_factor(part) for part in PARTS)
"""Which factor of torch.compile applies to a part: it writes kernels of its own for all but
products, and merges them."""


class CostRegime(NamedTuple):
    """What costs are learned for."""

    training: bool
    wide: bool
    """Four bytes an element, else two."""
    tensor: bool
    """Products on tensor cores."""
    channels_last: bool

    def make_cost_key(self, kind: str) -> str:
        """Of a kind of part: "tT" is training on tensor cores, "i4" inference with four bytes,
        "tTl" channels-last."""
        unit = ("T" if self.tensor else "V") if kind == "A" else "4" if self.wide else "2"
        return f"{'t' if self.training else 'i'}{unit}{'l' if self.channels_last else ''}"

    @property
    def mode_key(self) -> str:
        """Direction and unit of products, whatever the layout: "iV"."""
        return self.make_cost_key("A").removesuffix("l")


class NearestStep(NamedTuple):
    """The measured step that is most like the asked one."""

    device: str
    model: str
    regime: str
    away: float
    """Largest difference of FLOPs and of activations of one sample, as a share."""


@dataclass(frozen=True, slots=True)
class ShippedFit:
    """The contents of published.json."""

    costs: Mapping[str, Mapping[str, float]]
    """Part -> regime -> seconds for a second at the peaks; "" is the part's cost where the regime
    was not seen."""
    factors: Mapping[str, Mapping[str, float]]
    """Device -> AT, AV (arithmetic on tensor and vector units), B, H -> factor on its costs, pulled
    towards 1."""
    measured: Mapping[str, tuple[str, ...]]
    """Device -> regimes (of arithmetic) that were measured on it."""
    host: Mapping[str, float]
    """Regime of bytes -> seconds of the host for one forward operation of a step."""
    spread: Mapping[str, float]
    """"known iT", "new iT", "host i": half the 90% interval, in logarithms. "known tTl",
    channels-last, is that of "known tT" where too little was measured."""
    networks: tuple[tuple[str, float, float, str], ...]
    """(model, macs, activation elements of one sample, "device/regime ...")."""
    sources: tuple[Mapping[str, str], ...]
    watts: tuple[float, float] = (0.0, float("inf"))
    """Least and most board power that was measured."""
    rows: int = 0
    compiled: Mapping[str, float] = field(default_factory=dict)
    """Factors of inference under torch.compile: "products 2" on the GPU's time of products with two
    bytes an element, "grouped 2", "plain 2", "host" on the host's time; "known", "new": factor to
    either end of the interval, on the GPUs of compiled_on and on others."""
    compiled_on: tuple[str, ...] = ()
    """ "device/regime" of the steps under torch.compile."""
    kind: str = "gpu"
    """gpu, or cpu: of the machines that the fit is for."""


@lru_cache(maxsize=len(FILES))
def load_shipped_fit(device_kind: str) -> ShippedFit:
    """Return the fit for machines of this kind, gpu or cpu. Raises ValueError for another
    format."""
    return parse_shipped_fit(json.loads(FILES[device_kind].read_text(encoding="utf-8")))


def can_use_fit(fit: ShippedFit, case: StepSpec, machine: Machine) -> bool:
    """May the fit be used? That of CPUs holds for inference in fp32 alone."""
    return machine.kind == fit.kind and (
        fit.kind == "gpu" or not (case.training or case.precision != "fp32")
    )


def parse_shipped_fit(document: Mapping[str, Any]) -> ShippedFit:
    """Raises ValueError for another format or other parts than this version's."""
    if document.get("format") != FORMAT or tuple(document.get("parts", ())) != PARTS:
        raise ValueError(
            f"published fit: format {document.get('format')!r} or its parts are not this version's"
        )
    return msgspec.convert({**document, "compiled_on": document["compiled on"]}, ShippedFit)


@dataclass(frozen=True, slots=True)
class FitOnMachine:
    """The fit on one machine, in one regime: costs of the parts, as a StepFit has them."""

    machine: Machine
    regime: CostRegime
    costs: tuple[float, ...]
    phases: Mapping[str, tuple[float, ...]]
    rates: tuple[float, ...]
    """Seconds for one unit of each part (a FLOP, a byte, a count): cost over peak."""


def get_cost_regime(case: StepSpec, machine: Machine) -> CostRegime:
    tensor = case.precision != "fp32" and f"tensor {case.precision}" in machine.flops_per_second
    wide = get_activation_element_bytes(case.precision) > 2
    return CostRegime(
        case.training,
        wide,
        tensor,
        case.channels_last and not wide and is_image_network(case.works),
    )


@lru_cache(maxsize=4096)
def is_image_network(works: tuple[Operation, ...]) -> bool:
    """Do convolutions write most of what products write? What linear layers write has no
    channels-last form."""
    written = {True: 0.0, False: 0.0}
    for work in works:
        if work.macs:
            written["conv" in work.kind] += work.calls * work.outputs
    return written[True] > written[False]


def get_product_depthwise_and_byte_peaks(
    machine: Machine, precision: str
) -> tuple[float, float, float]:
    """Return (FLOP/s of products, of depthwise products, bytes/s). Raises ValueError where a peak
    is not known.

    Without tensor cores half precision is stored but computed in fp32 where that is faster.
    """
    products, depthwise = (
        get_peak_flops_or_raise(machine, precision, is_depthwise) for is_depthwise in (False, True)
    )
    return (
        max(products, machine.flops_per_second.get("fp32", 0.0)),
        depthwise,
        machine.bytes_per_second,
    )


def lift_half_precision_peak_to_fp32(machine: Machine, precision: str) -> Machine:
    """The machine whose peak for half precision is fp32's where that is faster and there are no
    tensor cores."""
    peaks = machine.flops_per_second
    if f"tensor {precision}" in peaks or peaks.get(precision, 0.0) >= peaks.get("fp32", 0.0):
        return machine
    return replace(machine, flops_per_second={**peaks, precision: peaks["fp32"]})


def scale_fit_to_machine(fit: ShippedFit, case: StepSpec, machine: Machine) -> FitOnMachine:
    """Raises ValueError without a peak for the precision."""
    key = (
        machine.name,
        case.precision,
        case.training,
        get_cost_regime(case, machine).channels_last,
        case.compiled,
    )
    cached = _KEPT.get(id(fit))
    if cached is None or cached[0] is not fit:
        cached = _KEPT[id(fit)] = (fit, {})
    machine_fit = cached[1].get(key)
    if machine_fit is None or machine_fit.machine != machine:
        machine_fit = cached[1][key] = _compute_fit_on_machine(fit, case, machine)
    return machine_fit


class CostTerm(NamedTuple):
    """One learned cost of a part: ``cost * factor * unit`` seconds for each FLOP, byte or count of
    the part."""

    place: int
    """In PARTS."""
    name: str
    """Of the cost: the part's own, "issued forward" or "power"."""
    key: str
    """Regime of the cost."""
    factor: str
    """Class of the device's factor: AT, AV, B or H."""
    unit: float


def list_cost_terms(case: StepSpec, machine: Machine) -> tuple[CostTerm, ...]:
    """Raises ValueError without a peak for the precision."""
    regime, (products, depthwise, moved) = (
        get_cost_regime(case, machine),
        get_product_depthwise_and_byte_peaks(machine, case.precision),
    )
    issued = (machine.sms or moved / PER_SM) * (machine.clock_hz or CLOCK) * ISSUED
    sustained = machine.flops_per_second.get("fp32", products)
    if machine.power_w and machine.process_nm in ENERGY:
        sustained = FP32_WATT * machine.power_w / ENERGY[machine.process_nm]
    units = {"A": 1.0 / products, "D": 1.0 / depthwise, "B": 1.0 / moved, "H": 1.0}
    classes = {"A": "AT" if regime.tensor else "AV", "D": "AV", "B": "B", "H": "H"}
    terms_, plain = [], regime._replace(channels_last=False)
    for part_index, (part, kind) in enumerate(zip(PARTS, KINDS, strict=True)):
        part_regime = regime if LAYOUTS[part_index] else plain
        terms_.append(
            CostTerm(part_index, part, part_regime.make_cost_key(kind), classes[kind], units[kind])
        )
        if machine.kind == "cpu":
            continue
        if ISSUING[part_index]:
            terms_.append(
                CostTerm(
                    part_index,
                    ISSUING[part_index],
                    part_regime.make_cost_key("B"),
                    "B",
                    1.0 / issued,
                )
            )
        if POWERED[part_index] and not regime.tensor:
            terms_.append(
                CostTerm(part_index, "power", regime.make_cost_key("A"), "AV", 1.0 / sustained)
            )
    return tuple(terms_)


def _compute_fit_on_machine(fit: ShippedFit, case: StepSpec, machine: Machine) -> FitOnMachine:
    factors, rates = fit.factors.get(strip_memory_size(machine.name), {}), [0.0] * len(PARTS)
    for term in list_cost_terms(case, machine):
        costs_by_key = fit.costs.get(term.name, {})
        rates[term.place] += (
            costs_by_key.get(term.key, costs_by_key.get("", 0.0))
            * factors.get(term.factor, 1.0)
            * term.unit
        )
    if case.compiled:
        size = get_activation_element_bytes(case.precision)
        rates = [
            rate * fit.compiled.get(f"{kind} {size}", 1.0)
            for kind, rate in zip(COMPILED, rates, strict=True)
        ]
    regime = get_cost_regime(case, machine)
    if case.precision == "tf32" and regime.tensor:  # a library that found fp32 faster would take it
        plain = scale_fit_to_machine(fit, replace(case, precision="fp32"), machine)
        rates = [min(pair) for pair in zip(rates, plain.rates, strict=True)]
    _, depthwise, moved = get_product_depthwise_and_byte_peaks(machine, case.precision)
    peaks = {
        "A": get_peak_flops_or_raise(machine, case.precision),
        "D": depthwise,
        "B": moved,
        "H": 1.0,
    }
    costs = tuple(rate * peaks[kind] for rate, kind in zip(rates, KINDS, strict=True))
    phases = {
        name: tuple(
            each if part.endswith(name) else 0.0 for part, each in zip(PARTS, costs, strict=True)
        )
        for name in (PHASES if case.training else PHASES[:1])
    }
    return FitOnMachine(machine, regime, costs, phases, tuple(rates))


def strip_memory_size(name: str) -> str:
    """Return a board's name without the size of its memory: "V100 SXM2"."""
    return re.sub(r" \d+ GB$", "", name)


@lru_cache(maxsize=4096)
def _compute_part_amounts(
    works: tuple[Operation, ...],
    batch: int,
    training: bool,
    element_bytes: int,
    optimizer: str,
    parameters: int,
    channels_last: bool,
) -> tuple[tuple[int, float], ...]:
    case = StepSpec(
        "",
        "",
        works,
        batch,
        training,
        "fp32" if element_bytes > 2 else "fp16",
        optimizer,
        parameters,
        channels_last,
    )
    return tuple(
        (part_index, amount) for part_index, amount in enumerate(parts_on(case, UNIT)) if amount
    )


def list_nonzero_part_amounts(case: StepSpec) -> tuple[tuple[int, float], ...]:
    """Return (place in PARTS, FLOPs, bytes or count) of the parts that the step has: the same on
    every machine."""
    return _compute_part_amounts(
        case.works,
        case.batch,
        case.training,
        get_activation_element_bytes(case.precision),
        case.optimizer,
        case.parameters,
        case.channels_last,
    )


@lru_cache(maxsize=1)
def list_board_table_machines() -> tuple[Machine, ...]:
    return tuple(build_board_machine(board) for board in BOARDS)


@lru_cache(maxsize=4096)
def _list_weaker_machines(peaks: tuple[float, float, float], precision: str) -> tuple[Machine, ...]:
    """Machines of the table whose peaks are all as low as these or lower."""
    machines_below = []
    for other in list_board_table_machines():
        try:
            its = get_product_depthwise_and_byte_peaks(other, precision)
        except ValueError:
            continue
        if all(low <= high for low, high in zip(its, peaks, strict=True)):
            machines_below.append(other)
    return tuple(machines_below)


def list_upper_bound_rates(
    fit: ShippedFit, case: StepSpec, machine: Machine
) -> tuple[tuple[float, ...], ...]:
    """Rates that the machine is not slower by: those of weaker machines and, for TF32, those
    of fp32.

    Raises ValueError without a peak for the precision.
    """
    lower = (
        _list_weaker_machines(
            get_product_depthwise_and_byte_peaks(machine, case.precision), case.precision
        )
        if machine.kind == "gpu"
        else ()
    )
    rates = tuple(scale_fit_to_machine(fit, case, other).rates for other in lower)
    if case.precision != "tf32":
        return rates
    plain = replace(case, precision="fp32")
    return (
        *rates,
        scale_fit_to_machine(fit, plain, machine).rates,
        *list_upper_bound_rates(fit, plain, machine),
    )


def predict_device_step_seconds(fit: ShippedFit, case: StepSpec, machine: Machine) -> float:
    """Of the GPU alone. Raises ValueError without a peak for the precision."""
    many, own_rates = (
        list_nonzero_part_amounts(case),
        scale_fit_to_machine(fit, case, machine).rates,
    )
    rows = dict.fromkeys((own_rates, *list_upper_bound_rates(fit, case, machine)))
    return min(sum(row[part_index] * amount for part_index, amount in many) for row in rows)


def split_step_seconds_by_phase(
    fit: FitOnMachine, case: StepSpec, seconds: float
) -> dict[str, float]:
    """Seconds of forward, backward and optimizer, which add up to ``seconds``."""
    sums = dict.fromkeys(fit.phases, 0.0)
    for part_index, amount in list_nonzero_part_amounts(case):
        sums[PHASE_OF[PARTS[part_index]]] += fit.rates[part_index] * amount
    total = sum(sums.values())
    return {name: seconds * (each / total) for name, each in sums.items()} if total > 0 else {}


def count_weighted_host_starts(works: Iterable[Operation], training: bool) -> float:
    """Operations that the host starts, each for as long as one with a backward pass; in training a
    counter has none."""
    counter_starts = 1.0 / TRAINING_STARTS if training else 1.0
    return sum(work.calls * (counter_starts if work.is_counter_update else 1.0) for work in works)


def predict_host_launch_seconds(fit: ShippedFit, case: StepSpec) -> float:
    """Least seconds of a step, in which the host starts its operations."""
    key = (
        f"{'t' if case.training else 'i'}"
        f"{'4' if get_activation_element_bytes(case.precision) > 2 else '2'}"
    )
    eager = fit.host.get(key, 0.0) * count_weighted_host_starts(case.works, case.training)
    return eager * fit.compiled["host"] if case.compiled else eager


class PredictedRange(NamedTuple):
    seconds: float
    low: float
    high: float


class StepBounds(NamedTuple):
    """What holds of a step at every batch size: the host's seconds, and the factors to the ends of
    the intervals."""

    host: float
    gpu_width: float
    host_width: float

    def combine_with_gpu(self, gpu_seconds: float) -> PredictedRange:
        """Return the step's time where the GPU takes ``gpu_seconds``."""
        low, high = (
            max(gpu_seconds / self.gpu_width, self.host / self.host_width),
            max(gpu_seconds * self.gpu_width, self.host * self.host_width),
        )
        return PredictedRange(max(gpu_seconds, self.host), low, high)


def compute_host_time_and_interval_factors(
    fit: ShippedFit, case: StepSpec, machine: Machine
) -> StepBounds:
    half = fit.spread[f"host {'t' if case.training else 'i'}"]
    return StepBounds(
        predict_host_launch_seconds(fit, case),
        compute_device_interval_factor(fit, case, machine),
        exp(half),
    )


def predict_step_by_published_fit(
    fit: ShippedFit, case: StepSpec, machine: Machine
) -> PredictedRange:
    """Raises ValueError without a peak for the precision."""
    return compute_host_time_and_interval_factors(fit, case, machine).combine_with_gpu(
        predict_device_step_seconds(fit, case, machine)
    )


def is_device_mode_measured(fit: ShippedFit, case: StepSpec, machine: Machine) -> bool:
    """Was this device measured in this direction, on these units? For a CPU: was such a step?"""
    if fit.kind == "cpu":
        return not any(_list_cpu_step_facts_beyond_fit(fit, case, machine))
    return get_cost_regime(case, machine).mode_key in fit.measured.get(
        strip_memory_size(machine.name), ()
    )


def is_device_measured_compiled(fit: ShippedFit, case: StepSpec, machine: Machine) -> bool:
    """Was inference under torch.compile measured on this device, on these units?"""
    return (
        f"{strip_memory_size(machine.name)}/{get_cost_regime(case, machine).mode_key}"
        in fit.compiled_on
    )


def compute_device_interval_factor(fit: ShippedFit, case: StepSpec, machine: Machine) -> float:
    """Return the factor from the prediction to either end of its 90% interval, without the host's
    share."""
    if fit.kind == "cpu":
        return exp(
            fit.spread["known iV"]
            * WIDER_CPU ** len(tuple(_list_cpu_step_facts_beyond_fit(fit, case, machine)))
        )
    if case.compiled:
        least = fit.compiled["known" if is_device_measured_compiled(fit, case, machine) else "new"]
        return max(
            least, compute_device_interval_factor(fit, replace(case, compiled=False), machine)
        )
    regime, is_known = get_cost_regime(case, machine), is_device_mode_measured(fit, case, machine)
    prefix = "known" if is_known else "new"
    half = fit.spread.get(
        f"{prefix} {regime.make_cost_key('A')}", fit.spread[f"{prefix} {regime.mode_key}"]
    )
    return exp(
        half if is_known else half * WIDER ** len(tuple(list_device_facts_beyond_fit(fit, machine)))
    )


def list_device_facts_beyond_fit(fit: ShippedFit, machine: Machine) -> Iterable[str]:
    """Sentences: in what this device is unlike all that were measured."""
    processes = {
        machine_.process_nm
        for machine_ in list_board_table_machines()
        if strip_memory_size(machine_.name) in fit.measured
    }
    if machine.process_nm not in processes:
        problem = f"no measured chip has its process ({machine.process_nm} nm)"
        yield problem if machine.process_nm else "the process of its chip (nm) is unknown"
    least, most = fit.watts
    if machine.power_w is not None and not least <= machine.power_w <= most:
        yield f"{machine.power_w:g} W is outside the measured range of {least:g} to {most:g} W"


def _list_cpu_step_facts_beyond_fit(
    fit: ShippedFit, case: StepSpec, machine: Machine
) -> Iterable[str]:
    """Sentences: in what this step is unlike those of the one CPU that was measured."""
    (name,) = fit.measured
    if machine.name != name:
        yield (f"the data has only one CPU, {name}: the range for other CPUs is an assumption")
    if not case.compiled:
        yield ("the data used torch.compile: eager mode is slower by an unknown factor")
    if case.batch != 1:
        yield f"the data used one sample, not {case.batch:,}"


def list_fit_extrapolations(fit: ShippedFit, case: StepSpec, machine: Machine) -> tuple[str, ...]:
    """Return what was not measured, in words; of GPUs they hold at every batch size."""
    if fit.kind == "cpu":
        return tuple(_list_cpu_step_facts_beyond_fit(fit, case, machine))
    problems = []
    if not is_device_mode_measured(fit, case, machine):
        mode_text = f"{'training' if case.training else 'inference'} in {case.precision}"
        is_measured_device = strip_memory_size(machine.name) in fit.measured
        lacking = (
            f"{mode_text} on {machine.name}, only other modes or precisions of it"
            if is_measured_device
            else f"measurements of {machine.name}"
        )
        problems.append(f"the fit has no {lacking}")
        problems += list_device_facts_beyond_fit(fit, machine)
    if case.compiled:
        scope = "the data for torch.compile has only RTX 5090 in fp16 and T4 in fp32, 30 steps"
        guess = (
            ""
            if is_device_measured_compiled(fit, case, machine)
            else ": its effect on this device is a guess"
        )
        problems.append(f"{scope}{guess}")
    if case.channels_last and get_activation_element_bytes(case.precision) > 2:
        problems.append(
            "the data for channels-last has half precision only: the time assumes contiguous "
            "tensors"
        )
    return tuple(problems)


def find_nearest_published_step(
    fit: ShippedFit, case: StepSpec, machine: Machine
) -> NearestStep | None:
    """The published step with the most similar work, on the most similar device; None where the
    direction has none."""
    macs = sum(work.calls * work.macs for work in case.works)
    tensor_values = sum(work.calls * (work.inputs + work.outputs) for work in case.works)
    direction, best, neighbour = "t" if case.training else "i", float("inf"), None
    own_mode = get_cost_regime(case, machine).mode_key
    devices: dict[str, float] = {}
    for name, its_macs, its_held, measured_on in fit.networks:
        if not its_macs or not its_held or not macs or not tensor_values:
            continue
        apart = max(abs(log(macs / its_macs)), abs(log(tensor_values / its_held)))
        if apart + len(name) * 1e-4 >= best:
            continue
        for measurement in measured_on.split("|"):
            device, _, regime = measurement.partition("/")
            if not regime.startswith(direction):
                continue
            if device not in devices:
                devices[device] = _compute_device_distance(machine, device)
            score = (
                apart + devices[device] + (0.0 if regime == own_mode else 0.5) + len(name) * 1e-4
            )  # of equals the plainest name
            if score < best:
                best, neighbour = score, NearestStep(device, name, regime, exp(apart) - 1.0)
    return neighbour


def _compute_device_distance(machine: Machine, device_name: str) -> float:
    """Distance of two devices: logarithms of the ratios of their peaks; an eighth of it counts
    beside the work's."""
    if machine.name == device_name:  # a CPU
        return 0.0
    other = next(
        (
            machine_
            for machine_ in list_board_table_machines()
            if strip_memory_size(machine_.name) == device_name
        ),
        None,
    )
    if other is None:
        return 1.0
    pairs = (
        (machine.bytes_per_second, other.bytes_per_second),
        (machine.flops_per_second.get("fp32", 1.0), other.flops_per_second.get("fp32", 1.0)),
    )
    return (
        0.0
        if strip_memory_size(machine.name) == device_name
        else 0.05 + sum(abs(log(value / its)) for value, its in pairs) / 8
    )


def describe_fit_source(fit: ShippedFit) -> str:
    """Return the source of a prediction."""
    if fit.kind == "cpu":
        scope = f"{', '.join(fit.measured)} under torch.compile"
        return f"{fit.rows:,} steps of one sample on one CPU, {scope}"
    return f"{fit.rows:,} steps of {len(fit.measured)} devices"


def describe_nearest_step(fit: ShippedFit, case: StepSpec, machine: Machine) -> str | None:
    """Return "RTX 3090, resnet50 on tensor cores, FLOPs per sample differ by 4%"; None without a
    published step."""
    neighbour = find_nearest_published_step(fit, case, machine)
    if neighbour is None:
        return None
    name = neighbour.model.partition(":")[2]
    units = "on tensor cores" if neighbour.regime[1] == "T" else "in fp32"
    percentage = round(100 * neighbour.away)
    if neighbour.away >= 1:
        apart = f"FLOPs per sample differ by a factor of {1 + neighbour.away:.2g}"
    else:
        apart = (
            f"FLOPs per sample differ by {percentage}%" if percentage else "same FLOPs per sample"
        )
    return f"{neighbour.device}, {name} {units}, {apart}"
