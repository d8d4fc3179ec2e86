"""The notebooks run from top to bottom on the recordings that come with perfctl, and are kept without outputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests" / "data" / "recorded-speedup" / "lstm_cpu.json"
SHOWN = {
    "explore": lambda: [str(2 * 16 * 64 * 24 * 24 * 32 * 3 * 3)],
    "speedup": lambda: [arm["top"][0]["name"] for arm in json.loads(RECORDED.read_text())[0]["arms"]],
}
"""Notebook -> what must stand in its outputs."""


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_is_kept_without_outputs_and_without_a_path_of_any_machine(name: str) -> None:
    path = ROOT / "notebooks" / f"{name}.ipynb"
    content = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    text = path.read_text(encoding="utf-8")
    assert not any(place in text for place in ("/home/", "/root/", "/Users/", "/tmp/"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_runs_from_top_to_bottom_and_shows_what_it_is_about(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (extra 'notebook')")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (extra 'notebook')")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (extra 'notebook')")
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.delenv("PERFCTL_STORE", raising=False)
    monkeypatch.delenv("PERFCTL_STUDY", raising=False)
    _kernel(tmp_path / "jupyter_data_dir")
    notebook: Any = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="here", resources={"metadata": {"path": str(ROOT / "notebooks")}}
    ).execute()
    shown = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    for text in SHOWN[name]():
        assert text in shown, text
    assert '"error"' not in shown


def _kernel(data: Path) -> None:
    """A kernel that is this Python: the one that is registered as python3 may be another."""
    spec = data / "kernels" / "here"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    text = json.dumps({"argv": argv, "display_name": "here", "language": "python"})
    (spec / "kernel.json").write_text(text)
