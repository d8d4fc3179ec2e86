"""Check what a profiler needs inside a container: ask the perfctl in an image, or look around when
running inside one.

``python3 -m perfctl.orchestrator.launch.images.check PROFILER DEVICE``, run in the image, prints
one line of JSON.
"""

from __future__ import annotations

import ctypes.util
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from perfctl.orchestrator.errors import ToolMissing
from perfctl.orchestrator.launch.images import run
from perfctl.orchestrator.launch.images.run import PYTHON, ContainerImage
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import nsys
from perfctl.orchestrator.launch.profilers.base import RequiredTool
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.profilers.replay import RECORDERS
from perfctl.orchestrator.launch.sweep.request import Profiler

LIBCUDA = RequiredTool(
    "libcuda.so.1",
    "the image uses the driver library of the host",
    "start the image with --nv, as perfctl does (docker: --gpus all)",
    "CPU runs work",
)


def require_image_tools_adapt_profiler(
    image: ContainerImage, profiler: Profiler, device: str, perfctl_version: str
) -> Profiler:
    """Return the profiler with options that the tools in the image support.
    Raises ToolMissing when the image does not start, has no perfctl of this ``perfctl_version``, or
    lacks a tool."""
    name = Path(image.path).name
    image_version = _run_python_in_image(
        image, ("-c", "import perfctl; print(perfctl.__version__)")
    )
    if image_version != perfctl_version:
        raise ToolMissing(
            f"{name} has perfctl {image_version}, but this is {perfctl_version}: the versions "
            f"must match",
            f"Install perfctl {perfctl_version} in the image (perfctl image render writes a "
            f"definition)",
        )
    answer = json.loads(_run_python_in_image(image, ("-m", __name__, profiler.name, device)))
    require_no_missing_tools(
        tuple(RequiredTool(**tool) for tool in answer["missing"]), f"in the image {name}"
    )
    if isinstance(profiler, Nsys) and profiler.graph_nodes is None:
        return replace(profiler, graph_nodes=answer["graph_nodes"])
    return profiler


def require_no_missing_tools(missing: tuple[RequiredTool, ...], location: str) -> None:
    """Raise ToolMissing when there are any: what is missing at ``location``, why it is needed, how
    to get it."""
    if not missing:
        return
    first = missing[0]
    more_tools = "".join(f"; {tool.name} is missing too ({tool.install})" for tool in missing[1:])
    remedy = f"To get it: {first.install}{more_tools}. Without it: {first.instead}"
    raise ToolMissing(
        f"{first.name} is not {'installed ' if first != LIBCUDA else ''}{location}: {first.why}",
        remedy,
    )


def list_tools_missing_in_container(profiler: Profiler, device: str) -> tuple[RequiredTool, ...]:
    """Return what ``profiler`` needs and this container lacks: tools, nsys's importer, the
    driver's library."""
    missing = list(profiler.list_missing_tools())
    if (
        profiler.name == "nsys"
        and tools.find_program("nsys")
        and nsys.is_importer_present() is False
    ):
        missing.append(nsys.IMPORTER)
    if device == "cuda" and not can_load_libcuda():
        missing.append(LIBCUDA)
    return tuple(missing)


def can_load_libcuda() -> bool:
    """Return whether a program can load the driver's library here. --nv puts it outside of
    ldconfig's cache."""
    inside = any(Path("/.singularity.d/libs").glob("libcuda.so*"))
    return inside or ctypes.util.find_library("cuda") is not None


def _run_python_in_image(image: ContainerImage, arguments: tuple[str, ...]) -> str:
    """Return the last line that Python prints in the image. Raises ToolMissing when it fails."""
    argv = (*image.build_command_prefix(), PYTHON, *arguments)
    try:
        # without FUSE an image is unpacked first, which can take minutes
        code, output, lines = tools.run_with_time_limit(argv, 300.0)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissing(
            f"{image.path} does not run: {error}", "Run it manually: " + " ".join(argv)
        ) from error
    if code == 0 and output:
        return output[-1]
    raise ToolMissing(*_explain_image_failure(image, code, lines))


def _explain_image_failure(image: ContainerImage, code: int, lines: list[str]) -> tuple[str, str]:
    """Return (message, remedy) from the lines of the runtime's or Python's stderr."""
    message = next(
        (line for line in lines if line.startswith("FATAL:")),
        lines[-1] if lines else f"exit code {code}",
    )
    name = Path(image.path).name
    if "No module named 'perfctl." in message and Path("perfctl").is_dir():
        return (
            "the folder perfctl in the working directory hides the image's perfctl",
            "Start perfctl in another directory",
        )
    if "No module named 'perfctl" in message:
        return (
            f"{name} has no perfctl, which must run inside the profiled process",
            "Install it in the image: perfctl image render writes a definition that does",
        )
    if f'"{PYTHON}": executable file not found' in message:
        return f"{name} has no {PYTHON}", "Install Python 3.11 or newer in the image"
    return (
        f"{name} does not run: {message.removeprefix('FATAL:').strip()}",
        f"Try {image.runtime} exec {image.path} true",
    )


def print_missing_tools_as_json(profiler_name: str, device: str) -> None:
    """Print what this image lacks for the profiler ``profiler_name``."""
    missing = list_tools_missing_in_container(RECORDERS[profiler_name](), device)
    facts = {
        "missing": [asdict(tool) for tool in missing],
        "graph_nodes": nsys.supports_profile_option("--cuda-graph-trace"),
    }
    print(json.dumps(facts | {"in": str(run.find_surrounding_container())}))


if __name__ == "__main__":
    print_missing_tools_as_json(sys.argv[1], sys.argv[2])
