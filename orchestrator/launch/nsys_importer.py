"""Find nsys's importer, which turns a recording into a report and is missing from many images and packages."""

from __future__ import annotations

from pathlib import Path

from perfctl.orchestrator.launch import tools
from perfctl.orchestrator.launch.profiler import Tool

_DEBIAN = Path("/usr/lib/nsight-systems/host-linux-x64/QdstrmImporter")
_BESIDE_DEBIAN = Path("/usr/lib/x86_64-linux-gnu/nsight-systems/host-linux-x64")

TOOL = Tool(
    "nsys's importer (host-linux-x64/QdstrmImporter)",
    "without it nsys leaves only .qdstrm files",
    "install all of Nsight Systems, not only its target-linux-x64 (Debian 12 and 13: "
    "scripts/install_nsight_debian.sh, which links it)",
    "perfctl torch times layers and kernels with PyTorch alone",
)


def state() -> bool | None:
    """Whether it is where this nsys looks; None without nsys, or for an installation with another layout.

    Debian's package puts it where its nsys does not look (2022.4.2). NVIDIA's packages have target-linux-x64/nsys and
    host-linux-x64/QdstrmImporter in one folder.
    """
    path = tools.find("nsys")
    if path is None:
        return None
    program = Path(path).resolve()
    folders = [folder / "host-linux-x64" for folder in program.parents[:3]]
    folders += [_BESIDE_DEBIAN]
    if any((folder / "QdstrmImporter").exists() for folder in folders):
        return True
    return False if _DEBIAN.exists() or program.parent.name == "target-linux-x64" else None
