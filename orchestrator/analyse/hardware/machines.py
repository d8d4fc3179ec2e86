"""Machines for the predictor: from the table of boards, from stated peaks, or from measured ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from perfctl.orchestrator.analyse.hardware import gpus
from perfctl.orchestrator.analyse.hardware.gpus import Board

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Machine:
    """A device as a predictor sees it. Figures are peaks (dense, sustained clock) unless measured."""

    name: str
    kind: str
    flops_per_second: Mapping[str, float]
    """By path: fp32, fp16, "tensor tf32", "tensor fp16", ... (1 multiply-add = 2 FLOPs)."""
    bytes_per_second: float
    memory_bytes: float | None = None
    sms: int | None = None
    """Streaming multiprocessors; of a CPU its cores. None: not known."""
    clock_hz: float | None = None
    l2_bytes: float | None = None
    """Last-level cache. None: not known."""
    launch_seconds: float | None = None
    """Host time to start one operation. None: not known."""
    power_w: float | None = None
    """Board power. None: not known."""
    process_nm: int | None = None
    """Process that the chip is made in. None: not known."""


class DeviceError(ValueError):
    """An unknown device name or a wrong description. ``remedy``: what to use instead."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Device:
    """A machine with its source, and its board for cost and memory; None: given by hand, or a CPU."""

    machine: Machine
    source: str
    board: Board | None = None
    note: str | None = None

    @property
    def power_w(self) -> float | None:
        return self.board.gpu.power_w if self.board is not None else None


CPU = Machine(
    "Core i9-10940X", "cpu", {"fp32": 14 * 64 * 3.3e9}, 94e9, sms=14, clock_hz=3.3e9, l2_bytes=19.25 * MIB, power_w=165.0,
    process_nm=14,
)  # fmt: skip
"""The one CPU that published steps are of. 14 cores of two AVX-512 units (64 fp32 FLOPs a cycle; 1 multiply-add = 2 FLOPs) at the
base clock, four channels of DDR4-2933: figures of Intel's data sheet from memory, not looked up."""


def named(name: str) -> Device:
    """The machine of a device name; of several boards one, by ``gpus.CHOICE_RULE``. Raises DeviceError for an unknown name."""
    if re.fullmatch(r"(intel )?(core )?i9[ -]?10940x", name.strip(), re.IGNORECASE):
        return Device(CPU, f"data sheet of the {CPU.name}, base clock")
    found = gpus.meant(name)
    if not found:
        close = gpus.nearest(name)
        near = f"Near it: {', '.join(close)}. " if close else ""
        remedy = f"{near}Or give its peaks: `device_spec` name=...,fp32_tflops=...,bandwidth_gbs=...,memory_gb=..."
        sliced = "a slice of a GPU, or a laptop GPU that the table does not have"
        raise DeviceError(
            f"`device`: '{name}' is {sliced if gpus.sliced(name) else 'not in the table of devices'}", remedy
        )
    board = gpus.choose(found)
    note = None
    if len(found) > 1:
        others = ", ".join(other.name for other in found if other != board)
        note = f"'{name}' may be several: using {board.name} ({gpus.CHOICE_RULE}); others: {others}"
    elif board.gpu.laptop:
        note = f"{board.name}: clock and power of the fastest variant; laptops may lower both"
    return Device(of_board(board), f"published figures of the {board.gpu.name}, dense", board, note)


def of_board(board: Board) -> Machine:
    """Peaks from the table of devices; memory in bytes as the data sheet's GB of 10^9."""
    gpu = board.gpu
    return Machine(
        name=board.name, kind="gpu", flops_per_second=gpus.flops_per_second(gpu),
        bytes_per_second=gpu.bandwidth_gbs * 1e9, memory_bytes=board.memory_gb * 1e9, sms=gpu.sms,
        clock_hz=gpu.boost_mhz * 1e6, l2_bytes=gpu.l2_mb * MIB if gpu.l2_mb is not None else None,
        power_w=gpu.power_w, process_nm=gpus.PROCESS_NM.get(gpu.capability),
    )  # fmt: skip


_PATHS = {
    "fp32_tflops": "fp32", "fp64_tflops": "fp64", "fp16_tflops": "fp16", "tensor_fp16_tflops": "tensor fp16",
    "tensor_bf16_tflops": "tensor bf16", "tensor_tf32_tflops": "tensor tf32",
}  # fmt: skip
_NEEDED = ("name", "fp32_tflops", "bandwidth_gbs", "memory_gb")
EXAMPLE = "For example `device_spec` name=X1,fp32_tflops=20,bandwidth_gbs=900,memory_gb=24,tensor_fp16_tflops=160"


def by_hand(text: str) -> Device:
    """From ``name=X1,fp32_tflops=20,bandwidth_gbs=900,memory_gb=24``: TFLOP/s dense (1 multiply-add = 2), GB/s, GB.

    tensor_bf16_tflops defaults to tensor_fp16_tflops, kind to gpu. Raises DeviceError.
    """
    known, given = (
        dict.fromkeys((*_NEEDED, *_PATHS, "kind", "sms", "clock_mhz", "l2_mb", "power_w", "process_nm")),
        dict[str, str](),
    )
    for piece in text.split(","):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or key in given:
            wrong = "given twice" if equals else "not key=value"
            raise DeviceError(f"`device_spec`: '{piece.strip()}' is {wrong}", EXAMPLE)
        if key not in known:
            raise DeviceError(f"`device_spec`: '{key}' is not known", f"Known: {', '.join(known)}")
        given[key] = value
    missing = [key for key in _NEEDED if not given.get(key)]
    if missing:
        raise DeviceError(f"`device_spec`: {', '.join(missing)} missing", EXAMPLE)
    kind = given.get("kind", "gpu")
    if kind not in ("gpu", "cpu"):
        raise DeviceError(f"`device_spec`: kind is gpu or cpu, got '{kind}'", EXAMPLE)
    figure = {key: _figure(key, value) for key, value in given.items() if key not in ("name", "kind")}
    paths = {path: figure[key] * 1e12 for key, path in _PATHS.items() if key in figure}
    if "tensor fp16" in paths and "tensor bf16" not in paths:
        paths["tensor bf16"] = paths["tensor fp16"]
    machine = Machine(
        name=given["name"], kind=kind, flops_per_second=paths, bytes_per_second=figure["bandwidth_gbs"] * 1e9,
        memory_bytes=figure["memory_gb"] * 1e9, sms=int(figure["sms"]) if "sms" in figure else None,
        clock_hz=figure["clock_mhz"] * 1e6 if "clock_mhz" in figure else None,
        l2_bytes=figure["l2_mb"] * MIB if "l2_mb" in figure else None, power_w=figure.get("power_w"),
        process_nm=int(figure["process_nm"]) if "process_nm" in figure else None,
    )  # fmt: skip
    return Device(machine, "peaks given by hand")


def _figure(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < inf:
        raise DeviceError(f"`device_spec`: {key} must be a number above 0, got '{value}'", EXAMPLE)
    return number


def of_measured(record: Mapping[str, Any], memory_bytes: int | None = None) -> Device:
    """From the JSON of ``python -m perfctl.workloads.run.peaks``. Raises KeyError, TypeError or ValueError."""
    threads = record.get("threads")
    machine = Machine(
        name=machine_name(str(record["device"]), str(record["kind"]), threads), kind=str(record["kind"]),
        flops_per_second={str(path): float(value) for path, value in record["flops"].items()},
        bytes_per_second=float(record["bandwidth_bps"]), memory_bytes=memory_bytes, sms=threads,
    )  # fmt: skip
    return Device(machine, f"peaks measured on {str(record['at'])[:10]}: large matrix products and a triad")


def machine_name(device: str, kind: str, threads: int | None = None) -> str:
    """A machine's name in stored times: of a GPU its board; of a CPU with its threads ("AMD EPYC, 2 threads")."""
    if kind == "gpu":
        found = gpus.meant(device)
        return found[0].name if len(found) == 1 else device
    return f"{device}, {threads} thread{'s' * (threads != 1)}" if threads else device


def threads_of(cpu: str, machine: str) -> int | None:
    """Threads in the name of a machine with this CPU; None for another machine, or without threads."""
    found = re.fullmatch(r"(.*), (\d+) threads?", machine)
    return int(found[2]) if found is not None and found[1] == cpu else None
