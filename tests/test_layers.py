"""Who may know whom is held by import-linter; this holds that the contracts are there and kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_the_layers_of_the_house_are_kept() -> None:
    linter = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("import-linter is not installed (extra 'dev')")
    script = ROOT / "scripts" / "check_layers.sh"
    done = subprocess.run(["sh", script, linter], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "7 kept, 0 broken" in done.stdout


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys; from perfctl.orchestrator.cli.main import run; run(['--help']);"
        "heavy = {'torch', 'pandas', 'matplotlib', 'numpy', 'jinja2', 'torchvision'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"perfctl --help imported {done.stderr}"
    assert "ingest" in done.stdout
