"""GPUs and sets of cores to place runs on: find them, the cores near each GPU, and lock them against other perfctls."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools


def read_cores(text: str) -> frozenset[int]:
    """The cores in text such as "0-3,8". Raises ValueError for anything else."""
    cores: set[int] = set()
    for piece in filter(None, text.strip().split(",")):
        first, _, last = piece.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def format_cores(cores: Iterable[int]) -> str:
    """Text such as "0-3,8", as short as possible."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def split_cores(cores: frozenset[int], parts: int, root: Path = Path("/")) -> list[frozenset[int]]:
    """``cores`` in ``parts`` with equally many physical cores; a remainder stays idle. Too few: every part gets all.

    Hardware threads of one physical core stay together, so that two runs do not slow each other down.
    """
    physical = sorted({_siblings(core, root) & cores for core in cores}, key=min)
    each = len(physical) // parts
    if each == 0:
        return [cores] * parts
    return [frozenset().union(*physical[part * each : (part + 1) * each]) for part in range(parts)]


def _siblings(core: int, root: Path) -> frozenset[int]:
    """The hardware threads of a core's physical core; only itself where the kernel does not list them."""
    path = root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    try:
        return read_cores(path.read_text(encoding="ascii")) | {core}
    except (OSError, ValueError):
        return frozenset({core})


VISIBLE = "CUDA_VISIBLE_DEVICES"
_SETS = re.compile(r"cpu:\d+(-\d+)?(\+\d+(-\d+)?)*")
_EXAMPLE = "For example 0,1,2,3 (GPUs) or cpu:0-3,cpu:4-7 (sets of cores)"


@dataclass(frozen=True, slots=True)
class Place:
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

    def facts(self) -> dict[str, str]:
        """Facts for a run's record."""
        facts = {"place": self.label, "runs_beside": str(self.beside)}
        return facts | ({"cores": format_cores(self.cores)} if self.cores else {})


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU in the output of nvidia-smi."""

    index: str
    uuid: str
    bus: str
    """As sysfs writes it: 0000:65:00.0."""


def kind_of(text: str) -> str:
    """cuda or cpu, whichever ``text`` names. Raises UsageError for a mixture, a duplicate, or anything else."""
    pieces = [piece.strip() for piece in text.split(",")]
    if all(piece.isdecimal() for piece in pieces):
        kind = "cuda"
    elif all(_SETS.fullmatch(piece) for piece in pieces):
        kind = "cpu"
    else:
        raise UsageError(f"`devices`: expected GPU numbers or sets of cores, got '{text}'", _EXAMPLE)
    if len(set(pieces)) < len(pieces):
        raise UsageError(f"`devices`: '{text}' names a device twice", "Each run needs a device of its own")
    return kind


def places(text: str, root: Path = Path("/")) -> tuple[Place, ...]:
    """The places that ``text`` names. Raises UsageError when this machine lacks one of them.

    GPU numbers index CUDA_VISIBLE_DEVICES where it is set; otherwise they are those of nvidia-smi.
    """
    pieces = tuple(piece.strip() for piece in text.split(","))
    if kind_of(text) == "cpu":
        return _core_sets(pieces)
    gpus, visible = _gpus(), _visible()
    entries = [_entry(int(piece), visible, gpus) for piece in pieces]
    cores = _near([_find(entry, gpus) for entry in entries], root)
    return tuple(
        Place(f"GPU {piece}", _sees(entry), near, (_lock_name(entry, gpus),), len(pieces) - 1)
        for piece, entry, near in zip(pieces, entries, cores, strict=True)
    )


def first_gpu() -> Place | None:
    """The GPU that a program uses by default; None when nvidia-smi lists none."""
    gpus, visible = _gpus(), _visible()
    if not gpus or visible == ():
        return None
    entry = visible[0] if visible else gpus[0].index
    return Place(f"GPU {entry}", {}, None, (_lock_name(entry, gpus),))


@contextmanager
def hold(reserved: Iterable[Place], folder: Path | None = None) -> Iterator[None]:
    """Lock these places. Raises UsageError when another perfctl of this user holds one of them.

    The kernel releases the locks when the process ends, however it ends.
    """
    with ExitStack() as held:
        folder = folder or _lock_folder()
        for place in reserved:
            for name in place.locks:
                held.enter_context(_held(folder / f"{name}.lock", place.label))
        yield


@contextmanager
def _held(path: Path, label: str) -> Iterator[None]:
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(handle, 20).decode(errors="replace").strip()
            said = f" (process {owner})" if owner.isdecimal() else ""
            raise UsageError(
                f"{label} is in use by another perfctl{said}; two runs on one device would distort each other's times",
                "Wait for it, or choose other `devices`",
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def _lock_folder(root: Path = Path("/tmp")) -> Path:  # noqa: S108  # nosec B108
    """One folder per user, the same in every session; not below TMPDIR, which differs between jobs.

    Raises UsageError when it belongs to another user, or others may write to it.
    """
    folder = Path(root if root.is_dir() else tempfile.gettempdir(), f"perfctl-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UsageError(f"{folder} belongs to another user", "Remove it: perfctl keeps its device locks there")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"{folder} is writable by other users", f"chmod 700 {folder}: perfctl keeps its device locks there"
        )
    return folder


def _core_sets(pieces: tuple[str, ...]) -> tuple[Place, ...]:
    allowed = os.sched_getaffinity(0)
    made: list[Place] = []
    used: set[int] = set()
    for piece in pieces:
        cores = read_cores(piece.removeprefix("cpu:").replace("+", ","))
        if not cores:
            raise UsageError(f"`devices`: {piece} names no core", _EXAMPLE)
        if missing := cores - allowed:
            raise UsageError(
                f"`devices`: this process may not use core {min(missing)} of {piece}",
                f"It may use {format_cores(allowed)}",
            )
        if twice := cores & used:
            raise UsageError(f"`devices`: core {min(twice)} is in two sets", "Each run needs cores of its own")
        used |= cores
        made.append(
            Place(
                f"cores {format_cores(cores)}",
                {},
                cores,
                tuple(f"core-{core}" for core in sorted(cores)),
                len(pieces) - 1,
            )
        )
    return tuple(made)


def _visible() -> tuple[str, ...] | None:
    """Entries of CUDA_VISIBLE_DEVICES; None where it is not set."""
    value = os.environ.get(VISIBLE)
    return None if value is None else tuple(entry.strip() for entry in value.split(",") if entry.strip())


def _entry(number: int, visible: tuple[str, ...] | None, gpus: tuple[_Gpu, ...]) -> str:
    """The entry of CUDA_VISIBLE_DEVICES for GPU ``number``. Raises UsageError when there is no such GPU."""
    entries = visible if visible is not None else tuple(gpu.index for gpu in gpus)
    if visible is None and not gpus:
        return str(number)
    if number >= len(entries):
        source = f"{VISIBLE} is {os.environ[VISIBLE]!r}" if visible is not None else "as listed by nvidia-smi"
        raise UsageError(f"`devices`: GPU {number} does not exist; there are {len(entries)} ({source})", "Count from 0")
    return entries[number]


def _sees(entry: str) -> dict[str, str]:
    """Variables that select one GPU. CUDA would number GPUs by speed; PCI order is that of nvidia-smi."""
    return {VISIBLE: entry, "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")}


def _gpus() -> tuple[_Gpu, ...]:
    path = tools.find("nvidia-smi")
    said = tools.output(path, "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader") if path else ""
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    return tuple(_Gpu(row[0], row[1], row[2][-12:].lower()) for row in rows if len(row) == 3 and row[0].isdecimal())


def _find(entry: str, gpus: tuple[_Gpu, ...]) -> _Gpu | None:
    return next((gpu for gpu in gpus if entry == gpu.index or gpu.uuid.startswith(entry)), None)


def _lock_name(entry: str, gpus: tuple[_Gpu, ...]) -> str:
    gpu = _find(entry, gpus)
    return "gpu-" + re.sub(r"[^A-Za-z0-9-]", "_", gpu.uuid if gpu else entry)


def _near(gpus: list[_Gpu | None], root: Path) -> list[frozenset[int] | None]:
    """Cores near each GPU; GPUs near the same cores split them. None where the kernel does not list them."""
    allowed = os.sched_getaffinity(0)
    lists = [_local(gpu, root) if gpu else frozenset() for gpu in gpus]
    near = [cores & allowed for cores in lists]
    result: list[frozenset[int] | None] = [None] * len(gpus)
    for cores in {group for group in near if group}:
        at = [number for number, other in enumerate(near) if other == cores]
        for number, part in zip(at, split_cores(cores, len(at), root), strict=True):
            result[number] = part
    return result


def _local(gpu: _Gpu, root: Path) -> frozenset[int]:
    try:
        return read_cores((root / "sys/bus/pci/devices" / gpu.bus / "local_cpulist").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()
