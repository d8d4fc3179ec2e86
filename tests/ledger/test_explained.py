"""The pages that explain causes and derived FLOPs show the numbers of the recordings they name."""

import re
import shutil
from pathlib import Path

import pytest

from perfctl.orchestrator.ingest.ingest import ingest_paths
from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import load_readable_runs
from tests.ledger.test_h100 import H100
from tests.make.synthetic import study_of

PAGES = Path(__file__).resolve().parents[2] / "docs" / "explanation"
CAUSES = (PAGES / "causes.md").read_text(encoding="utf-8")
DERIVED = (PAGES / "derived-flops.md").read_text(encoding="utf-8")


def recorded(folder, recording):
    shutil.copytree(H100 / recording, folder / "runs" / recording)
    ingest_paths(folder / "runs", folder / "h100.db")
    with database.open_store_for_reading(folder / "h100.db") as connection:
        return study_of(*load_readable_runs(connection, read.list_run_ids(connection)))


@pytest.fixture(scope="module")
def analyses(tmp_path_factory):
    """Profiler -> its analysis of the MNIST CNN on an H100."""
    return {
        name: analyse_study(recorded(tmp_path_factory.mktemp(name), name))
        for name in ("ncu", "nsys")
    }


@pytest.mark.parametrize(
    ("layer", "direction", "batch", "rule", "factor"),
    [
        pytest.param("fc1", "forward", 16, "tile padding", "4.00", id="rows in a tile"),
        pytest.param("conv1", "forward", 128, "tile padding", "1.778", id="depth in steps"),
        pytest.param("conv1", "forward", 128, "layout and epilogue", "1.125", id="bias"),
        pytest.param("fc2", "backward", 128, "split-K", "1.063", id="slices"),
        pytest.param("conv2", "backward", 32, "Winograd", "0.436", id="Winograd"),
    ],
)
def test_a_factor_of_the_page_is_the_ledgers(analyses, layer, direction, batch, rule, factor):
    causes = analyses["ncu"].judgement.get_row_causes(batch, layer, direction).causes
    (found,) = (cause.factor for cause in causes if cause.rule == rule)
    assert found == pytest.approx(float(factor), abs=0.5 * 10 ** -len(factor.partition(".")[2]))
    assert factor in CAUSES


def test_the_example_of_derived_flops_is_that_of_both_recordings(analyses):
    rows = re.findall(r"^\| (\w+) (\w+), (\d+) \| (.+?) \| (.+?) \|$", DERIVED, re.MULTILINE)
    assert len(rows) == 6
    for layer, direction, batch, *shown in rows:
        assert shown == [
            _ratio(analyses[name], layer, direction, int(batch)) for name in ("nsys", "ncu")
        ]


def _ratio(analysis, layer, direction, batch):
    (row,) = (row for row in analysis.ledger.rows if row.key == (batch, layer, direction))
    if row.ratio is None:
        return "–"
    bound = "≥ " if row.executed.lower_bound else ""
    mark = "ƒ " if row.executed.state == "derived" else ""
    return f"{bound}{mark}{row.ratio:.2f}"
