"""Examine this machine for ``perfctl doctor``: tools, permissions, and what each profiler can
do here."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from perfctl.orchestrator.launch.images import check as images_check
from perfctl.orchestrator.launch.images import run
from perfctl.orchestrator.launch.machine import devices, tools
from perfctl.orchestrator.launch.profilers import nsys
from perfctl.orchestrator.launch.profilers.nsys import TOOL as NSYS

OK, WARNING, MISSING = "ok", "warning", "missing"

_OPTIONAL_PROGRAMS = (
    ("dcgmi", "only needed to pause DCGM while ncu counts"),
    ("apptainer", "only needed to run inside a container (or singularity)"),
    ("sbatch", "only needed to run sweeps as Slurm jobs"),
)
_OPTIONAL_PACKAGES = (
    (
        "ncu_report",
        "ncu_report",
        "reads .ncu-rep files; without it, perfctl reads the CSV. pip install 'perfctl[ncu]'",
    ),
    (
        "pynvml",
        "nvidia-ml-py",
        "samples GPU memory and power during a run. pip install 'perfctl[nvml]'",
    ),
)
TOOLS = (
    *("nsys", "nsys importer", "ncu", "dlprof", "torch"),
    *(name for name, _ in _OPTIONAL_PROGRAMS),
    *(distribution for _, distribution, _ in _OPTIONAL_PACKAGES),
)
"""Names of the findings that are programs and packages."""

_COUNTERS = (
    "ncu and nsys --gpu-metrics-devices work for root only, and you are not root. Type: echo "
    "'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee "
    "/etc/modprobe.d/nvidia-counters.conf, and reboot (Debian, Ubuntu: sudo update-initramfs -u "
    "before it); in docker: --cap-add=SYS_ADMIN"
)
_LOCKS = (
    "not writable by all users, so perfctl does not notice a second user of a GPU. Type: sudo rm "
    f"-rf {devices.SHARED}; sudo mkdir -m 1777 {devices.SHARED}"
)
_MOST_PARANOID = 2
"""Highest kernel.perf_event_paranoid at which nsys can sample the CPU of a user's own processes."""
_SAMPLING = (
    "perfctl does not need it; for nsys --tool-args='--sample=process-tree' type: sudo sysctl "
    "kernel.perf_event_paranoid=2"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One tool or property of the machine: a line of ``perfctl doctor``."""

    name: str
    state: str
    """ok, warning or missing."""
    value: str | None
    """Version, size, ...; None when there is nothing to show."""
    detail: str | None = None
    """What it means, or what to do about it; None when there is nothing to add."""


def check_machine() -> tuple[Finding, ...]:
    """Return all findings that decide which profilers work here. Starts short programs and
    changes nothing."""
    findings = [
        *_check_gpu(),
        *_check_profiling_tools(),
        *_check_permissions(),
        *_check_python_packages(),
        *_check_disk_and_container(),
    ]
    return (
        *findings,
        *_judge_profiler_usability({finding.name: finding.state for finding in findings}),
    )


def collect_host_facts() -> dict[str, str]:
    """Return facts about the host for a run's environment. Never the process environment."""
    facts = {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    if cpu := _read_value_of_key(Path("/proc/cpuinfo"), "model name"):
        facts["cpu"] = cpu
    return {**facts, "cpu_count": str(len(os.sched_getaffinity(0)))}


def _check_gpu() -> Iterator[Finding]:
    rows = devices.query_nvidia_smi(
        "index", "name", "compute_cap", "memory.total", "driver_version"
    )
    for index, name, capability, memory, driver in rows:
        detail = f"compute capability {capability}, {memory}, driver {driver}"
        yield Finding(f"GPU {index}", OK, name, detail)
    if not rows and tools.has_gpu_driver():
        detail = (
            "a driver is loaded, but nvidia-smi does not run: start containers with --nv or --gpus "
            "all"
        )
        yield Finding("GPU", WARNING, None, detail)
    elif not rows:
        yield Finding("GPU", MISSING, None, "no NVIDIA driver")


def _check_profiling_tools() -> Iterator[Finding]:
    yield _check_program("nsys", NSYS.install)
    if tools.find_program("nsys"):
        yield _check_nsys_importer()
    yield _check_program(
        "ncu",
        "install NVIDIA Nsight Compute (Debian 12 and 13: scripts/setup/install_nsight_debian.sh)",
    )
    yield _check_program(
        "dlprof", "last released in 2021; perfctl reads existing reports without it"
    )
    for name, use in _OPTIONAL_PROGRAMS:
        path = tools.find_program(name) or (
            tools.find_program("singularity") if name == "apptainer" else None
        )
        version = tools.query_program_version(Path(path).name) if path else None
        yield Finding(name, OK if path else MISSING, version, None if path else use)


def _check_nsys_importer() -> Finding:
    """Return whether nsys's importer starts, which turns a recording into a report."""
    importer = nsys.run_importer_for_version()
    if importer is None and nsys.is_importer_present() is None:
        detail = (
            "not found next to this nsys, so not tested. Run perfctl nsys --batches 16 --steps 1 "
            "to test it"
        )
        return Finding("nsys importer", WARNING, "unknown", detail)
    if importer is None:
        detail = f"{nsys.IMPORTER.why}: {nsys.IMPORTER.install}"
        return Finding("nsys importer", MISSING, None, detail)
    if importer.error is not None:
        detail = f"it does not start: {importer.error}; {nsys.IMPORTER.why}"
        return Finding("nsys importer", MISSING, None, detail)
    return Finding("nsys importer", OK, importer.version)


def _check_program(name: str, install_hint: str) -> Finding:
    if tools.find_program(name) is None:
        return Finding(name, MISSING, None, install_hint)
    version = tools.query_program_version(name)
    fails = f"{name} --version fails: the installation is incomplete"
    return Finding(name, OK if version else WARNING, version, None if version else fails)


def _check_permissions() -> Iterator[Finding]:
    allowed = _are_counters_unrestricted()
    if allowed is None:
        yield Finding("GPU counters", MISSING, None, "no NVIDIA driver")
    elif allowed or os.geteuid() == 0:
        yield Finding("GPU counters", OK, "for all" if allowed else "for root")
    else:
        yield Finding("GPU counters", WARNING, "for root", _COUNTERS)
    if allowed is not None:  # Debian's ncu 2022.3 makes device files without a driver
        yield from _check_device_files()
        # can users of one GPU see one another's runs?
        if devices.SHARED.exists() and devices.ensure_shared_lock_folder() is None:
            yield Finding("GPU locks", WARNING, str(devices.SHARED), _LOCKS)
        else:
            yield Finding("GPU locks", OK, f"{devices.SHARED}, for all users")
    if _is_process_running("nv-hostengine") or _is_process_running("dcgm-exporter"):
        detail = (
            "DCGM may hold the counters: run dcgmi profile --pause before ncu and --resume after it"
        )
        yield Finding("DCGM", WARNING, "running", detail)
    else:
        yield Finding("DCGM", OK, "not running")
    lock = Path(tempfile.gettempdir(), "nsight-compute-lock")
    if lock.exists() and lock.stat().st_uid != os.geteuid() and not os.access(lock, os.W_OK):
        detail = "belongs to another user: perfctl gives ncu a separate TMPDIR, which ncu needs"
        yield Finding("ncu lock file", OK, str(lock), detail)
    else:
        yield Finding("ncu lock file", OK, "no lock file of another user")
    paranoid = next(iter(_read_file_lines(Path("/proc/sys/kernel/perf_event_paranoid"))), "")
    if paranoid.lstrip("-").isdecimal() and int(paranoid) > _MOST_PARANOID:
        yield Finding("CPU sampling", OK, "not allowed", _SAMPLING)


def _check_device_files(folder: Path = Path("/dev")) -> Iterator[Finding]:
    """Yield a finding on whether this user may open the GPUs."""
    files = [
        path
        for path in sorted(folder.glob("nvidia*"))
        if re.fullmatch(r"nvidia(?:ctl|-uvm|\d+)", path.name)
    ]
    closed = [path for path in files if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        try:
            group = closed[0].group()
        except (KeyError, OSError):
            group = "video"
        detail = (
            f"no permission to open it, so programs see no GPU. Type: sudo usermod -aG {group} "
            "$USER, and log in again"
        )
        yield Finding("GPU device files", WARNING, str(closed[0]), detail)
    elif files:
        yield Finding("GPU device files", OK, "readable and writable")


def _are_counters_unrestricted() -> bool | None:
    """Return whether the driver lets everybody read counters; None when it does not say."""
    value = _read_value_of_key(Path("/proc/driver/nvidia/params"), "RmProfilingAdminOnly")
    return None if value is None else value == "0"


def _check_python_packages() -> Iterator[Finding]:
    version = _find_package_version("torch")
    if version is None:
        yield Finding("torch", MISSING, None, tools.TORCH.install)
    elif not _is_torch_built_with_cuda():
        detail = (
            "built without CUDA, so without NVTX: nsys cannot see layers, but perfctl torch works"
        )
        yield Finding("torch", WARNING, version, detail)
    else:
        yield Finding("torch", OK, version, "CUDA build")
    for module, distribution, use in _OPTIONAL_PACKAGES:
        state, hint = (OK, None) if tools.is_package_importable(module) else (MISSING, use)
        yield Finding(distribution, state, _find_package_version(distribution), hint)


def _is_torch_built_with_cuda() -> bool:
    """Checked in the package's file list, because importing torch takes seconds."""
    try:
        return any("libtorch_cuda" in path.name for path in metadata.files("torch") or ())
    except metadata.PackageNotFoundError:
        return False


def _find_package_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _check_disk_and_container() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free
    little = "little space: the reports of a sweep can take several GiB; put them on another disk"
    detail = little if free < 5 * 2**30 else None
    yield Finding("free disk", WARNING if detail else OK, f"{free / 2**30:.1f} GiB", detail)
    if container := run.find_surrounding_container():
        detail = "install the profiler inside the container, because it sees nothing from outside"
        yield Finding("container", OK, str(container), detail)
        if tools.has_gpu_driver() and not images_check.can_load_libcuda():
            reason = f"{images_check.LIBCUDA.why}: {images_check.LIBCUDA.install}"
            yield Finding(images_check.LIBCUDA.name, MISSING, None, reason)


def _judge_profiler_usability(state_by_finding: dict[str, str]) -> Iterator[Finding]:
    """One finding per profiler: what it can do here, or what to use instead."""
    gpu = any(
        re.fullmatch(r"GPU \d+", name) and state == OK for name, state in state_by_finding.items()
    )
    if state_by_finding["torch"] == MISSING:
        for name in ("perfctl torch", "perfctl nsys", "perfctl ncu", "perfctl dlprof"):
            yield Finding(name, MISSING, None, f"needs PyTorch: {tools.TORCH.install}")
    else:
        yield Finding("perfctl torch", OK, "CPU and GPU" if gpu else "CPU only")
        yield judge_nsys_usability(state_by_finding, gpu)
        yield judge_ncu_usability(state_by_finding, gpu)
        works = gpu and state_by_finding["dlprof"] == OK
        detail = None if works else "use perfctl nsys instead"
        yield Finding("perfctl dlprof", OK if works else MISSING, None, detail)
    yield Finding("perfctl replay", OK, "and ingest, ledger, report, compare, estimate, predict")


def judge_nsys_usability(state_by_finding: Mapping[str, str], has_gpu: bool) -> Finding:
    """Return what nsys can do on a machine with these findings."""
    importer = state_by_finding.get("nsys importer")
    scope = "kernels and layers" if has_gpu else "CPU ranges only"
    lack = None
    if state_by_finding["nsys"] == MISSING:
        lack = f"{NSYS.install}; or use perfctl torch instead"
    elif importer == MISSING:
        lack = "its importer is missing or does not start; use perfctl torch instead"
    elif importer != WARNING and not has_gpu and state_by_finding["torch"] == WARNING:
        lack = "no GPU, and this torch has no NVTX ranges; use perfctl torch instead"
    if lack is not None:
        return Finding("perfctl nsys", MISSING, None, lack)
    if importer == WARNING:
        detail = "if its importer works (see nsys importer)"
        return Finding("perfctl nsys", WARNING, scope, detail)
    return Finding("perfctl nsys", OK, scope, None if has_gpu else "no GPU")


def judge_ncu_usability(state_by_finding: Mapping[str, str], has_gpu: bool) -> Finding:
    """Return what ncu can do on a machine with these findings."""
    lack = None
    if not has_gpu:
        lack = "needs an NVIDIA GPU"
    elif state_by_finding["ncu"] == MISSING:
        lack = "install Nsight Compute; no other tool counts executed FLOPs"
    elif state_by_finding.get("GPU counters") == WARNING:
        lack = "no permission to read the counters (see GPU counters); use perfctl nsys instead"
    if lack is not None:
        return Finding("perfctl ncu", MISSING, None, lack)
    if state_by_finding.get("DCGM") == WARNING:
        return Finding("perfctl ncu", WARNING, None, "DCGM may hold the counters (see DCGM)")
    return Finding("perfctl ncu", OK, "counters of every kernel")


def _is_process_running(program: str) -> bool:
    """Return whether a process of that name is running. /proc shortens names to 15 characters."""
    return any(
        _read_file_lines(path)[:1] == [program[:15]] for path in Path("/proc").glob("[0-9]*/comm")
    )


def _read_value_of_key(path: Path, key: str) -> str | None:
    """Return the value in the first line "key: value" of a file; None without one."""
    pairs = (line.partition(":") for line in _read_file_lines(path))
    return next((value.strip() for name, _, value in pairs if name.strip() == key), None)


def _read_file_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
