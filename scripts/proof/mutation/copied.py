"""A copy of the checkout for mutation, importable as perfctl, with the coverage of its tests
by line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CODE = (
    "parsers",
    *(f"orchestrator/{room}" for room in ("estimate", "counts", "ledger", "compare", "predict")),
    "orchestrator/statistics.py",
)
"""Folders and files that are mutated. Each has a folder or a file of tests with its name."""


class Copy:
    """``work/tree`` is mutated, ``work/clean`` stays; ``work/names/perfctl`` makes the
    tree importable."""

    def __init__(self, root: Path, work: Path) -> None:
        self.root = root
        self.work = work.resolve()
        self.folder = self.work / "tree"

    def make(self, *, has_coverage: bool) -> None:
        """Copy, and measure the coverage unless that was done before."""
        if not self.folder.exists():
            listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
            names = subprocess.run(
                listed, cwd=self.root, check=True, capture_output=True, text=True
            ).stdout
            for name in filter(None, names.split("\0")):
                for target in (self.folder / name, self.work / "clean" / name):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if (self.root / name).is_file():
                        shutil.copy2(self.root / name, target, follow_symlinks=False)
            self._name()
        if has_coverage and not (self.work / "coverage").exists():
            self._measure()

    def _name(self) -> None:
        package = self.work / "names" / "perfctl"
        package.mkdir(parents=True)
        for path in (self.folder / "perfctl").iterdir():
            (package / path.name).symlink_to(path)
        for name in ("orchestrator", "parsers", "workloads", "templates"):
            (package / name).symlink_to(self.folder / name)

    def _measure(self) -> None:
        """By line and test: pytest-cov names each test by its node id."""
        rules = self.work / "coveragerc"
        rules.write_text("[run]\nrelative_files = true\n", encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--numprocesses=2",
            "--dist=loadfile",
            "--cov-context=test",
            "--cov-report=",
        ]
        command += [f"--cov-config={rules}", "--cov=parsers", "--cov=orchestrator"]
        for path in map(Path, CODE):
            command.append(f"tests/test_{path.name}" if path.suffix else f"tests/{path.name}")
        subprocess.run(command, cwd=self.folder, env=self.environment(), check=True)
        (self.folder / ".coverage").rename(self.work / "coverage")

    def environment(self) -> dict[str, str]:
        """Imports come from the copy, never from the current folder; nothing compiled is kept:
        files change within a second."""
        shared = os.environ.get("PERFCTL_SHARED", str(self.root.parent / "shared"))
        return {
            **os.environ,
            "PYTHONPATH": str(self.work / "names"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONSAFEPATH": "1",
            "PERFCTL_SHARED": shared,
            "PERFCTL_MUTATION": str(self.work),
        }
