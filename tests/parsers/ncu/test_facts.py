"""Facts about a launch and its device among ncu's metrics: names in order of exactness,
units, integers."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import parse
from perfctl.parsers.ncu.facts import CYCLES, Value, device_of, kernel_fields
from perfctl.records.report import Device

ATTRIBUTE = "device__attribute_"
A100: dict[str, Value] = {
    "display_name": "A100",
    "multiprocessor_count": 108,
    "total_memory": 42_505_273_344,
    "clock_rate": 1_410_000,
    "memory_clock_rate": 1_215_000,
    "global_memory_bus_width": 5120,
    "compute_capability_major": 8,
    "compute_capability_minor": 0,
}


def attributes(values: dict[str, Value]) -> dict[str, tuple[Value, str | None]]:
    return {ATTRIBUTE + name: (value, None) for name, value in values.items()}


def test_the_most_exact_name_of_a_fact_counts() -> None:
    names = ("gpu__time_duration.sum", "gpu__time_duration", "Duration")
    for at in range(3):
        facts = {name: (1000 + number, "ns") for number, name in enumerate(names) if number >= at}
        assert kernel_fields(facts) == {"duration_ns": 1000 + at}
    facts = {names[0]: ("n/a", None), names[1]: (None, "ns"), names[2]: (1.5, "ns")}
    assert kernel_fields(facts) == {"duration_ns": 1.5}


@pytest.mark.parametrize(
    ("name", "value", "unit", "expected"),
    [
        ("gpu__time_duration.sum", 7, None, {"duration_ns": 7}),
        ("gpu__time_duration.sum", 7, "cycle", {}),
        ("Static Shared Memory Per Block", 16, "byte/block", {"static_shared_bytes": 16}),
        ("Static Shared Memory Per Block", 16, "byte", {"static_shared_bytes": 16}),
        ("Dynamic Shared Memory Per Block", 0, None, {"dynamic_shared_bytes": 0}),
        ("launch__shared_mem_per_block_dynamic", 16, "ns", {}),
        ("launch__registers_per_thread", 40, "register/thread", {"registers": 40}),
        ("launch__registers_per_thread", 40.5, "register/thread", {}),
        ("launch__grid_dim_y", 3, None, {"grid_y": 3}),
        ("launch__block_dim_z", 2, None, {"block_z": 2}),
        ("launch__device_id", 1, None, {"device_index": 1}),
        ("launch__stream_id", 7, None, {"stream": 7}),
        ("sm__cycles", 1, None, {}),
    ],
)
def test_a_fact_in_another_unit_or_with_a_fraction_is_left_out(
    name: str, value: Value, unit: str | None, expected: dict[str, int | float]
) -> None:
    assert kernel_fields({name: (value, unit)}) == expected


def test_a_device_is_described_in_base_units() -> None:
    """Bandwidth: 2 x 1,215,000 kHz x 5120 bits / 8; clock: 1,410,000 kHz."""
    assert device_of(3, None, attributes(A100)) == Device(
        "A100", "gpu", 3, "8.0", 108, 42_505_273_344, 1_555_200_000_000, clock_hz=1_410_000_000
    )
    found = device_of(3, None, attributes(A100))
    assert {type(found.memory_bandwidth_bps), type(found.clock_hz)} == {int}, (
        "whole, as all sizes are"
    )


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ({"memory_clock_rate": None}, {"memory_bandwidth_bps": None}),
        ({"memory_clock_rate": 0}, {"memory_bandwidth_bps": None}),
        ({"global_memory_bus_width": 0}, {"memory_bandwidth_bps": None}),
        ({"clock_rate": 0}, {"clock_hz": None}),
        ({"compute_capability_minor": None}, {"compute_capability": None}),
        ({"compute_capability_major": "8"}, {"compute_capability": None}),
        ({"display_name": ""}, {"name": None}),
        ({"display_name": 100}, {"name": None}),
        ({"multiprocessor_count": "n/a"}, {"sm_count": None}),
        ({"total_memory": 1.5}, {"memory_bytes": None}),
    ],
)
def test_what_was_not_collected_is_not_known(
    missing: dict[str, Value], expected: dict[str, None]
) -> None:
    found, whole = (
        device_of(0, None, attributes(A100 | missing)),
        device_of(0, None, attributes(A100)),
    )
    names = (
        "name",
        "compute_capability",
        "sm_count",
        "memory_bytes",
        "memory_bandwidth_bps",
        "clock_hz",
    )
    assert [name for name in names if getattr(found, name) != getattr(whole, name)] == list(
        expected
    )
    assert all(getattr(found, name) is None for name in expected)


def test_the_column_cc_says_the_compute_capability_first() -> None:
    assert device_of(0, "7.5", attributes(A100)).compute_capability == "7.5"
    assert device_of(0, "7.5", {}) == Device(None, "gpu", 0, "7.5")


@pytest.mark.parametrize("names", CYCLES)
def test_without_a_duration_the_time_is_cycles_by_clock_rate(names: tuple[str, str]) -> None:
    both = {names[0]: (1_200_000, "cycle"), names[1]: (1.5e9, "Hz")}
    assert kernel_fields(both)["duration_ns"] == pytest.approx(1_200_000 / 1.5)
    assert kernel_fields(both | {"gpu__time_duration.sum": (7, "ns")})["duration_ns"] == 7, (
        "the tool's own comes first"
    )
    assert "duration_ns" not in kernel_fields({names[0]: (1_200_000, "cycle")})
    assert "duration_ns" not in kernel_fields({**both, names[1]: (0, "Hz")})
    assert "duration_ns" not in kernel_fields({**both, names[1]: (None, "Hz")})
    assert "duration_ns" not in kernel_fields({**both, "gpu__time_duration.sum": (None, "ns")}), (
        "it could not be measured"
    )


def test_a_real_report_without_durations_has_them_by_its_cycles_and_says_so(reports: Path) -> None:
    found = parse(reports / "ncu" / "csv_long" / "leleucas_conv2d_result.csv")
    (kernel,), (gap,) = (
        found.kernels,
        [gap for gap in found.gaps if gap.quantity == "kernel.duration_ns"],
    )
    # ncu counts time in steps of 32 ns
    assert kernel.duration_ns == pytest.approx(6387.24 / 959_621_505.52 * 1e9)
    assert "worked out from cycles and clock rate: sm__cycles_elapsed.avg" in gap.reason


def test_where_a_report_has_all_three_cycles_by_clock_rate_is_its_duration(reports: Path) -> None:
    pytest.importorskip("ncu_report")
    found = parse(reports / "ncu" / "rep" / "cs599k_h100_silu_2025-04-21.ncu-rep")
    values = {(item.launch, item.name): item.value for item in found.counters}
    for kernel in found.kernels:
        for cycles, rate in CYCLES:
            by_cycles = (
                (values[kernel.launch, cycles] or 0) / (values[kernel.launch, rate] or 1) * 1e9
            )
            assert by_cycles == pytest.approx(kernel.duration_ns, rel=1e-6)
