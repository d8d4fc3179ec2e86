"""What an image has, asked of the perfctl inside it before anything runs; and what is missing where perfctl itself is inside.

Run as ``python3 -m perfctl.orchestrator.launch.in_image PROFILER DEVICE`` in the image, it prints one line of JSON.
"""

from __future__ import annotations

import ctypes.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from perfctl.orchestrator.errors import ToolMissing
from perfctl.orchestrator.launch import container, nsys_importer, tools
from perfctl.orchestrator.launch.container import PYTHON, Image
from perfctl.orchestrator.launch.nsys import Nsys, knows_graph_nodes
from perfctl.orchestrator.launch.profiler import Profiler, Tool

_LIMIT_S = 300.0
"""The first start of an image can take a minute: without FUSE it is unpacked."""

_VERSION = "import perfctl; print(perfctl.__version__)"

LIBCUDA = Tool(
    "libcuda.so.1",
    "the driver's library must come into the image from outside",
    "start the image with --nv (perfctl --image does, docker: --gpus all)",
    "--device cpu works",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the perfctl inside an image says."""

    missing: tuple[Tool, ...]
    graph_nodes: bool
    """Does its nsys know --cuda-graph-trace? True where there is none."""


def check(image: Image, profiler: Profiler, device: str, version: str) -> Answer:
    """Ask the image. Raises ToolMissing when it does not start, has no perfctl of this ``version``, or lacks a tool."""
    name = Path(image.path).name
    there = _run(image, ("-c", _VERSION))
    if there != version:
        raise ToolMissing(
            f"{name} has perfctl {there}, and this is {version}: both must be the same",
            f"Install perfctl {version} in the image (perfctl image render writes a definition)",
        )
    said = json.loads(_run(image, ("-m", "perfctl.orchestrator.launch.in_image", profiler.name, device)))
    answer = Answer(tuple(Tool(**tool) for tool in said["missing"]), said["graph_nodes"])
    refuse(answer.missing, f"in the image {name}")
    return answer


def refuse(missing: tuple[Tool, ...], where: str) -> None:
    """Raises ToolMissing for the first of them: what, where, why, how to get it."""
    if not missing:
        return
    first = missing[0]
    others = "".join(f"; {tool.name} is missing, too ({tool.install})" for tool in missing[1:])
    remedy = f"To get it: {first.install}{others}. Without it: {first.instead}"
    raise ToolMissing(f"{first.name} is not {'installed ' if first != LIBCUDA else ''}{where}: {first.why}", remedy)


def settle(profiler: Profiler, answer: Answer) -> Profiler:
    """The profiler with the options that the image's own tools know."""
    if isinstance(profiler, Nsys) and profiler.graph_nodes is None:
        return replace(profiler, graph_nodes=answer.graph_nodes)
    return profiler


def lacking(profiler: Profiler, device: str) -> tuple[Tool, ...]:
    """What ``profiler`` needs and this container lacks: its tools, nsys's importer, the driver's library."""
    found = list(profiler.missing())
    if profiler.name == "nsys" and tools.find("nsys") and nsys_importer.state() is False:
        found.append(nsys_importer.TOOL)
    if device == "cuda" and not has_libcuda():
        found.append(LIBCUDA)
    return tuple(found)


def has_libcuda() -> bool:
    """Can a program load the driver's library here? --nv puts it where no cache knows it."""
    if any(Path("/.singularity.d/libs").glob("libcuda.so*")):
        return True
    return ctypes.util.find_library("cuda") is not None


def _run(image: Image, words: tuple[str, ...]) -> str:
    """The last line that the image's python prints."""
    argv = (*image.prefix(), PYTHON, *words)
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissing(f"{image.path} does not run: {error}", "Try it by hand: " + " ".join(argv)) from error
    out = done.stdout.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(out) if line.strip()), "")
    if done.returncode == 0 and last:
        return last
    raise ToolMissing(*_why(image, done.returncode, done.stderr.decode(errors="replace")))


def _why(image: Image, code: int, stderr: str) -> tuple[str, str]:
    """(message, remedy) from what the runtime or Python said."""
    lines = [line.strip() for line in stderr.split("\n") if line.strip()]
    said = next((line for line in lines if line.startswith("FATAL:")), lines[-1] if lines else f"exit code {code}")
    name = Path(image.path).name
    if "No module named 'perfctl." in said and Path("perfctl").is_dir():
        return "the folder perfctl in the working folder hides the one that the image has", "Start in another folder"
    if "No module named 'perfctl" in said:
        return (
            f"{name} has no perfctl, which must run inside the profiled process",
            "Install it in the image: perfctl image render writes a definition that does",
        )
    if f'"{PYTHON}": executable file not found' in said:
        return f"{name} has no {PYTHON}", "Install Python 3.11 or newer in the image"
    return f"{name} does not run: {said.removeprefix('FATAL:').strip()}", f"Try {image.runtime} exec {image.path} true"


def main(name: str, device: str) -> None:
    """Print what the image that this runs in lacks for the profiler ``name``."""
    from perfctl.orchestrator.launch import PROFILERS

    made: Callable[..., Profiler] = PROFILERS[name]
    missing = lacking(made(), device)
    where = container.inside()
    print(
        json.dumps(
            {"missing": [asdict(tool) for tool in missing], "graph_nodes": knows_graph_nodes(), "in": str(where)}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
