"""Who may know whom is held by import-linter; this holds that the contracts are there and kept."""

import ast
import shutil
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PLANNED = (
    "records and redact are",
    "parsers know",
    "one report format",
    "workloads know",
    "models and data",
    "launch does",
    "store keeps",
    "compute are pure",
    "compute have floors",
    "no two rooms",
    "report never opens the database",
    "commands know no flags",
    "the Python API",
)
"""What the contracts' names must speak of, one each."""


def test_the_layers_of_the_house_are_kept():
    linter = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("import-linter is not installed (extra 'dev')")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
    for words in PLANNED:
        assert sum(words in contract["name"] for contract in contracts) == 1, words
    script = ROOT / "scripts" / "proof" / "check_layers.sh"
    done = subprocess.run(["sh", script, linter], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(contracts)} kept, 0 broken" in done.stdout


def test_no_file_imports_itself_in_a_circle():
    """Imports for types and imports inside functions count; graphlib raises CycleError with
    the circle."""
    files = dict(module_files())
    imports = {
        name: {other for other in imported_by(file, files) if other != name}
        for name, file in files.items()
    }
    assert len(imports) > 400 and imports["perfctl.orchestrator.launch.catalog"]
    TopologicalSorter(imports).prepare()


def module_files():
    for top in ("orchestrator", "parsers", "perfctl", "templates", "workloads"):
        for file in (ROOT / top).rglob("*.py"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            inside = parts if top == "perfctl" else ("perfctl", *parts)
            yield ".".join(inside[:-1] if inside[-1] == "__init__" else inside), file


def imported_by(file, files):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports from a relative path"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from (
                    name
                    for name in [whole if whole in files else str(node.module)]
                    if name in files
                )


@pytest.mark.parametrize(
    "code",
    [
        "from perfctl.orchestrator.cli.main import run_command_line as run; run(['--help'])",
        "import perfctl.orchestrator.launch, perfctl.workloads; print('loaded')",
    ],
    ids=["the help", "the launcher"],
)
def test_no_heavy_library_is_loaded_by(code):
    code += (
        "\nimport sys; heavy = {'torch', 'pandas', 'matplotlib', 'numpy', 'jinja2', 'torchvision'} "
        "& set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nsys.exit(', '.join(sorted(heavy)) or 0)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"imported {done.stderr}"
    assert done.stdout


def test_the_list_of_commands_loads_no_command_and_every_line_fits():
    code = (
        "from perfctl.orchestrator.cli.main import run_command_line as run; run(['--help']); import sys; "
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listing, _, modules = done.stdout.rstrip().rpartition("\n")
    shown = listing.partition("Measure:")[2]
    assert "..." not in shown
    for line in COMMANDS.values():
        assert f" {line}\n" in shown, "no line is cut or wrapped"
    assert max(map(len, listing.splitlines())) < 80
    loaded = set(modules.split())
    assert not {f"perfctl.orchestrator.commands.{name}" for name in COMMANDS} & loaded
