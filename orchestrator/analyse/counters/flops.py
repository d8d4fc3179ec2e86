"""FLOPs that one kernel executed, from its SASS counters, or from those of an AMD GPU (amd.py). 1 multiply-add = 2 FLOPs.

``_thread_inst_`` metrics count threads, so they are not multiplied by 32; ``sm__`` and ``smsp__`` sums agree. Additions
alone (FADD, the counters of many studies) say nothing about multiply-adds, which are FFMA: all three are needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from perfctl.orchestrator.analyse.counters import amd, sums
from perfctl.orchestrator.analyse.counters.sums import AMPERE_OR_LATER, NO_INTEGER, PREFIX, Values
from perfctl.orchestrator.analyse.figure import Figure, missing
from perfctl.orchestrator.analyse.kernels.names import NOTHING, Algorithm, recognise
from perfctl.records.report import Counter
from perfctl.records.run import Run


class KernelFlops(NamedTuple):
    """FLOPs of one launch by path; ``total`` is their sum, a lower bound when a path is missing."""

    fp32: Figure
    fp64: Figure
    fp16: Figure
    tensor: Figure
    total: Figure
    tensor_types: tuple[tuple[str, Figure], ...] = ()
    """("tf32", figure), ... where the report tells them apart; integer types are here too."""
    integer: Figure = NO_INTEGER
    """Integer operations of the tensor cores: no FLOPs, and not in ``total``."""


def values_by_launch(counters: Iterable[Counter]) -> dict[int, dict[str, float | None]]:
    """launch -> metric -> value; a metric that several sections print keeps its first number."""
    found: dict[int, dict[str, float | None]] = {}
    for launch, name, value, *_ in counters:
        values = found.setdefault(launch, {})
        if values.get(name) is None:
            values[name] = value
    return found


def flops_by_launch(run: Run, by_launch: Mapping[int, Values]) -> dict[int, KernelFlops]:
    """launch -> FLOPs, for every launch of the run that has any counter; ``by_launch`` are its ``values_by_launch``."""
    capability, sms = compute_capability(run), sm_count(run)
    if run.profiler in amd.TOOLS:
        return {launch: amd_flops(values, capability) for launch, values in by_launch.items()}
    if (
        capability is None
    ):  # what the chip is at least, by kernels that exist for it only: ampere_sgemm runs on no earlier
        chips = {recognise(name).architecture or "" for name in {kernel.name for kernel in run.report.kernels}}
        later = ("ampere", "ada", "hopper", "blackwell")
        if any(chip in later or (chip.startswith("sm") and int(chip[2:]) >= 80) for chip in chips):
            capability = AMPERE_OR_LATER
    version = run.profiler_version or run.report.tool_version
    names = {kernel.launch: kernel.name for kernel in run.report.kernels}
    return {
        launch: kernel_flops(values, capability, name=names.get(launch), sm_count=sms, version=version)
        for launch, values in by_launch.items()
    }


def compute_capability(run: Run) -> str | None:
    """Of the GPU the run used, "gfx942" for AMD's; None when no record says so."""
    return next((device.compute_capability for device in run.devices if device.compute_capability), None)


def sm_count(run: Run) -> int | None:
    """Streaming multiprocessors (AMD: compute units) of the GPU the run used; None when no record says so."""
    return next((device.sm_count for device in run.devices if device.sm_count), None)


def amd_flops(values: Values, chip: str | None) -> KernelFlops:
    """FLOPs of one launch on an AMD GPU; ``chip`` is "gfx942", ... or None when not known."""
    used = tuple(item for item in values.items() if amd.makes_flops(item[0]))
    return _amd_flops(used, chip)


@lru_cache(maxsize=65536)
def _amd_flops(items: tuple[tuple[str, float | None], ...], chip: str | None) -> KernelFlops:
    values = dict(items)
    vector = {path: amd.vector(values, path, chip) for path in amd.PATHS}
    matrix, types, integer = amd.matrix(values, chip)
    return KernelFlops(
        **vector, tensor=matrix, total=_total({**vector, "tensor": matrix}), tensor_types=types, integer=integer
    )


def kernel_flops(
    values: Values, capability: str | None, *,
    name: str | None = None, sm_count: int | None = None, version: str | None = None,
) -> KernelFlops:  # fmt: skip
    """FLOPs of one launch from its metrics.

    ``capability`` is "7.0", "8.6", ... or None when not known. The kernel's ``name`` may say the shape of its tensor
    instructions, ``sm_count`` turns averages into sums, ``version`` is that of ncu.
    """
    algorithm = recognise(name) if name else NOTHING
    halves = has_halves(name) if name else None
    used = tuple(item for item in values.items() if makes_flops(item[0]))
    if all(metric.endswith(".sum") for metric, _ in used):
        return _kernel_flops(used, capability, algorithm, version, halves)
    counted, rules = sums.with_counts(values, sm_count)
    items = tuple(item for item in counted.items() if makes_flops(item[0]))
    found = _kernel_flops(items, capability, algorithm, version, halves)
    return _estimated(found, rules) if rules else _without_counts(found, sums.unused(values))


def _without_counts(found: KernelFlops, unused: frozenset[str]) -> KernelFlops:
    reasons = {
        figure.reason: f"{path} counters ({', '.join(ops).upper()}) are there as rates only, from which no whole counts "
        "follow"
        for path, ops in sums.PATHS.items()
        if (figure := getattr(found, path)).state == "not_collected" and unused.issuperset(ops)
    }
    changed = {
        path: replace(figure, reason=reasons[figure.reason])
        for path in (*sums.PATHS, "total")
        if (figure := getattr(found, path)).value is None and figure.reason in reasons
    }
    return found._replace(**changed)


def _estimated(found: KernelFlops, rules: Mapping[str, str]) -> KernelFlops:
    core = [rule for metric, rule in rules.items() if "_op_" in metric and "tensor" not in metric]
    tensors = [rule for metric, rule in rules.items() if "tensor" in metric]
    by_path = dict.fromkeys(sums.PATHS, core) | {"tensor": tensors, "total": [*core, *tensors]}
    return found._replace(
        tensor_types=tuple((kind, _from_rates(figure, tensors)) for kind, figure in found.tensor_types),
        **{path: _from_rates(getattr(found, path), used) for path, used in by_path.items()},
    )


def _from_rates(figure: Figure, rules: Iterable[str]) -> Figure:
    named = tuple(dict.fromkeys(rules))
    if figure.value is None or not figure.launches or not named:
        return figure
    return replace(figure, state="estimated", reason="; ".join((*named, *filter(None, (figure.reason,)))))


@lru_cache(maxsize=4096)
def makes_flops(name: str) -> bool:
    """True for the metrics that FLOPs are made from (what turns a rate into a count not included)."""
    is_nvidia = "_thread_inst_executed_op_" in name or "_inst_executed_pipe_tensor" in name or name.startswith(PREFIX)
    return is_nvidia or amd.makes_flops(name)


@lru_cache(maxsize=65536)
def _kernel_flops(
    items: tuple[tuple[str, float | None], ...], capability: str | None, algorithm: Algorithm, version: str | None,
    halves: bool | None,
) -> KernelFlops:  # fmt: skip
    """Launches of one kernel mostly have the same counts, so equal ones are worked out once."""
    values = dict(items)
    phantom = sums.is_phantom(values, capability, algorithm.tensor_core)
    fp32 = sums.fp32(values, capability)
    fp64 = sums.weighted(values, "fp64")
    fp16 = sums.fp16(values, capability, phantom, version, halves)
    tensor, types, integer = sums.tensor(values, capability, phantom, algorithm)
    total = _total({"fp32": fp32, "fp64": fp64, "fp16": fp16, "tensor": tensor}, bool(algorithm.tensor_core))
    return KernelFlops(fp32, fp64, fp16, tensor, total, types, integer)


_HALF = re.compile(r"half|bf16|bfloat16|(?<![a-z0-9])fp?16|e[45]m[23]|fp8", re.IGNORECASE)
_CASTS = re.compile(r"\((?:unsigned )?(?:int|long|bool|char)\)")
_TYPE = re.compile(
    r"(?<![a-z])(?:float|double|int|long|unsigned|char|short|bool)\d?(?![a-z])|[sdcz]gemm|scudnn|f32|f64"
)


@lru_cache(maxsize=4096)
def has_halves(name: str) -> bool | None:
    """Whether a kernel's name has a type of 16 bits or fewer among its types; None where it has no types."""
    if _HALF.search(name):
        return True
    return False if _TYPE.search(_CASTS.sub("", name)) else None


BESIDE = "partly known: only what its threads did beside the tensor cores"


def _total(paths: Mapping[str, Figure], tensor_kernel: bool = False) -> Figure:
    """Sum of the paths. No value when nothing was measured, or when the known part is 0 and a path is missing.

    A product on tensor cores whose tensor work is not known has no counted total: what is known is beside its work.
    """
    lacking = {name: figure for name, figure in paths.items() if figure.value is None}
    known = [figure for figure in paths.values() if figure.value is not None]
    value = sum(figure.value or 0 for figure in known)
    without = (*lacking, *(part for figure in known for part in figure.missing))
    if not known or (without and value == 0):
        first = next(iter(lacking.values()), None)
        if first is None:
            return missing("not_collected", f"{', '.join(without)} was not collected and the rest is 0")
        return missing(first.state, first.reason or "not collected")
    notes = [figure.reason for figure in known if figure.reason and figure.launches]
    notes += [f"{name}: {figure.reason}" for name, figure in lacking.items()]
    rules = "; ".join(f"{name}: {figure.rule}" for name, figure in paths.items() if figure.rule and figure.value)
    beside = tensor_kernel and "tensor" in lacking
    if beside:
        notes.insert(0, BESIDE)
    state = "estimated" if beside or any(figure.state == "estimated" for figure in known) else "counted"
    return Figure(value, state, "; ".join(notes) or None, missing=without, rule=rules or None)
