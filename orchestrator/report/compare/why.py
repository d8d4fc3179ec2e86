"""Figures of a comparison as text; and why a step changed, in sentences: the largest cause, and the
likely differences."""

from __future__ import annotations

from collections.abc import Iterable

from perfctl.orchestrator.compare.causes import (
    ALGORITHM,
    ARITHMETIC,
    LAUNCHES,
    LIKELY,
    NOT_RANKED,
    ONLY_A,
    ONLY_B,
    OTHER_KERNELS,
    SAME,
    TIMED,
    AlignedPair,
    ChangeCause,
    is_step_change_outside_kernels,
)
from perfctl.orchestrator.compare.quantities import FASTER, NOT_SHOWN, SLOWER, WITHIN
from perfctl.orchestrator.compare.sides import NOT_RECORDED
from perfctl.orchestrator.report.numbers import (
    format_rate,
    format_ratio,
    format_si,
    format_significant,
    format_time,
)
from perfctl.records.report import join_first_names, pluralize_count

CHANGED = (SLOWER, FASTER)
"""Results of a step that changed."""
_NAMES = {
    "winograd": "Winograd",
    "gemm": "GEMM",
    "fft": "FFT",
    "gemv": "GEMV",
    "cudnn": "cuDNN",
    "cublas": "cuBLAS",
}

ADD_UP = 0.25
"""Changes of layers that miss the step's by a larger share of it are not called parts of it."""

_PROPER = {"cudnn": "cuDNN", "cuda": "CUDA", "commit": "The commit", "driver": "The driver"}
"""Facts at the beginning of a sentence."""
MINUS = "−"

FACTOR_MIN = 10
"""A change is a factor from here on, and a percentage below."""

ENERGY_UNITS = {"energy": "J", "energy-delay product": "J·s"}

UNITS = {"memory": "B", "flops": "FLOP", **ENERGY_UNITS}


def join_algorithm_names(algorithms: Iterable[str]) -> str:
    return " + ".join(map(format_algorithm_name, algorithms))


def describe_largest_change_cause(match: AlignedPair) -> str | None:
    """Return what caused the change, without the full stop; None if nothing is known."""
    if not match.parts:
        return None
    if is_step_change_outside_kernels(match):
        assert match.step is not None and match.step.medians_of_both is not None
        a, b = match.step.medians_of_both
        much = (
            f"{_format_signed_time(match.total_change_ns or 0.0)} of the "
            f"{_format_signed_time(b - a)}"
        )
        return f"Kernels account for {much}; the rest is between kernels (host, launches, data)"
    if match.has_kernels_on_any_side and len(match.select_parts_of_kind(SAME)) == len(match.parts):
        launches = ""
        if match.launches_of_both is not None:
            span = " per step" if match.per_step else ""
            launches = f" ({match.launches_of_both[0]:,.6g} launches{span})"
        text = f"Both sides run the same kernels equally often on the same grids{launches}"
        if (
            match.step_or_kernel_result in CHANGED
            and (factor := match.unchanged_kernel_time_ratio) is not None
        ):
            return f"{text}; they took {factor:.2f} times as long"
        return text
    algorithms = [cause for cause in match.causes if cause.kind in (ALGORITHM, ARITHMETIC)]
    lead = match.causes[0]
    is_unchanged = not match.total_change_ns or match.step_or_kernel_result in (NOT_SHOWN, WITHIN)
    if lead.kind in (SAME, TIMED) and not algorithms and is_unchanged:
        return None  # what moved most of what did not move
    weight = abs(lead.change_ns)
    # a change of algorithm is named where it matters, also behind kernels that merely took longer
    chosen = next((cause for cause in algorithms if abs(cause.change_ns) >= weight / 4), lead)
    return _describe_cause_with_parts(chosen, match)


def describe_change_against_total(change_ns: float, match: AlignedPair) -> str:
    """Return "+0.48 ms of the +0.50 ms of kernel time"."""
    if not match.has_times_not_from_ncu:
        return f"{_format_signed_time(change_ns)} at the clocks of ncu"
    total, basis = (
        match.total_change_ns,
        "of kernel time" if match.has_kernels_on_any_side else "of the step",
    )
    if not total:
        return _format_signed_time(change_ns)
    if abs(change_ns - total) < 0.005 * abs(total):
        return f"{_format_signed_time(change_ns)}, all of the change {basis}"
    layers = sum(part.change or 0.0 for part in match.parts)
    # each is a median of its own
    if not match.has_kernels_on_any_side and abs(layers - total) > ADD_UP * abs(total):
        note = "the medians of layers do not add up to that of the step"
        return (
            f"{_format_signed_time(change_ns)}, while the step changed by "
            f"{_format_signed_time(total)}; {note}"
        )
    return f"{_format_signed_time(change_ns)} of the {_format_signed_time(total)} {basis}"


def _describe_cause_with_parts(cause: ChangeCause, match: AlignedPair) -> str:
    places, much = (
        _name_parts_of_cause(cause),
        describe_change_against_total(cause.change_ns, match),
    )
    if cause.kind in (ALGORITHM, ARITHMETIC):
        if cause.time_b_over_a is not None and match.has_times_not_from_ncu:
            much = f"{format_percent_change(cause.time_b_over_a - 1)} time; {much}"
        if cause.flops_b_over_a is not None and cause.kind == ALGORITHM:
            much = f"{format_significant(cause.flops_b_over_a)} times the FLOPs, {much}"
        before, after = join_algorithm_names(cause.before), join_algorithm_names(cause.after)
        if not (before and after):
            verb = "also uses" if after else "no longer uses"
            return f"{places} {verb} {after or before}: {much}"
        moved = f"{before} became {after}"
        if len(cause.libraries) == 1:
            (library,) = cause.libraries
            if library in ("cudnn", "cublas"):
                moved = f"{_NAMES[library]} changed from {before} to {after}"
        return f"{moved} in {places}: {much}"
    if cause.kind == LAUNCHES:
        launches = [part.launches_a_and_b for part in cause.parts]
        a, b = (sum(count or 0.0 for count in side) for side in zip(*launches, strict=True))
        number = "More" if b > a else "Fewer" if b < a else "Other"
        span = " per step" if match.per_step else ""
        return f"{number} launches{span} ({places}), {a:,.5g} in A, {b:,.5g} in B: {much}"
    if cause.kind in (ONLY_A, ONLY_B):
        return f"Only {cause.kind[-1]} recorded {places}: {much}"
    first = cause.parts[0]
    if cause.kind in (TIMED, SAME):
        tail = "" if cause.kind == TIMED else ", with the same kernels"
        return (
            f"{first.name} changed most: "
            f"{describe_change_against_total(first.change or 0.0, match)}{tail}"
        )
    kernels = "the same kernels on different grids"
    if cause.kind == OTHER_KERNELS:
        kernels = "different kernels of the same algorithm"
    return f"{places} {'run' if len(cause.parts) > 1 else 'runs'} {kernels}: {much}"


def _name_parts_of_cause(cause: ChangeCause) -> str:
    """Return "conv2 forward", "3 layers", "3 kinds of kernels"."""
    if len(cause.parts) == 1:
        return cause.parts[0].name
    layers = {part.layer for part in cause.parts if part.layer}
    if not layers:
        names = [part.direction for part in cause.parts]
        two = f"{', '.join(names[:2])} and {len(names) - 2} more kinds of kernels"
        return two if len(names) > 2 else f"{' and '.join(names)} kernels"
    if len(layers) == 1 and all(part.layer for part in cause.parts):
        return f"{next(iter(layers))} ({', '.join(part.direction for part in cause.parts)})"
    return pluralize_count(len(layers), "layer")


def format_algorithm_name(method: str) -> str:
    """Return "implicit gemm" as "implicit GEMM"."""
    return " ".join(_NAMES.get(part, part) for part in method.split(" "))


def describe_likely_differences(match: AlignedPair) -> str | None:
    """Return the differences that are likely causes; None if the sides do not differ, or nothing
    was compared."""
    if all(suspect.level == NOT_RANKED for suspect in match.suspects):
        return None
    likely = [suspect for suspect in match.suspects if suspect.level == LIKELY]
    if not likely:
        every = [suspect.difference for suspect in match.suspects]
        unknown = [item.fact for item in every if NOT_RECORDED in (item.a, item.b)]
        differ = [item.fact for item in every if item.fact not in unknown]
        facts = (
            f"; {join_first_names(differ, 3)} differ{'s' if len(differ) == 1 else ''}"
            if differ
            else ""
        )
        if unknown:
            verb = "was" if len(unknown) == 1 else "were"
            facts += f"; {join_first_names(unknown, 3)} {verb} recorded on one side only"
        return f"No difference between the sides is a likely cause{facts}."
    first, *further = (suspect.difference for suspect in likely)
    reason = format_as_sentence(likely[0].why)
    software = [difference for difference in match.pair.differences if difference.software]
    if first.software and len(software) == 1:
        name = _PROPER.get(first.fact, first.fact)
        return f"{name} ({first.a} in A, {first.b} in B) is the only version that changed. {reason}"
    tail = f"; also {', '.join(other.fact for other in further)}" if further else ""
    return f"Likely cause: {first.fact} {first.a} in A, {first.b} in B{tail}. {reason}"


def _format_signed_time(ns: float) -> str:
    return f"{'+' if ns >= 0 else MINUS}{format_time(abs(ns))}"


def format_quantity(kind: str, value: float) -> str:
    """Return a figure of this kind: "4.12 ms", "18 MB", "1.36 GFLOP", "3.90 k samples/s"."""
    if kind in ("time", "step", "layer"):
        return format_time(value)
    if kind == "throughput":
        return f"{format_rate(value)} samples/s"
    return f"{value:,.5g}" if kind == "launches" else format_si(value, UNITS[kind])


def format_percent_change(change: float) -> str:
    """Return "+20.1%", "−3.0%", "0.0%"; from a factor of 10 on "10.5 times"."""
    if change >= FACTOR_MIN - 1:
        return f"{format_change_as_factor(change)} times"
    text = f"{abs(change) * 100:.1f}%"
    if text == "0.0%" and change:
        return "< 0.1%" if change > 0 else f"> {MINUS}0.1%"
    return text if not change else ("+" if change > 0 else MINUS) + text


def format_change_interval(ends: tuple[float, float] | None) -> str:
    """Return "+18.9% to +21.2%", or "0.012 to 3,240 times" if an end is a factor of 10 or more."""
    if ends is not None and max(ends) >= FACTOR_MIN - 1:
        return f"{' to '.join(map(format_change_as_factor, ends))} times"
    return "" if ends is None else " to ".join(map(format_percent_change, ends))


def format_change_as_factor(change: float) -> str:
    """Return a change of 0.38 as "1.38"; "< 0.01" for a factor that would be 0.00."""
    factor = float(change + 1)
    if factor >= 1000:
        return f"{factor:,.0f}"
    return format_significant(factor) if factor >= 1 else format_ratio(factor)


def format_as_sentence(text: str) -> str:
    is_name = not text.partition(" ")[0].islower()
    return f"{text[:1] if is_name else text[:1].upper()}{text[1:]}." if text else ""
