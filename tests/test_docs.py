"""Documentation that a program can check stays true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from perfctl.orchestrator.cli.main import COMMANDS, SWEEPS
from perfctl.orchestrator.store import describe

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_has_help_and_a_line_in_the_readme() -> None:
    for name, function in {**SWEEPS, **COMMANDS}.items():
        assert function.__doc__, f"perfctl {name} has no help"
        assert re.search(rf"perfctl {name}\b", README), f"README.md does not mention perfctl {name}"


def test_every_file_that_the_readme_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), f"README.md links to {target}"


def test_the_make_targets_that_the_readme_names_exist() -> None:
    targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = set(re.findall(r"make ([a-z]+)", README))
    assert named
    assert named <= set(targets)


def test_the_schema_page_is_the_one_that_the_migrations_make() -> None:
    assert (ROOT / "docs" / "schema.md").read_text(encoding="utf-8") == describe.markdown()


def test_python_m_perfctl_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "perfctl", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"perfctl \d+\.\d+\.\d+\n", done.stdout)
