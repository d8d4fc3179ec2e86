"""ncu metrics that are facts about a launch or its device, under all their names."""

from __future__ import annotations

from collections.abc import Mapping

from perfctl.parsers.records import Device

Value = int | float | str | None

KERNEL_FACTS: dict[str, tuple[str, ...]] = {
    "duration_ns": ("gpu__time_duration.sum", "gpu__time_duration", "Duration"),
    "registers": ("launch__registers_per_thread", "Registers Per Thread"),
    "static_shared_bytes": ("launch__shared_mem_per_block_static", "Static Shared Memory Per Block"),
    "dynamic_shared_bytes": ("launch__shared_mem_per_block_dynamic", "Dynamic Shared Memory Per Block"),
    "grid_x": ("launch__grid_dim_x",),
    "grid_y": ("launch__grid_dim_y",),
    "grid_z": ("launch__grid_dim_z",),
    "block_x": ("launch__block_dim_x",),
    "block_y": ("launch__block_dim_y",),
    "block_z": ("launch__block_dim_z",),
    "device_index": ("launch__device_id",),
    "stream": ("launch__stream_id",),
}
"""Field of Kernel -> metric names, the most exact first; display names are those of the details page."""

DEVICE_FACTS = (
    "device__attribute_display_name",
    "device__attribute_multiprocessor_count",
    "device__attribute_total_memory",
    "device__attribute_clock_rate",
    "device__attribute_memory_clock_rate",
    "device__attribute_global_memory_bus_width",
    "device__attribute_compute_capability_major",
    "device__attribute_compute_capability_minor",
)

FACT_NAMES = frozenset(name for names in KERNEL_FACTS.values() for name in names) | frozenset(DEVICE_FACTS)

_UNITS = {"duration_ns": "ns", "static_shared_bytes": "byte/block", "dynamic_shared_bytes": "byte/block"}
_KILO = 1000
_DOUBLE_DATA_RATE = 2


def kernel_fields(facts: Mapping[str, tuple[Value, str | None]]) -> dict[str, int | float]:
    """Fields of Kernel from a launch's facts: metric name -> (value, unit), both in base units.

    A missing unit means the base unit: ncu prints none for metrics of a report that a different version
    wrote (values stay in base units there). A value in another unit than the field's is left out.
    """
    found: dict[str, int | float] = {}
    for field, names in KERNEL_FACTS.items():
        for name in names:
            value, unit = facts.get(name, (None, None))
            if not isinstance(value, int | float) or (field in _UNITS and unit not in (None, "byte", _UNITS[field])):
                continue
            if field != "duration_ns" and not isinstance(value, int):
                continue
            found[field] = value
            break
    return found


def device_of(index: int, capability: str | None, facts: Mapping[str, tuple[Value, str | None]]) -> Device:
    """The device of a launch, from the CC column and device attributes where they were collected.

    Clock attributes are in kHz and the bus width in bits; bandwidth is 2 x memory clock x bus width, which for an
    A100 gives the 1,555,200,000,000 bytes/s that nsys states for it.
    """
    values = {name: facts.get(name, (None, None))[0] for name in DEVICE_FACTS}
    name = values["device__attribute_display_name"]
    clock = _whole(values["device__attribute_clock_rate"])
    memory_clock = _whole(values["device__attribute_memory_clock_rate"])
    bus_bits = _whole(values["device__attribute_global_memory_bus_width"])
    major = _whole(values["device__attribute_compute_capability_major"])
    minor = _whole(values["device__attribute_compute_capability_minor"])
    bandwidth = None
    if memory_clock and bus_bits:
        bandwidth = _DOUBLE_DATA_RATE * memory_clock * _KILO * bus_bits // 8
    return Device(
        name=name if isinstance(name, str) and name else None,
        kind="gpu",
        index=index,
        compute_capability=capability or (f"{major}.{minor}" if major is not None and minor is not None else None),
        sm_count=_whole(values["device__attribute_multiprocessor_count"]),
        memory_bytes=_whole(values["device__attribute_total_memory"]),
        memory_bandwidth_bps=bandwidth,
        clock_hz=clock * _KILO if clock else None,
    )


def _whole(value: Value) -> int | None:
    return value if isinstance(value, int) else None
