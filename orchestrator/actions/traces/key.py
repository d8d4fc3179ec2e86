"""What a trace depends on besides its request: perfctl's own code, the installed packages, the environment, the machine."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import perfctl.workloads
from perfctl.orchestrator.actions.traces.entries import digest
from perfctl.records import codec, paper

LIBRARIES = ("torch", "triton", "torchvision", "torchaudio", "timm", "transformers", "diffusers", "numpy", "einops")
"""Packages whose code is known by their version."""
_VARIABLES = (
    "ATEN", "CUDA", "DIFFUSERS", "FLASH_ATTENTION", "HF_", "HUGGINGFACE", "NVIDIA", "PYTHON", "PYTORCH", "TIMM", "TORCH",
    "TRANSFORMERS", "TRITON", "USE_", "XFORMERS",
)  # fmt: skip
"""Beginnings of the environment variables that these libraries read."""
_OWN = ("CUDA_MODULE_LOADING", "TORCHINDUCTOR_CACHE_DIR")
"""Environment variables that torch sets itself when it is imported."""
_DEVICES = ("/dev/nvidiactl", "/dev/kfd")
_STATED = (".dist-info", ".egg-info", ".egg-link", ".pth")
"""Ends of the names in a folder of packages that say what is installed: "torch-2.9.1.dist-info"."""


def surroundings() -> str | None:
    """A digest of all that a trace depends on besides its request; None where that cannot be known.

    None: a library is a checkout, or lies outside of the folders of packages, so that its version does not say its code.
    """
    folders = dict(_packages())
    if not all(_is_versioned(name, folders) for name in LIBRARIES):
        return None
    variables = sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES) and item[0] not in _OWN)
    machine = (sys.version, sys.platform, platform.machine(), [name for name in _DEVICES if Path(name).exists()])
    return digest(sorted(name for names in folders.values() for name in names), variables, machine, _own_code())


def _packages() -> Iterator[tuple[Path, list[str]]]:
    """Each folder of packages, with the names in it that say what is installed."""
    for place in dict.fromkeys(filter(None, sys.path)):
        try:
            names = [name for name in os.listdir(place) if name.endswith(_STATED)]  # noqa: PTH208 - a hundred times faster
        except OSError:
            continue
        if names:
            yield Path(place), names


def _is_versioned(name: str, folders: Iterable[Path]) -> bool:
    """Whether the package is not there at all, or lies in a folder that states its version."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return True
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else ())]
    return bool(places) and any(Path(places[0]).parent == folder for folder in folders)


def _own_code() -> str:
    """A digest of the code that builds, traces and records: in a checkout it changes without perfctl's version."""
    found = hashlib.sha256()
    for file in sorted(Path(next(iter(perfctl.workloads.__path__))).rglob("*.py")):
        found.update(file.read_bytes())
    for module in (paper.__file__, codec.__file__, Path(__file__).parents[1] / "estimate.py"):
        found.update(Path(module).read_bytes())
    return found.hexdigest()
