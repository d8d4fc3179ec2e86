"""Everything that runs inside a profiled process, in one file, for interpreters that have
no perfctl.

``python3.8 annotator.pyz --batch 64 -- train.py`` does what
``python -m perfctl.workloads --batch 64 -- train.py`` does where perfctl is installed. The file is
a zip of perfctl's own modules, which are therefore written for Python 3.8 and torch 1.8.
"""

from __future__ import annotations

import os
import re
import zipfile
from importlib.resources import files
from pathlib import Path

NAME = "annotator.pyz"
OLDEST_PYTHON = (3, 8)
OLDEST_TORCH = (1, 8)

MODULES = (
    *(f"perfctl.records.{name}" for name in ("masks", "paper", "ranges", "report", "serving")),
    *(f"perfctl.workloads.{name}" for name in ("__main__", "interface", "spec")),
    *(
        f"perfctl.workloads.run.{name}"
        for name in ("annotate", "clock", "memory", "options", "record", "setup")
    ),
    *(
        f"perfctl.workloads.script.{name}"
        for name in (
            "counting",
            "facts",
            "graphs",
            "options",
            "phases",
            "record",
            "run",
            "shapes",
            "watch",
        )
    ),
    *(
        f"perfctl.workloads.tracing.{name}"
        for name in (
            "composites",
            "gradients",
            "layers",
            "memory",
            "notes",
            "operations",
            "versions",
            "watch",
        )
    ),
)
"""What a script's run imports, from perfctl; nothing else of perfctl is in the file."""
_MAIN = """import sys

from perfctl.workloads.__main__ import main

sys.exit(main(sys.argv[1:]))
"""
_SITE = """import sys

own, file = sys.modules.pop(__name__), __file__.rpartition("/")[0]
sys.path.remove(file)
try:
    import sitecustomize
except ImportError:
    pass
sys.modules.setdefault(__name__, own)
sys.path.append(file)

from perfctl.workloads.script.run import start_watching_current_process

start_watching_current_process()
"""
"""Python imports it at the start of each process that has the file in PYTHONPATH. The
sitecustomize of the user's own, if any, comes first; so does an installed perfctl."""
_SLOTS = re.compile(r", slots=True\b|\bslots=True(?:, )?")
"""Of dataclasses: from Python 3.10, and only to save memory."""


def write_annotator_archive(path: Path, version: str) -> None:
    """Write the file, complete or not at all; the same ``version`` of perfctl always gives the
    same bytes."""
    part = path.with_name(f".{os.getpid()}.{path.name}")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in read_annotator_sources(version).items():
            archive.writestr(
                zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED
            )
    part.replace(path)


def read_annotator_sources(version: str) -> dict[str, str]:
    """Return path in the file -> source text."""
    packages = {module.rpartition(".")[0] for module in MODULES} | {"perfctl"}
    texts = {f"{name.replace('.', '/')}/__init__.py": "" for name in sorted(packages)}
    texts["perfctl/__init__.py"] = f'__version__ = "{version}"\n'
    texts["__main__.py"], texts["sitecustomize.py"] = _MAIN, _SITE
    for module in MODULES:
        package, _, name = module.rpartition(".")
        text = files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
        texts[f"{module.replace('.', '/')}.py"] = _SLOTS.sub("", text)
    return texts
