"""Libraries of NVIDIA whose code is not open: they are not read unless the user says so."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perfctl.orchestrator.errors import UsageError

CLOSED = (
    "libcublas", "libcudnn", "libcusparse", "libcufft", "libcusolver", "libcurand", "libnpp", "libnvjpeg", "libnvinfer", "libcutensor",
    "libcudss", "libnvrtc", "libnvjitlink", "libnvblas", "libnvgraph", "libnvonnxparser", "libnvcomp", "libnvtiff", "libnvvm",
    "libcustatevec", "libcudensitymat", "libcufile", "libcuda.", "libnvoptix", "libnvidia-", "tensorrt",
)  # fmt: skip
"""Beginnings of file names and sonames. NCCL, NVSHMEM, CUTLASS and CUB are open."""
NOTE = "is a closed library: check that its licence lets you disassemble it. perfctl keeps counts alone, no disassembly"


def is_closed(names: Iterable[str]) -> bool:
    """Whether one of a library's names is that of a closed one."""
    return any(name.lower().startswith(CLOSED) for name in names)


def names_of(path: Path) -> tuple[str, str]:
    """Its own name, and that of what it links to."""
    return path.name, path.resolve().name


def check(path: Path, closed: bool, allowed: bool) -> None:
    """Raises UsageError for a closed library that the user did not allow."""
    if closed and not allowed:
        raise UsageError(
            f"{path.name} is a closed library of NVIDIA, whose licence may forbid disassembly: it is not read",
            "Give `closed_libraries` if yours allows it; nothing but counts is kept then",
        )
