"""Run cuobjdump, nvdisasm and ptxas: those on PATH, or those of the triton wheel that torch brings (sm_75 and later).

Neither torch nor triton is imported. Nothing that a tool prints or extracts outlives the call.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.errors import PerfctlError, ToolMissing
from perfctl.orchestrator.launch.machine import tools

_LIMIT_S = 600.0
_RELEASE = re.compile(r"\bV(\d+(?:\.\d+)+)")
_BLACKWELL = 100


@dataclass(frozen=True, slots=True)
class Binary:
    """One tool."""

    path: Path

    @property
    def identity(self) -> tuple[str, int, int]:
        """(path, bytes, time of change): another version differs in it, and no process is started to learn that."""
        facts = self.path.stat()
        return str(self.path), facts.st_size, facts.st_mtime_ns

    @property
    def version(self) -> str:
        """As in "13.1.80"; "" where the tool does not say."""
        found = _RELEASE.search(tools.output(str(self.path), "--version"))
        return found[1] if found else ""


def find(name: str) -> Binary:
    """The tool ``name``. Raises ToolMissing, with what to install."""
    known = tools.find(name)
    if known is not None:
        return Binary(Path(known))
    folder = _wheel()
    if folder is not None and (folder / name).is_file():
        return Binary(folder / name)
    raise ToolMissing(
        f"{name} was not found, on PATH or in the triton wheel, so machine code cannot be read",
        "Install it: pip install triton (a CUDA build of torch brings it), or the CUDA toolkit",
    )


def _wheel() -> Path | None:
    """The folder with NVIDIA's tools in the triton package, which is found and not imported."""
    try:
        spec = importlib.util.find_spec("triton")
    except (ImportError, ValueError):
        return None
    places = [
        Path(place) / "backends" / "nvidia" / "bin" for place in (spec.submodule_search_locations or () if spec else ())
    ]
    return next((place for place in places if place.is_dir()), None)


def disassemble(cubin: Path, symbol: int | None = None) -> str:
    """Text of one function, with source lines where the file has them. ``symbol``: its index in the table of symbols; None: of all.

    Raises PerfctlError where nvdisasm cannot read the file.
    """
    binary = find("nvdisasm")
    function = () if symbol is None else ("-g", "-fun", str(symbol))
    code, out, err = _run(binary, "-c", *function, str(cubin))
    if code or not out.strip():
        raise PerfctlError(
            f"{cubin.name}: {_why(binary, code, err)}", "A newer CUDA toolkit may know this architecture"
        )
    return out


@contextmanager
def extracted(fatbin: bytes) -> Iterator[list[Path]]:
    """The machine code in containers of GPU code, a file each in their order, until the block ends."""
    binary = find("cuobjdump")
    with tempfile.TemporaryDirectory(prefix="perfctl-") as made:
        source = Path(made) / "code.fatbin"
        source.write_bytes(fatbin)
        code, _, err = _run(binary, "-xelf", "all", source.name, cwd=Path(made))
        source.unlink()
        files = sorted(Path(made).glob("*.cubin"), key=lambda one: int(one.name.split(".")[-3]))
        if code or not files:
            raise PerfctlError(
                f"the GPU code cannot be unpacked: {_why(binary, code, err)}",
                "Try the cuobjdump of a newer CUDA toolkit",
            )
        yield files


@contextmanager
def compiled(ptx: Path, arch: str) -> Iterator[Path]:
    """The machine code that ptxas makes of a PTX file, until the block ends. ``arch``: "sm_90" or "sm_90a"."""
    binary = _assembler(arch)
    with tempfile.TemporaryDirectory(prefix="perfctl-") as made:
        target = Path(made) / f"{ptx.stem}.cubin"
        code, out, err = _run(
            binary, "--gpu-name", arch, "--generate-line-info", str(ptx.absolute()), "-o", str(target)
        )
        if code or not target.is_file():
            raise PerfctlError(
                f"{ptx}: {_why(binary, code, err or out)}", "The PTX's .target says for which `arch` it was written"
            )
        yield target


def _assembler(arch: str) -> Binary:
    """ptxas; the triton wheel has one of its own for Blackwell."""
    number = int(re.sub(r"\D", "", arch) or 0)
    folder = _wheel()
    if (
        tools.find("ptxas") is None
        and number >= _BLACKWELL
        and folder is not None
        and (folder / "ptxas-blackwell").is_file()
    ):
        return Binary(folder / "ptxas-blackwell")
    return find("ptxas")


def _run(binary: Binary, *arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            (str(binary.path), *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
            cwd=cwd,
        )
    except subprocess.TimeoutExpired as error:
        raise PerfctlError(f"{binary.path.name} did not end within {_LIMIT_S:.0f} s") from error
    except OSError as error:
        raise ToolMissing(
            f"{binary.path} could not be started: {error.strerror}", "Install it again: pip install triton"
        ) from error
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def _why(binary: Binary, code: int, said: str) -> str:
    """What the tool said, in one line: the line that speaks of an error, else the last that is no warning."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and "warning" not in line.lower()]
    errors = [line for line in lines if "fatal" in line.lower() or "error" in line.lower()]
    words = (errors or lines[-1:] or [f"exit code {code}, without a word"])[0]
    return f"{binary.path.name} says: {words[:200]}"
