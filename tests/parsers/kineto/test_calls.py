"""Single operators, sums of runtime calls and Python functions, the allocator's curve and compiled
kernels of a trace."""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers.allocator import Reading, thinned
from perfctl.parsers.kineto import trace as kineto_trace
from tests.make.kineto import event, read

SHAPES = {"Input_Dims": [[4, 8], [8], []], "Input_type": ["float", "c10::BFloat16", "Scalar"]}


def shaped(name: str, ts: object, dur: object, external: int, **args: object) -> dict[str, object]:
    return event("cpu_op", name, ts, dur, **{"External_id": external, **SHAPES, **args})


def test_without_single_operators_only_the_sums_are_kept(tmp_path: Path) -> None:
    report = read(tmp_path, shaped("aten::add", 10, 20, 1))
    without = kineto_trace.parse(report.path, single_operators=False)
    assert list(without.op_calls) == []
    assert list(without.operations) == list(report.operations)


def test_a_long_curve_is_thinned_and_keeps_its_peaks() -> None:
    readings = [Reading(at, at * 7919 % 1000, at * 104_729 % 997) for at in range(50_000)]
    readings[31_111] = Reading(31_111, 5000, 1)
    kept = thinned(list(readings), 100)
    assert len(kept) <= 100
    assert kept == sorted(kept)
    assert set(kept) <= set(readings)
    assert max(size for _, size, _ in kept if size is not None) == 5000
    assert max(size for _, _, size in kept if size is not None) == max(
        size for _, _, size in readings if size is not None
    )
