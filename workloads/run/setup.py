"""Prepare a run: check the machine, set seeds and switches, build the model on its device."""

from __future__ import annotations

import os
import platform
import random
import shutil
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from perfctl.records.report import Device, Gap
from perfctl.workloads.interface import Workload, WorkloadParts
from perfctl.workloads.run.clock import (
    DeviceClock,
    RangeBackend,
    explain_unusable_window,
    make_device_clock,
    make_range_backend,
)
from perfctl.workloads.run.memory import MemoryWatch, find_in_file, read_proc_bytes
from perfctl.workloads.run.record import WorkloadRecord
from perfctl.workloads.spec import WorkloadError, WorkloadOptions

_ON_OFF = {True: "on", False: "off"}


def get_tf32_switches() -> tuple[Any, Any]:
    """Return the objects with the switches: (cuBLAS, cuDNN). The switches' names changed in torch
    2.9."""
    return torch.backends.cuda.matmul, torch.backends.cudnn


def set_tf32_for_precision(precision: str) -> None:
    """Enable TF32 in cuDNN and cuBLAS for ``tf32``, disable it for everything else."""
    is_on = precision == "tf32"
    matmul, cudnn = get_tf32_switches()
    if _has_precision_switch(matmul):
        # torch 2.9 and later, where setting allow_tf32 as well is an error.
        for switch in (matmul, cudnn.conv, cudnn.rnn):
            switch.fp32_precision = "tf32" if is_on else "ieee"
    else:
        matmul.allow_tf32 = cudnn.allow_tf32 = is_on


def _has_precision_switch(matmul: Any) -> bool:
    try:
        return hasattr(matmul, "fp32_precision")
    except AssertionError:  # what it raises for unknown names before torch 2.9
        return False


def are_matmul_conv_tf32_enabled() -> tuple[bool, bool]:
    """Return whether TF32 is enabled for fp32: (matrix products, convolutions)."""
    matmul, cudnn = get_tf32_switches()
    if _has_precision_switch(matmul):
        return matmul.fp32_precision == "tf32", cudnn.conv.fp32_precision == "tf32"
    return bool(matmul.allow_tf32), bool(cudnn.allow_tf32)


def make_autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device, dtype=dtype)


def make_loss_scaler(precision: str, device: str) -> torch.amp.GradScaler:
    """Return a loss scaler for fp16, whose gradients would underflow; disabled for other
    precisions."""
    return torch.amp.GradScaler(device, enabled=precision == "fp16")


def explain_unsupported_tf32(precision: str, device: Device) -> list[Gap]:
    capability = device.compute_capability
    if precision == "tf32" and capability is not None and int(capability.split(".")[0]) < 8:
        reason = (
            f"compute capability {capability} has no TF32 (8.0 and later do): the run computed in "
            "fp32"
        )
        return [Gap("precision:tf32", "not_available", reason)]
    return []


def raise_if_device_unavailable(device: str) -> None:
    """Raise WorkloadError, with the reason, when ``device`` is cuda and there is none."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        if device != "cuda" or torch.cuda.is_available():
            return
    if torch.version.cuda is None:
        reason = "this torch was built without CUDA"
    elif messages:
        reason = str(messages[0].message).split(" (Triggered")[0].split(". Please")[0]
    else:
        reason = "torch finds no CUDA device"
    raise WorkloadError(
        f"`device` cuda: {reason}. Set `device` to cpu, or run it on a machine with a GPU"
    )


def raise_if_compiler_missing(device: str) -> None:
    """Raise WorkloadError when torch.compile cannot work here. Does not import torch."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if device == "cpu" and compiler is None:
        raise WorkloadError(
            "`compile` needs a C++ compiler on a CPU, and neither g++ nor clang++ is on PATH. "
            "Install one (Debian: apt-get install g++), or omit `compile`"
        )


def describe_device(device: str) -> Device:
    if device != "cuda":
        return Device(
            name=_read_cpu_name(),
            kind="cpu",
            memory_bytes=read_proc_bytes("/proc/meminfo", "MemTotal"),
        )
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    memory_hz = _scale_if_positive(getattr(properties, "memory_clock_rate", None), 1000)
    bus_bits = _scale_if_positive(getattr(properties, "memory_bus_width", None), 1)
    return Device(
        name=properties.name,
        kind="gpu",
        index=index,
        compute_capability=f"{properties.major}.{properties.minor}",
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        # Two transfers per clock, as in CUDA's deviceQuery.
        memory_bandwidth_bps=2 * memory_hz * bus_bits // 8 if memory_hz and bus_bits else None,
        clock_hz=_scale_if_positive(getattr(properties, "clock_rate", None), 1000),
        driver_version=find_in_file("/proc/driver/nvidia/version", r"\b\d{3}\.\d+(?:\.\d+)?\b"),
    )


def collect_software_and_cpu_facts() -> dict[str, str]:
    matmul, convolution = are_matmul_conv_tf32_enabled()
    try:
        torchvision = version("torchvision")
    except PackageNotFoundError:
        torchvision = None
    facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision,
        "cuda": torch.version.cuda,
        "cudnn": _read_cudnn_version(),
        "tf32_conv": _ON_OFF[convolution],
        "tf32_matmul": _ON_OFF[matmul],
        "cudnn_benchmark": _ON_OFF[bool(torch.backends.cudnn.benchmark)],
        "threads": str(torch.get_num_threads()),
        "cpu": _read_cpu_name(),
        "cpu_model": _read_cpu_family_and_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_count": str(os.cpu_count()),
        "os": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
    }
    return {key: value for key, value in facts.items() if value}


def _read_cudnn_version() -> str | None:
    """ "9.1.0" from 90100 (8.9.7 is 8907: three digits then)."""
    number = torch.backends.cudnn.version() if torch.version.cuda else None
    if number is None:
        return None
    major, minor = divmod(int(number), 10000 if number >= 90000 else 1000)
    return f"{major}.{minor // 100}.{minor % 100}"


def _read_cpu_name() -> str | None:
    name = find_in_file("/proc/cpuinfo", r"^model name\s*:\s*(.+)$")
    return name and name.strip()


def _read_cpu_family_and_model() -> str | None:
    """ "family 25, model 17, stepping 1". Virtual machines give processors of several generations
    one name."""
    names = {
        "cpu family": "family",
        "model": "model",
        "stepping": "stepping",
        "CPU implementer": "implementer",
        "CPU part": "part",
        "CPU revision": "revision",
    }
    numbers = (
        (name, find_in_file("/proc/cpuinfo", rf"^{key}[ \t]*:[ \t]*(\S+)$"))
        for key, name in names.items()
    )
    return ", ".join(f"{name} {number}" for name, number in numbers if number) or None


def _scale_if_positive(value: int | None, factor: int) -> int | None:
    """``value`` in base units; None when missing or 0, which newer drivers return for "unknown"."""
    return value * factor if value else None


@dataclass(frozen=True, slots=True)
class WorkloadSetup:
    options: WorkloadOptions
    parts: WorkloadParts
    scaler: torch.amp.GradScaler
    clock: DeviceClock
    ranges: RangeBackend
    memory: MemoryWatch


def set_up_and_build_workload(
    workload: Workload, options: WorkloadOptions, model_options: Any, record: WorkloadRecord
) -> WorkloadSetup:
    """Check the machine, set seeds and switches, build the workload on its device, and fill in
    the record."""
    import numpy

    raise_if_device_unavailable(options.device)
    if options.compile:
        raise_if_compiler_missing(options.device)
    if options.device == "cpu":
        # A CUDA build with an unsuitable driver warns at the first backward pass; irrelevant on
        # the CPU.
        warnings.filterwarnings("ignore", message="CUDA initialization")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    set_tf32_for_precision(options.precision)
    torch.backends.cudnn.benchmark = False
    random.seed(options.seed)
    numpy.random.seed(options.seed % 2**32)
    torch.manual_seed(options.seed)
    ranges = make_range_backend(options.annotate)
    record.environment = collect_software_and_cpu_facts()
    record.device = describe_device(options.device)
    memory = MemoryWatch(options.device)
    memory.record_memory_amounts("start")
    parts = workload.build(options, model_options)
    parts.model.to(options.device).train(options.mode == "train")
    record.environment |= parts.facts
    record.parameters = count_direct_parameters_by_module(parts.model)
    scaler, clock = (
        make_loss_scaler(options.precision, options.device),
        make_device_clock(options.device),
    )
    memory.record_memory_amounts("before")
    record.clock = clock.kind
    record.gaps += explain_unusable_window(options.window, options.device)
    record.gaps += explain_unsupported_tf32(options.precision, record.device)
    return WorkloadSetup(options, parts, scaler, clock, ranges, memory)


def count_direct_parameters_by_module(model: nn.Module) -> dict[str, int]:
    """Return elements of each module's own parameters by dotted path; a shared parameter counts at
    its first module."""
    counts: dict[str, int] = {}
    counted: set[int] = set()
    for path, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in counted:
                counted.add(id(parameter))
                counts[path] = counts.get(path, 0) + parameter.numel()
    return counts
