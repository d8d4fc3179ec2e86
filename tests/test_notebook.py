"""The notebook runs from top to bottom on the recordings that come with perfctl, and is kept without outputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "explore.ipynb"


def test_the_notebook_is_kept_without_outputs_and_without_a_path_of_any_machine() -> None:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not any(place in text for place in ("/home/", "/root/", "/Users/", "/tmp/"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_the_notebook_runs_from_top_to_bottom_and_shows_pen_and_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (extra 'notebook')")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (extra 'notebook')")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (extra 'notebook')")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("PERFCTL_STORE", raising=False)
    _kernel(tmp_path / "jupyter_data_dir")
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="here", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    ).execute()
    shown = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert str(2 * 16 * 64 * 24 * 24 * 32 * 3 * 3) in shown
    assert '"error"' not in shown


def _kernel(data: Path) -> None:
    """A kernel that is this Python: the one that is registered as python3 may be another."""
    spec = data / "kernels" / "here"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    text = json.dumps({"argv": argv, "display_name": "here", "language": "python"})
    (spec / "kernel.json").write_text(text)
