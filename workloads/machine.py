"""Describe the device and software of a workload. Never reads the process environment for the record."""

from __future__ import annotations

import os
import platform
import re
import shutil
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from perfctl.parsers.records import Device
from perfctl.workloads.memory import host_total
from perfctl.workloads.precision import tf32_is_on
from perfctl.workloads.spec import WorkloadError


def require(device: str) -> None:
    """Raise WorkloadError, with the reason, when ``device`` is cuda and there is none."""
    if device != "cuda":
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = torch.cuda.is_available()
    if found:
        return
    if torch.version.cuda is None:
        why = "this torch was built without CUDA"
    elif said:
        why = str(said[0].message).split(" (Triggered")[0].split(". Please")[0]
    else:
        why = "torch finds no CUDA device"
    raise WorkloadError(f"`device` cuda: {why}. Set `device` to cpu, or run it on a machine with a GPU")


def require_compiler(device: str) -> None:
    """Raise WorkloadError when torch.compile cannot work here. Does not import torch."""
    if device == "cpu" and (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")) is None:
        raise WorkloadError(
            "`compile` needs a C++ compiler on a CPU, and neither g++ nor clang++ is on PATH. "
            "Install one (Debian: apt-get install g++), or omit `compile`"
        )


def describe_device(device: str) -> Device:
    """The CUDA device in use, or the CPU."""
    if device != "cuda":
        return Device(name=_cpu_name(), kind="cpu", memory_bytes=host_total())
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    memory_hz = _positive(getattr(properties, "memory_clock_rate", None), 1000)
    bus_bits = _positive(getattr(properties, "memory_bus_width", None), 1)
    return Device(
        name=properties.name,
        kind="gpu",
        index=index,
        compute_capability=f"{properties.major}.{properties.minor}",
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        # Two transfers per clock, as in CUDA's deviceQuery.
        memory_bandwidth_bps=2 * memory_hz * bus_bits // 8 if memory_hz and bus_bits else None,
        clock_hz=_positive(getattr(properties, "clock_rate", None), 1000),
        driver_version=_driver_version(),
    )


def environment() -> dict[str, str]:
    """Current facts about software and settings."""
    matmul, convolution = tf32_is_on()
    facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": _version("torchvision"),
        "cuda": torch.version.cuda,
        "cudnn": _cudnn_version(),
        "tf32_conv": _on_off(convolution),
        "tf32_matmul": _on_off(matmul),
        "cudnn_benchmark": _on_off(torch.backends.cudnn.benchmark),
        "threads": str(torch.get_num_threads()),
        "cpu": _cpu_name(),
        "cpu_count": str(os.cpu_count()),
        "os": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
    }
    return {key: value for key, value in facts.items() if value}


def _on_off(setting: bool) -> str:
    return "on" if setting else "off"


def _cudnn_version() -> str | None:
    """ "9.1.0" from 90100 (8.9.7 is 8907: three digits then)."""
    number = torch.backends.cudnn.version() if torch.version.cuda else None
    if number is None:
        return None
    major, rest = divmod(int(number), 10000 if number >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else None


def _driver_version() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", text)
    return found.group(0) if found else None


def _positive(value: int | None, factor: int) -> int | None:
    """``value`` in base units; None when missing or 0, which newer drivers return for "unknown"."""
    return value * factor if value else None
