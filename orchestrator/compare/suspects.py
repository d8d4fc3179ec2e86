"""Which differences between the two sides may have caused a change, by what their kernels show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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
from perfctl.orchestrator.compare.compared import BETTER, NOT_SHOWN, WITHIN, WORSE
from perfctl.orchestrator.compare.sides import NOT_RECORDED, Difference

LIKELY, POSSIBLE, UNLIKELY = "likely", "possible", "unlikely"
NOT_RANKED = "not ranked"
LEVELS = (LIKELY, POSSIBLE, UNLIKELY, NOT_RANKED)
UNCHANGED_KERNELS_SHARE_MAX = 0.02
"""If the time of kernels that did not change moved by a larger share, it moved with the machine."""
KERNELS_SHARE_OF_CHANGE_MIN = 0.5
"""If kernels account for a smaller share of the step's change, the change is between them."""
_Ranked = tuple[str, str]
"""(level, reason)."""
_NOTHING: _Ranked = (UNLIKELY, "nothing in the figures points to it")
_OTHER = (ALGORITHM, ARITHMETIC, OTHER_KERNELS)
_LAUNCHED = (ONLY_A, ONLY_B, LAUNCHES)
_ALWAYS: Mapping[str, _Ranked] = {
    **dict.fromkeys(
        ("workload", "variant", "mode", "batch", "world_size"),
        (LIKELY, "the step does other work"),
    ),
    **dict.fromkeys(
        ("device", "cpu_model", "cpu_capability"),
        (LIKELY, "every kernel takes another time on another device"),
    ),
    **dict.fromkeys(
        ("profiler", "profiler version", "what timed the steps", "perfctl"),
        (POSSIBLE, "profilers add time to a step"),
    ),
}
"""Fact -> how likely it is, whatever the kernels show."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A difference, and how likely it is behind the change."""

    JSON_NAMES: ClassVar = {"level": "as_cause", "why": "as_cause_why"}
    JSON_INLINED = ("difference",)

    difference: Difference
    level: str
    why: str


def suspects(pair: Pair, why: Why) -> tuple[Suspect, ...]:
    """Return every difference of the pair, the likeliest first; within a level in the order of the
    facts.

    If nothing was compared, none is ranked, because there is no change that could have a cause.
    """
    if not any(row.before and row.after for row in pair.rows):
        return tuple(
            Suspect(difference, NOT_RANKED, "nothing was compared")
            for difference in pair.differences
        )
    ranked = [Suspect(difference, *_rank(difference, why)) for difference in pair.differences]
    return tuple(sorted(ranked, key=lambda suspect: LEVELS.index(suspect.level)))


def _rank(difference: Difference, why: Why) -> _Ranked:
    """What one side did not record may be the same on both, so it is never likely."""
    level, reason = _ALWAYS.get(difference.fact, _NOTHING)
    if (rule := _RULES.get(difference.fact)) is not None:
        level, reason = rule(why)
    if level == LIKELY and NOT_RECORDED in (difference.a, difference.b):
        side = "A" if difference.a == NOT_RECORDED else "B"
        return POSSIBLE, f"not recorded in {side}, so it may be the same"
    return level, reason


def between_kernels(why: Why) -> bool:
    """Return whether the step changed, and its kernels by less than half of that."""
    step, kernels = why.step, why.kernels
    if (
        step is None
        or kernels is None
        or not (step.before and step.after and kernels.before and kernels.after)
    ):
        return False
    if step.result in (NOT_SHOWN, WITHIN):
        return False
    change, inside = (
        step.after.median - step.before.median,
        kernels.after.median - kernels.before.median,
    )
    is_change = abs(change) > UNCHANGED_KERNELS_SHARE_MAX * step.before.median
    return is_change and inside / change < KERNELS_SHARE_OF_CHANGE_MIN


def _name_parts(parts: tuple[Part, ...]) -> str:
    """Return "conv2 forward" or "conv2 forward and 2 others"."""
    others = len(parts) - 1
    more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
    return f"{parts[0].name}{more}"


def _parts_with(parts: tuple[Part, ...], fits: Callable[[Executed], bool]) -> tuple[Part, ...]:
    return tuple(part for part in parts if any(map(fits, part.sides)))


def _rank_by_unchanged_kernels(reason: str, why: Why) -> _Ranked:
    factor = why.unchanged
    if factor is None:
        return POSSIBLE, reason
    if abs(factor - 1) <= UNCHANGED_KERNELS_SHARE_MAX:
        return UNLIKELY, f"kernels that are the same took {factor:.2f} times as long"
    if why.result not in WORSE + BETTER:
        return POSSIBLE, f"{reason}, and no change of the step is shown"
    return LIKELY, f"{reason}: those that are the same took {factor:.2f} times as long"


def _rank_types(why: Why) -> _Ranked:
    if parts := why.of(ARITHMETIC):
        return LIKELY, f"{_name_parts(parts)} multiply in another type of numbers"
    if _parts_with(why.parts, lambda side: bool(side.arithmetic)):
        return UNLIKELY, "the kernels multiply in the same types of numbers"
    return POSSIBLE, "other arithmetic"


def _rank_library(library: str, operation: str, reason: str, why: Why) -> _Ranked:
    if not why.has_kernels:
        return UNLIKELY, "no kernel ran on a GPU"
    if parts := _parts_with(why.of(*_OTHER), lambda side: library in side.libraries):
        return LIKELY, f"{reason}, and {_name_parts(parts)} ran other kernels"
    if _parts_with(why.parts, lambda side: library in side.libraries):
        return UNLIKELY, f"the same {operation} kernels ran"
    return UNLIKELY, f"none of its {operation} kernels ran"


def _rank_torch(why: Why) -> _Ranked:
    if not why.has_kernels:
        return LIKELY, "torch and the CPU libraries it comes with do the arithmetic"
    other = why.of(*_OTHER)
    changed = why.of(*_LAUNCHED) + _parts_with(
        other, lambda side: not side.libraries & {"cudnn", "cublas"}
    )
    if changed:
        return LIKELY, f"torch chooses what is launched, and {_name_parts(changed)} changed"
    if other:
        return POSSIBLE, "torch comes with its own CUDA, cuBLAS and cuDNN"
    if between_kernels(why):
        return LIKELY, "the time between kernels changed, which is torch's on the host"
    return UNLIKELY, "the same kernels were launched as often"


def _rank_code(why: Why) -> _Ranked:
    if changed := why.of(*_LAUNCHED, GRIDS):
        return LIKELY, f"your code says what runs, and {_name_parts(changed)} changed"
    if not why.has_kernels or between_kernels(why):
        return LIKELY, "your code runs on the host"
    if why.of(*_OTHER):
        return POSSIBLE, "your code says how each layer is computed"
    return UNLIKELY, "the same kernels were launched as often"


def _rank_host(why: Why) -> _Ranked:
    if not why.has_kernels:
        return LIKELY, "the step ran on the CPU"
    if between_kernels(why):
        return LIKELY, "the time between kernels changed, which is the host's"
    if why.step is not None and why.kernels is not None:
        return UNLIKELY, "the kernels' time changed as the step's did"
    return POSSIBLE, "the host launches the kernels"


def _rank_driver(why: Why) -> _Ranked:
    if not why.has_kernels:
        return UNLIKELY, "no kernel ran on a GPU"
    if between_kernels(why):
        return POSSIBLE, "the driver launches the kernels, and the time between them changed"
    if why.of(*_OTHER):
        return UNLIKELY, "the kernels changed"
    return _rank_by_unchanged_kernels("the driver sets clocks", why)


def _rank_data(why: Why) -> _Ranked:
    if parts := why.of(GRIDS):
        return LIKELY, f"{_name_parts(parts)} ran on tensors of another size"
    return POSSIBLE, "other data may be other work"


_CLOCK = partial(_rank_by_unchanged_kernels, "the clock changes the time of every kernel")
_CUDNN = partial(
    _rank_library, "cudnn", "convolution", "convolutions run the kernels that cuDNN chooses"
)
_CUDA = partial(
    _rank_library,
    "cublas",
    "GEMM",
    "GEMMs run the kernels that cuBLAS chooses, which comes with CUDA",
)
_RULES: Mapping[str, Callable[[Why], _Ranked]] = {
    **dict.fromkeys(("largest clock", "SM clock while it ran"), _CLOCK),
    **dict.fromkeys(("precision", "tf32_conv", "tf32_matmul"), _rank_types),
    **dict.fromkeys(("cudnn", "cudnn_benchmark"), _CUDNN),
    **dict.fromkeys(
        ("threads", "threads of the host", "python", "host", "cpu", "cpu_count", "kernel"),
        _rank_host,
    ),
    "commit": _rank_code,
    "torch": _rank_torch,
    "cuda": _CUDA,
    "driver": _rank_driver,
    "data": _rank_data,
}
"""Fact -> how likely it is, by the kernels. Facts in neither table point nowhere."""
