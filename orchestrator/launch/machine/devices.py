"""GPUs and sets of cores to place runs on: find the GPUs that nvidia-smi lists and the cores near
each, read CUDA_VISIBLE_DEVICES, and lock what is used against other perfctls.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.sweep import folders

VISIBLE = "CUDA_VISIBLE_DEVICES"

_EXAMPLE = "For example 0,1,2,3 (GPUs) or cpu:0-3,cpu:4-7 (sets of cores)"

SHARED = Path("/tmp/perfctl-gpus")  # noqa: S108  # nosec B108
"""Holds one lock per GPU for all users: two profilers on one GPU fail, or spoil each other's
figures. ncu's own lock is in TMPDIR, which is a run's own. Not in TMPDIR, which differs between
users and jobs."""
_GPU = "gpu-"
_LOCK_MODE = 0o666
"""Everybody may lock; the folders decide who may come near."""


class Gpu(NamedTuple):
    """One GPU in the output of nvidia-smi; ``bus`` as sysfs writes it: 0000:65:00.0."""

    number: str
    uuid: str
    bus: str


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine, in the order of nvidia-smi; none without a driver."""
    return tuple(
        Gpu(number, uuid, bus[-12:].lower())
        for number, uuid, bus in query_nvidia_smi("index", "uuid", "pci.bus_id")
        if number.isdecimal()
    )


def parse_visible_devices(value: str | None) -> tuple[str, ...] | None:
    """Entries of a value of CUDA_VISIBLE_DEVICES; None where it is not set."""
    return (
        None
        if value is None
        else tuple(entry.strip() for entry in value.split(",") if entry.strip())
    )


def find_gpu_by_visible_entry(entry: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    """Return the GPU that an entry names: an index, a UUID or its beginning, or a MIG instance of
    the GPU; None for none."""
    if entry.startswith("MIG-"):
        parent = re.match(r"MIG-(GPU-[^/]+)/", entry)  # the older form: MIG-GPU-UUID/gi/ci
        entry = parent[1] if parent else _map_mig_to_gpu().get(entry, entry)
    return next((gpu for gpu in gpus if entry == gpu.number or gpu.uuid.startswith(entry)), None)


def query_capability_and_gpu_label(visible_devices_entry: str | None) -> tuple[str | None, str]:
    """Return (compute capability, the GPU in words) of the GPU that a program sees as its first.

    ``visible_devices_entry``: the first entry of its CUDA_VISIBLE_DEVICES; None where that is not
    set. The capability is None where nvidia-smi does not say it, or where CUDA may number the GPUs
    in another order than nvidia-smi and they differ.
    """
    gpus = list_gpus()
    capabilities = {row[0]: row[1] for row in query_nvidia_smi("index", "compute_cap")}
    gpu = find_gpu_by_visible_entry(
        visible_devices_entry if visible_devices_entry is not None else "0", gpus
    )
    if gpu is None or gpu.number not in capabilities:
        return None, f"GPU {visible_devices_entry or '0'}"
    by_number = visible_devices_entry is None or visible_devices_entry.isdecimal()
    if (
        by_number
        and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
        and len(set(capabilities.values())) > 1
    ):
        return None, f"GPU {gpu.number} (CUDA numbers unlike GPUs by speed, not as nvidia-smi does)"
    return capabilities[
        gpu.number
    ], f"GPU {visible_devices_entry if visible_devices_entry is not None else gpu.number}"


def query_nvidia_smi(*fields: str) -> list[list[str]]:
    """Return what nvidia-smi prints for these fields, a row for each GPU."""
    query = f"--query-gpu={','.join(fields)}"
    lines = tools.get_output_if_installed("nvidia-smi", query, "--format=csv,noheader").splitlines()
    rows = ([cell.strip() for cell in line.split(",")] for line in lines)
    return [row for row in rows if len(row) == len(fields)]


def _map_mig_to_gpu() -> dict[str, str]:
    """UUID of each MIG instance -> UUID of its GPU, from ``nvidia-smi --list-gpus``."""
    parents: dict[str, str] = {}
    parent = ""
    for line in tools.get_output_if_installed("nvidia-smi", "--list-gpus").splitlines():
        uuid = re.search(r"\(UUID: ([^)]+)\)", line)
        if uuid and line.startswith("GPU "):
            parent = uuid[1]
        elif uuid:
            parents[uuid[1]] = parent
    return parents


def parse_core_list(text: str) -> frozenset[int]:
    """Return the cores in text such as "0-3,8". Raises ValueError for anything else."""
    pieces = (piece.partition("-") for piece in filter(None, text.strip().split(",")))
    return frozenset(
        core for first, _, last in pieces for core in range(int(first), int(last or first) + 1)
    )


def format_core_list(cores: Iterable[int]) -> str:
    """Return text such as "0-3,8", as short as possible."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def split_physical_cores(
    cores: frozenset[int], parts: int, root: Path = Path("/")
) -> list[frozenset[int]]:
    """``cores`` in ``parts`` with equally many physical cores; a remainder stays idle. Too few:
    every part gets all. Hardware threads of one physical core stay together, so that two runs do
    not slow each other down."""
    topology = root / "sys/devices/system/cpu"
    threads = {
        core: _read_core_list_file(topology / f"cpu{core}/topology/thread_siblings_list") | {core}
        for core in cores
    }
    physical = sorted({siblings & cores for siblings in threads.values()}, key=min)
    each = len(physical) // parts
    if each == 0:
        return [cores] * parts
    return [frozenset().union(*physical[part * each : (part + 1) * each]) for part in range(parts)]


def _read_core_list_file(path: Path) -> frozenset[int]:
    """Return the cores in a file of the kernel; none where it has no such file."""
    try:
        return parse_core_list(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()


@dataclass(frozen=True, slots=True)
class DevicePlacement:
    """A GPU with the cores near it, or a set of cores. One run at a time uses it."""

    label: str
    """ "GPU 1" or "cores 0-3"."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that make a program see only this GPU."""
    cores: frozenset[int] | None = None
    """Cores for the run's processes; None for all."""
    locks: tuple[str, ...] = ()
    """Names of the lock files held while it is in use."""
    beside: int = 0
    """How many other places the sweep uses at the same time; they share memory, disk and power."""

    def collect_run_record_facts(self) -> dict[str, str]:
        """Return facts for a run's record."""
        facts = {"place": self.label, "runs_beside": str(self.beside)}
        return facts | ({"cores": format_core_list(self.cores)} if self.cores else {})


def parse_kind_of_device_list(text: str) -> str:
    """cuda or cpu, whichever ``text`` names. Raises UsageError for a mixture, a duplicate, or
    anything else."""
    pieces = [piece.strip() for piece in text.split(",")]
    if all(piece.isdecimal() for piece in pieces):
        kind = "cuda"
    elif all(re.fullmatch(r"cpu:\d+(-\d+)?(\+\d+(-\d+)?)*", piece) for piece in pieces):
        kind = "cpu"
    else:
        raise UsageError(
            f"`devices`: expected GPU numbers or sets of cores, got '{text}'", _EXAMPLE
        )
    if len(set(pieces)) < len(pieces):
        raise UsageError(
            f"`devices`: '{text}' repeats a device", "Each run needs a separate device"
        )
    return kind


def parse_placements(text: str, root: Path = Path("/")) -> tuple[DevicePlacement, ...]:
    """Return the places that ``text`` names. Raises UsageError when this machine lacks one of them.
    GPU numbers index CUDA_VISIBLE_DEVICES where it is set; otherwise they are those of
    nvidia-smi."""
    pieces = tuple(piece.strip() for piece in text.split(","))
    if parse_kind_of_device_list(text) == "cpu":
        return _parse_core_placements(pieces)
    gpus, visible = list_gpus(), parse_visible_devices(os.environ.get(VISIBLE))
    entries = [_choose_visible_entry(int(piece), visible, gpus) for piece in pieces]
    cores = _find_cores_near_gpus(
        [find_gpu_by_visible_entry(entry, gpus) for entry in entries], root
    )
    # as nvidia-smi; CUDA would number GPUs by speed
    order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return tuple(
        DevicePlacement(
            f"GPU {piece}",
            {VISIBLE: entry, "CUDA_DEVICE_ORDER": order},
            near,
            (_make_gpu_lock_name(entry, gpus),),
            len(pieces) - 1,
        )
        for piece, entry, near in zip(pieces, entries, cores, strict=True)
    )


def find_default_gpu() -> DevicePlacement | None:
    """Return the GPU that a program uses by default; None when nvidia-smi lists none."""
    gpus, visible = list_gpus(), parse_visible_devices(os.environ.get(VISIBLE))
    if not gpus or visible == ():
        return None
    entry = visible[0] if visible else gpus[0].number
    return DevicePlacement(f"GPU {entry}", {}, None, (_make_gpu_lock_name(entry, gpus),))


@contextmanager
def lock_placements(
    placements_to_lock: Iterable[DevicePlacement], folder: Path | None = None
) -> Iterator[None]:
    """Lock these places. Raises UsageError when another perfctl holds one of them: of any user for
    a GPU, of this user for cores. The kernel releases the locks when the process ends, however
    it ends."""
    with ExitStack() as locks:
        for placement in placements_to_lock:
            for name in placement.locks:
                lock_folder = (
                    folder
                    or (ensure_shared_lock_folder() if name.startswith(_GPU) else None)
                    or _ensure_user_lock_folder()
                )
                refuse = partial(_make_in_use_error, placement.label)
                handle = locks.enter_context(
                    folders.lock_file(
                        lock_folder / f"{name}.lock", fcntl.LOCK_EX, refuse, _LOCK_MODE
                    )
                )
                with suppress(OSError):  # another user's file, which may only be locked
                    os.fchmod(handle, _LOCK_MODE)  # whatever the umask
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield


def _make_in_use_error(label: str, handle: int) -> UsageError:
    owner = os.read(handle, 20).decode(errors="replace").strip()
    process = f" (process {owner})" if owner.isdecimal() else ""
    return UsageError(
        f"{label} is in use by another perfctl{process}; two runs on one device would distort each "
        "other's times",
        "Wait until it ends, or choose other `devices`",
    )


def ensure_shared_lock_folder(folder: Path | None = None) -> Path | None:
    """``folder`` (SHARED), made for everybody; None where it cannot be trusted: then locks are of
    this user only."""
    folder = folder or SHARED
    with suppress(OSError):
        folder.mkdir(mode=0o700)
        folder.chmod(0o1777)  # sticky: nobody removes another's lock
    with suppress(OSError):
        facts = folder.lstat()
        open_to_all = facts.st_mode & stat.S_IWOTH and facts.st_mode & stat.S_ISVTX
        if stat.S_ISDIR(facts.st_mode) and open_to_all:
            return folder
    return None


def _ensure_user_lock_folder(root: Path = Path("/tmp")) -> Path:  # noqa: S108  # nosec B108
    """One folder per user, the same in every session; not below TMPDIR, which differs between jobs.
    Raises UsageError when it belongs to another user, or others may write to it."""
    folder = Path(root if root.is_dir() else tempfile.gettempdir(), f"perfctl-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    facts = folder.lstat()
    purpose = "perfctl stores its device locks there"
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise UsageError(f"{folder} belongs to another user", f"Remove it: {purpose}")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"{folder} is writable by other users", f"chmod 700 {folder}: {purpose}")
    return folder


def _parse_core_placements(pieces: tuple[str, ...]) -> tuple[DevicePlacement, ...]:
    allowed = os.sched_getaffinity(0)
    placements: list[DevicePlacement] = []
    used: set[int] = set()
    for piece in pieces:
        cores = parse_core_list(piece.removeprefix("cpu:").replace("+", ","))
        if not cores:
            raise UsageError(f"`devices`: {piece} names no core", _EXAMPLE)
        if missing := cores - allowed:
            problem = f"`devices`: this process may not use core {min(missing)} of {piece}"
            raise UsageError(problem, f"It may use {format_core_list(allowed)}")
        if twice := cores & used:
            raise UsageError(
                f"`devices`: core {min(twice)} appears in two sets", "Each run needs separate cores"
            )
        used |= cores
        locks = tuple(f"core-{core}" for core in sorted(cores))
        placements.append(
            DevicePlacement(f"cores {format_core_list(cores)}", {}, cores, locks, len(pieces) - 1)
        )
    return tuple(placements)


def _choose_visible_entry(
    number: int, visible: tuple[str, ...] | None, gpus: tuple[Gpu, ...]
) -> str:
    """Return the entry of CUDA_VISIBLE_DEVICES for GPU ``number``. Raises UsageError when there is
    no such GPU."""
    entries = visible if visible is not None else tuple(gpu.number for gpu in gpus)
    if visible is None and not gpus:
        return str(number)
    if number >= len(entries):
        source = (
            f"{VISIBLE} is {os.environ[VISIBLE]!r}"
            if visible is not None
            else "as listed by nvidia-smi"
        )
        raise UsageError(
            f"`devices`: GPU {number} does not exist; there are {len(entries)} ({source})",
            "Count from 0",
        )
    return entries[number]


def _make_gpu_lock_name(entry: str, gpus: tuple[Gpu, ...]) -> str:
    gpu = (
        None if entry.startswith("MIG-") else find_gpu_by_visible_entry(entry, gpus)
    )  # instances work side by side
    return _GPU + re.sub(r"[^A-Za-z0-9-]", "_", gpu.uuid if gpu else entry)


def _find_cores_near_gpus(gpus: list[Gpu | None], root: Path) -> list[frozenset[int] | None]:
    """Cores near each GPU; GPUs near the same cores split them. None where the kernel does not
    list them."""
    allowed = os.sched_getaffinity(0)
    cards = root / "sys/bus/pci/devices"
    near = [
        _read_core_list_file(cards / gpu.bus / "local_cpulist") & allowed if gpu else frozenset()
        for gpu in gpus
    ]
    result: list[frozenset[int] | None] = [None] * len(gpus)
    for cores in {group for group in near if group}:
        sharing = [number for number, other in enumerate(near) if other == cores]
        for number, part in zip(
            sharing, split_physical_cores(cores, len(sharing), root), strict=True
        ):
            result[number] = part
    return result
