"""The notebooks run from top to bottom on the recordings that come with perfctl, and are kept
without outputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import perfctl

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests" / "data" / "recorded-speedup" / "lstm_cpu.json"
SHOWN = {
    "explore": lambda: [str(2 * 16 * 64 * 24 * 24 * 32 * 3 * 3)],
    "speedup": lambda: [
        arm["top_operations"][0]["name"] for arm in json.loads(RECORDED.read_text())[0]["arms"]
    ],
    "record": lambda: [str(2 * batch * 8 * 16 * 16 * 3 * 3) for batch in (16, 32)],
}
"""Notebook -> what must stand in its outputs."""
PICTURES = {
    "explore": lambda: [
        "memory",
        "comparison-flops",
        "time-clocks",
        "training-loss",
        "sample",
        "step",
        "shares",
    ],
    "speedup": lambda: [*perfctl.charts(RECORDED), "work as pies"],
    "record": lambda: [
        *["comparison-flops", "time-clocks", "shares"] * 2,
        "memory",
        "sample",
        "step",
    ],
}
"""Notebook -> its charts."""


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_is_kept_without_outputs_and_without_a_path_of_any_machine(name):
    path = ROOT / "examples" / "notebooks" / f"{name}.ipynb"
    content = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    text = path.read_text(encoding="utf-8")
    assert not any(place in text for place in ("/home/", "/root/", "/Users/", "/tmp/"))


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_runs_from_top_to_bottom_and_shows_what_it_is_about(name, tmp_path, monkeypatch):
    nbclient = pytest.importorskip(
        "nbclient", reason="nbclient is not installed (extra 'notebook')"
    )
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (extra 'notebook')")
    nbformat = pytest.importorskip(
        "nbformat", reason="nbformat is not installed (extra 'notebook')"
    )
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.delenv("PERFCTL_STORE", raising=False)
    monkeypatch.delenv("PERFCTL_STUDY", raising=False)
    _kernel(tmp_path / "jupyter_data_dir")
    notebook: Any = nbformat.read(ROOT / "examples" / "notebooks" / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="here",
        resources={"metadata": {"path": str(ROOT / "examples" / "notebooks")}},
    ).execute()
    shown = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    for text in SHOWN[name]():
        assert text in shown, text
    assert '"error"' not in shown
    drawn = [
        part
        for cell in notebook.cells
        for part in cell.get("outputs", [])
        if "image/png" in part.get("data", {})
    ]
    assert len(drawn) == len(PICTURES[name]())


@pytest.mark.parametrize(
    ("name", "variable"), [("explore", "PERFCTL_STORE"), ("speedup", "PERFCTL_STUDY")]
)
def test_a_notebook_without_anything_to_read_says_in_one_sentence_what_to_do(
    name, variable, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(variable, raising=False)
    first = next(
        cell
        for cell in json.loads(
            (ROOT / "examples" / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
        )["cells"]
        if cell["cell_type"] == "code"
    )
    with pytest.raises(perfctl.PerfctlError) as caught:
        exec("".join(first["source"]), {})
    (sentence,) = caught.value._render_traceback_()
    assert sentence.count(". ") == 0 and sentence.endswith(".")
    assert f"set {variable}" in sentence and "in this folder" in sentence


def test_the_charts_of_a_speed_up_are_those_of_its_page_and_pies_show_the_same_parts():
    bars, pies = (perfctl.charts(RECORDED, pie=pie) for pie in (False, True))
    one = json.loads(RECORDED.read_text())[0]
    assert set(pies) == set(bars) - {"lstm-memory"}
    assert {f"lstm-operations-{arm['label'].replace(':', '-')}" for arm in one["arms"]} <= set(bars)
    assert all(chart.png.startswith(b"\x89PNG") for chart in (bars["lstm-work"], pies["lstm-work"]))
    line = bars["lstm-training-loss-by-epoch"].figure.axes[0].lines[0]
    assert list(line.get_ydata()) == [epoch["loss"] for epoch in one["arms"][0]["epochs"]]
    wedges = [
        patch for patch in pies["lstm-work"].figure.axes[0].patches if patch.theta2 > patch.theta1
    ]
    assert len(wedges) == sum(share > 0 for share in one["arms"][0]["categories"].values())


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"workload": "x"}]', '{"points": []}'])
def test_json_of_another_kind_has_no_charts_and_the_error_says_what_is_asked_for(tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(perfctl.PerfctlError, match="not a file that perfctl speedup --json wrote"):
        perfctl.charts(tmp_path / "other.json")
    with pytest.raises(perfctl.PerfctlError, match="cannot be read"):
        perfctl.charts(tmp_path / "none.json")


def _kernel(data):
    """A kernel that is this Python: the one that is registered as python3 may be another."""
    spec = data / "kernels" / "here"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    text = json.dumps({"argv": argv, "display_name": "here", "language": "python"})
    (spec / "kernel.json").write_text(text)
