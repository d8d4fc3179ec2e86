"""What a bare machine needs to record: perfctl from this checkout, the packages it lacks, profilers
on PATH; and its facts."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "pandas", "matplotlib")
"""What --download leaves out of perfctl's own dependencies: every GPU image has them, as it has
torch."""
OPTIONAL = ("torchvision", "nvidia-ml-py")
TOOL_FOLDERS = (
    "/usr/local/cuda/bin",
    "/opt/nvidia/nsight-compute/*",
    "/usr/local/cuda/nsight-compute-*",
    "/opt/nvidia/nsight-systems/*/bin",
    "/opt/nvidia/nsight-systems-cli/*/bin",
    "/usr/local/cuda/nsight-systems-*/bin",
)
"""Where NVIDIA's installers put ncu and nsys without a word to PATH."""

QUERY = (
    "name",
    "driver_version",
    "compute_cap",
    "memory.total",
    "clocks.max.sm",
    "clocks.max.mem",
    "clocks.sm",
    "clocks.mem",
    "power.limit",
    "ecc.mode.current",
    "mig.mode.current",
    "compute_mode",
    "persistence_mode",
    "pcie.link.gen.current",
)


class CannotRecord(Exception):
    """What is missing, and how to bring it."""


def install(site: Path, wheels: Path | None, limit_s: float) -> list[str]:
    """Make ``site``, a folder for PYTHONPATH with perfctl and what this interpreter lacks for it;
    what was done, in lines.

    ``wheels``: a folder of wheels to install without network. Raises CannotRecord.
    """
    project = _project()
    for package, folder in project["tool"]["setuptools"]["package-dir"].items():
        target = site / package.replace(".", "/")
        shutil.copytree(
            ROOT / folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    done = [f"perfctl {project['project']['version']} from this checkout"]
    wanted = [*project["project"]["dependencies"], "torch>=2.4", *OPTIONAL]
    missing = lacking(wanted)
    if wheels is not None:
        files = sorted(wheels.glob("*.whl"))
        if not files:
            raise CannotRecord(
                f"{wheels} holds no wheels: fill it with --download where there is a network"
            )
        names = {file: _canonical(file.name.partition("-")[0]) for file in files}
        found = [
            str(file) for file, name in names.items() if name in missing or _version(name) is None
        ]
        if found:
            pip(site, ["--no-index", "--no-deps", *found], limit_s)
        done.append(f"{len(found)} wheels from {wheels.name}")
        missing = [name for name in missing if name not in names.values()]
    if needed := [name for name in missing if name not in OPTIONAL]:
        try:
            pip(site, needed, limit_s)
            done.append(f"from the package index: {', '.join(needed)}")
        except CannotRecord as error:
            remedy = (
                "run --download FOLDER where there is a network, carry the folder, and name it "
                "with --wheels"
            )
            raise CannotRecord(
                f"{', '.join(needed)}: not installed here, and {error}; {remedy}"
            ) from error
    done += [f"without {name}" for name in missing if name in OPTIONAL]
    return done


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def lacking(requirements: Iterable[str]) -> list[str]:
    """Names of those (as in "numpy>=1.26") that this interpreter does not have, or only in an
    older version."""
    split = (re.fullmatch(r"([\w.-]+)(?:>=([\d.]+))?.*", line) for line in requirements)
    wanted = [
        (_canonical(found[1]), _numbers(found[2] or "0")) for found in split if found is not None
    ]
    return [
        name for name, least in wanted if (version := _version(name)) is None or version < least
    ]


def _version(name: str) -> tuple[int, ...] | None:
    """Of an installed package; None when it is not there."""
    try:
        return _numbers(metadata.version(name))
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(site: Path, words: list[str], limit_s: float) -> None:
    """Raises CannotRecord with pip's last line."""
    argv = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--no-cache-dir",
        "--target",
        str(site),
    ]
    try:
        done = subprocess.run(
            [*argv, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotRecord(f"pip did not end in {limit_s:.0f} s") from error
    if done.returncode:
        raise CannotRecord(f"pip said: {(done.stderr.strip().splitlines() or ['nothing'])[-1]}")


def download(folder: Path, python: str) -> str:
    """Fetch what ``install`` may need on a machine without network, for CPython ``python`` (as in
    3.12) on x86-64."""
    libraries = [f"manylinux{name}_x86_64" for name in ("2014", "_2_17", "_2_28")]
    argv = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary=:all:",
        f"--python-version={python}",
    ]
    platforms = [word for name in libraries for word in ("--platform", name)]
    names = [re.split(r"[<>=!~]", line)[0] for line in _project()["project"]["dependencies"]]
    light = [name for name in (*names, "nvidia-ml-py") if name not in HEAVY]
    subprocess.run([*argv, *platforms, "--dest", str(folder), *light], check=True)
    size = sum(file.stat().st_size for file in folder.glob("*.whl"))
    return f"{len(list(folder.glob('*.whl')))} wheels, {size / 1e6:.1f} MB, in {folder}"


def find_profilers(environment: dict[str, str], limit_s: float) -> list[str]:
    """Put ncu and nsys on ``environment``'s PATH, from where NVIDIA installs them, or from Debian's
    packages; what was done, in lines."""
    done = []
    for tool in ("ncu", "nsys"):
        if shutil.which(tool, path=environment["PATH"]) is None:
            places = [
                place
                for pattern in TOOL_FOLDERS
                for place in sorted(Path("/").glob(pattern[1:]), reverse=True)
            ]
            if place := next((place for place in places if os.access(place / tool, os.X_OK)), None):
                environment["PATH"] += f":{place}"
                done.append(f"{tool} found in {place}")
    lack = [
        tool for tool in ("ncu", "nsys") if shutil.which(tool, path=environment["PATH"]) is None
    ]
    if lack and os.geteuid() == 0 and is_debian() and has_network():
        script = ["sh", str(ROOT / "scripts/setup/install_nsight_debian.sh")]
        try:
            ended = subprocess.run(
                script, capture_output=True, text=True, timeout=limit_s, check=False
            )
            said = (
                "installed" if ended.returncode == 0 else f"failed: {ended.stderr.strip()[-200:]}"
            )
        except subprocess.TimeoutExpired:
            said = f"did not end in {limit_s:.0f} s"
        done.append(f"Debian's packages of {' and '.join(lack)}: {said}")
        lack = [tool for tool in lack if shutil.which(tool, path=environment["PATH"]) is None]
    return [*done, *(f"no {tool} here" for tool in lack)]


def compile_known(source: Path, folder: Path, environment: dict[str, str]) -> Path | None:
    """The library made from ``source``, in ``folder``; None without nvcc, or where it fails."""
    library = folder / f"{source.stem}.so"
    nvcc = shutil.which("nvcc", path=environment["PATH"]) or "/usr/local/cuda/bin/nvcc"
    argv = [nvcc, "-O2", "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-o"]
    ask(environment, *argv, str(library), str(source), limit_s=60.0)
    return library if library.is_file() else None


def is_debian() -> bool:
    release = Path("/etc/os-release")
    return (
        release.is_file()
        and re.search(r"^ID=debian$", release.read_text(), re.MULTILINE) is not None
    )


def has_network() -> bool:
    """Whether the host of the first package source answers; a machine without network says no in
    5 s."""
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    texts = [file.read_text(errors="replace") for file in lists if file.is_file()]
    found = next(
        (match for text in texts if (match := re.search(r"https?://([^/\s:]+)(?::(\d+))?", text))),
        None,
    )
    if found is None:
        return False
    try:
        socket.create_connection((found[1], int(found[2] or 80)), timeout=5).close()
    except OSError:
        return False
    return True


def facts(environment: dict[str, str]) -> dict[str, str | None]:
    """What a reader of the recording must know of the machine; nothing that names it. None:
    not known."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
    }
    values = _gpu(environment, *QUERY) or [
        next(iter(_gpu(environment, field)), None) for field in QUERY
    ]
    found |= {f"gpu {field}": value for field, value in zip(QUERY, values, strict=True)}
    for tool in ("ncu", "nsys"):
        found[tool] = next(
            iter(reversed((ask(environment, tool, "--version") or "").strip().splitlines())), None
        )
    said = ask(
        environment,
        sys.executable,
        "-c",
        "import torch; print(torch.__version__, torch.version.cuda, "
        "torch.backends.cudnn.version(), torch.cuda.is_available())",
    )
    found["torch, CUDA, cuDNN, CUDA available"] = said.strip() if said else None
    for file, wanted in (
        ("/proc/driver/nvidia/params", "RmProfilingAdminOnly"),
        ("/proc/cpuinfo", "model name"),
    ):
        path = Path(file)
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        found[wanted] = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith(wanted)), None
        )
    found["may read counters as"] = "root" if os.geteuid() == 0 else "an ordinary user"
    return found


def _gpu(environment: dict[str, str], *fields: str) -> list[str]:
    """The first GPU's values; nothing where nvidia-smi does not know one of the fields."""
    said = ask(
        environment, "nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"
    )
    return [cell.strip() for cell in said.splitlines()[0].split(",")] if said else []


def ask(environment: dict[str, str], *argv: str, limit_s: float = 30.0) -> str | None:
    """What a program prints; None when it is missing or fails."""
    path = shutil.which(argv[0], path=environment["PATH"])
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
