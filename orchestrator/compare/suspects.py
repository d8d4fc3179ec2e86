"""Which differences between the two sides may have caused a change, by what their kernels say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from perfctl.orchestrator.compare.causes import (
    ALGORITHM,
    ARITHMETIC,
    GRIDS,
    LAUNCHES,
    ONLY_A,
    ONLY_B,
    OTHER_KERNELS,
    Executed,
    Part,
    Why,
)
from perfctl.orchestrator.compare.compare import Pair
from perfctl.orchestrator.compare.facts import NOT_RECORDED, Difference
from perfctl.orchestrator.compare.rows import BETTER, NOT_SHOWN, WITHIN, WORSE

LIKELY, POSSIBLE, UNLIKELY = "likely", "possible", "unlikely"
NOT_RANKED = "not ranked"
LEVELS = (LIKELY, POSSIBLE, UNLIKELY, NOT_RANKED)
SLOWED = 0.02
"""Kernels that did not change and whose time moved by more than this share moved with
the machine."""
BETWEEN = 0.5
"""Kernels whose change is a smaller share of the step's than this leave the change to the time
between them."""
_Judged = tuple[str, str]
"""(level, reason)."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A difference, and how likely it is behind the change."""

    JSON_NAMES: ClassVar = {"level": "as_cause", "why": "as_cause_why"}
    JSON_INLINED = ("difference",)

    difference: Difference
    level: str
    why: str


def suspects(pair: Pair, why: Why) -> tuple[Suspect, ...]:
    """Every difference of the pair, the likeliest first; within a level in the order of the facts.

    None is ranked where nothing was compared, for then there is no change that could have a cause.
    """
    if not any(row.a and row.b for row in pair.rows):
        return tuple(Suspect(one, NOT_RANKED, "nothing was compared") for one in pair.differences)
    found = [Suspect(one, *_judged(one, why)) for one in pair.differences]
    return tuple(sorted(found, key=lambda one: LEVELS.index(one.level)))


def _judged(one: Difference, why: Why) -> _Judged:
    """What one side did not record may be the same on both, so it is never likely."""
    level, reason = _RULES.get(one.fact, _nothing)(why)
    missing = [label for label, value in (("A", one.a), ("B", one.b)) if value == NOT_RECORDED]
    if level == LIKELY and missing:
        return POSSIBLE, f"not recorded in {missing[0]}, so it may be the same"
    return level, reason


def between_kernels(why: Why) -> bool:
    """True where the step changed, and its kernels by less than half of that."""
    step, kernels = why.step, why.kernels
    if step is None or kernels is None or not (step.a and step.b and kernels.a and kernels.b):
        return False
    if step.verdict in (NOT_SHOWN, WITHIN):
        return False
    whole, inside = step.b.median - step.a.median, kernels.b.median - kernels.a.median
    return abs(whole) > SLOWED * step.a.median and inside / whole < BETWEEN


def _named(parts: tuple[Part, ...]) -> str:
    """ "conv2 forward", "conv2 forward and 2 others"."""
    others = len(parts) - 1
    return (
        parts[0].name
        if not others
        else f"{parts[0].name} and {others} other{'s' if others > 1 else ''}"
    )


def _other(why: Why, wanted: Callable[[Executed], bool]) -> tuple[Part, ...]:
    """Places whose kernels changed, where a side fits."""
    changed = why.of(ALGORITHM, ARITHMETIC, OTHER_KERNELS)
    return tuple(
        part
        for part in changed
        if any(side is not None and wanted(side) for side in (part.a, part.b))
    )


def _has(why: Why, wanted: Callable[[Executed], bool]) -> bool:
    return any(wanted(side) for part in why.parts for side in (part.a, part.b) if side is not None)


def _work(why: Why) -> _Judged:
    return LIKELY, "the step does other work"


def _machine(why: Why) -> _Judged:
    return LIKELY, "every kernel takes another time on another device"


def _clock(why: Why) -> _Judged:
    return _moved(why, "the clock changes the time of every kernel")


def _moved(why: Why, reason: str) -> _Judged:
    """By kernels that are the same on both sides."""
    factor = why.unchanged
    if factor is None:
        return POSSIBLE, reason
    if why.verdict not in WORSE + BETTER and abs(factor - 1) > SLOWED:
        return POSSIBLE, f"{reason}, and no change of the step is shown"
    if abs(factor - 1) <= SLOWED:
        return UNLIKELY, f"kernels that are the same took {factor:.2f} times as long"
    return LIKELY, f"{reason}: those that are the same took {factor:.2f} times as long"


def _types(why: Why) -> _Judged:
    parts = why.of(ARITHMETIC)
    if parts:
        return LIKELY, f"{_named(parts)} multiply in another type of numbers"
    if _has(why, lambda side: bool(side.arithmetic)):
        return UNLIKELY, "the kernels multiply in the same types of numbers"
    return POSSIBLE, "other arithmetic"


def _cudnn(why: Why) -> _Judged:
    return _library(
        why,
        "convolutions run the kernels that cuDNN chooses",
        "convolution",
        lambda side: "cudnn" in side.libraries,
    )


def _cuda(why: Why) -> _Judged:
    return _library(
        why,
        "GEMMs run the kernels that cuBLAS chooses, which comes with CUDA",
        "GEMM",
        lambda side: "cublas" in side.libraries,
    )


def _library(why: Why, reason: str, what: str, wanted: Callable[[Executed], bool]) -> _Judged:
    if not why.has_kernels:
        return UNLIKELY, "no kernel ran on a GPU"
    parts = _other(why, wanted)
    if parts:
        return LIKELY, f"{reason}, and {_named(parts)} ran other kernels"
    if _has(why, wanted):
        return UNLIKELY, f"the same {what} kernels ran"
    return UNLIKELY, f"none of its {what} kernels ran"


def _torch(why: Why) -> _Judged:
    if not why.has_kernels:
        return LIKELY, "torch and the CPU libraries it comes with do the arithmetic"
    changed = why.of(ONLY_A, ONLY_B, LAUNCHES) + _other(
        why, lambda side: not side.libraries & {"cudnn", "cublas"}
    )
    if changed:
        return LIKELY, f"torch chooses what is launched, and {_named(changed)} changed"
    if why.of(ALGORITHM, ARITHMETIC, OTHER_KERNELS):
        return POSSIBLE, "torch comes with its own CUDA, cuBLAS and cuDNN"
    if between_kernels(why):
        return LIKELY, "the time between kernels changed, which is torch's on the host"
    return UNLIKELY, "the same kernels were launched as often"


def _code(why: Why) -> _Judged:
    changed = why.of(ONLY_A, ONLY_B, LAUNCHES, GRIDS)
    if changed:
        return LIKELY, f"your code says what runs, and {_named(changed)} changed"
    if not why.has_kernels or between_kernels(why):
        return LIKELY, "your code runs on the host"
    if why.of(ALGORITHM, ARITHMETIC, OTHER_KERNELS):
        return POSSIBLE, "your code says how each layer is computed"
    return UNLIKELY, "the same kernels were launched as often"


def _host(why: Why) -> _Judged:
    if not why.has_kernels:
        return LIKELY, "the step ran on the CPU"
    if between_kernels(why):
        return LIKELY, "the time between kernels changed, which is the host's"
    if why.step is not None and why.kernels is not None:
        return UNLIKELY, "the kernels' time changed as the step's did"
    return POSSIBLE, "the host launches the kernels"


def _driver(why: Why) -> _Judged:
    if not why.has_kernels:
        return UNLIKELY, "no kernel ran on a GPU"
    if between_kernels(why):
        return POSSIBLE, "the driver launches the kernels, and the time between them changed"
    return (
        (UNLIKELY, "the kernels changed")
        if why.of(ALGORITHM, ARITHMETIC, OTHER_KERNELS)
        else _moved(why, "the driver sets clocks")
    )


def _watched(why: Why) -> _Judged:
    return POSSIBLE, "profilers add time to a step"


def _grids(why: Why) -> _Judged:
    parts = why.of(GRIDS)
    return (
        (LIKELY, f"{_named(parts)} ran on tensors of another size")
        if parts
        else (POSSIBLE, "other data may be other work")
    )


def _nothing(why: Why) -> _Judged:
    return UNLIKELY, "nothing in the figures points to it"


_RULES: Mapping[str, Callable[[Why], _Judged]] = {
    **dict.fromkeys(("workload", "variant", "mode", "batch", "world_size"), _work),
    **dict.fromkeys(("device", "cpu_model", "cpu_capability"), _machine),
    **dict.fromkeys(("largest clock", "SM clock while it ran"), _clock),
    **dict.fromkeys(("precision", "tf32_conv", "tf32_matmul"), _types),
    "commit": _code,
    "torch": _torch,
    "cuda": _cuda,
    **dict.fromkeys(("cudnn", "cudnn_benchmark"), _cudnn),
    "driver": _driver,
    **dict.fromkeys(
        ("threads", "threads of the host", "python", "host", "cpu", "cpu_count", "kernel"), _host
    ),
    **dict.fromkeys(("profiler", "profiler version", "what timed the steps", "perfctl"), _watched),
    "data": _grids,
}
"""Fact -> how likely it is. Other facts point nowhere."""
