"""The published study, ingested and reported by the commands a user types: the page finds by itself
what was wrong."""

import html
import json
import re
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run_command_line
from tests.cli.conftest import sql

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mnist_v100_study"
OUTPUTS = 64 * 24 * 24


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The store, with the page beside it."""
    folder = tmp_path_factory.mktemp("study")
    store, out = folder / "study.db", folder / "study.html"
    for arguments in (
        ["ingest", str(EXAMPLE), "--store", str(store)],
        ["report", "--store", str(store), "--out", str(out)],
    ):
        assert run_command_line(arguments) == 0
    return store


@pytest.fixture(scope="module")
def page(study):
    """The page's text, tags taken out."""
    out = study.with_suffix(".html")
    text = re.sub(r"<(script|style).*?</\1>", " ", out.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", text)))


def test_the_store_has_them_as_derived_counts_of_their_launch(study):
    rows = sql(
        "SELECT k.name, k.source, instruction, value, verified_error FROM derived_count AS d"
        " JOIN kernel AS k ON k.id = d.kernel_id WHERE k.run_id = 1 ORDER BY instruction",
        study,
    )
    outputs = 1000 * OUTPUTS
    kernel = "volta_scudnn_128x64_relu_xregs_large_nn_v1"
    assert [row[:4] for row in rows] == [
        (kernel, "derived", "FFMA", outputs * 32 * 9),
        (kernel, "derived", "FMUL", outputs),
    ]  # FADD was counted
    assert all(0 <= error < 0.02 for *_, error in rows)


def parameters(channels, kernel):
    """Weights and biases of each layer; the pool halves the second convolution's output."""
    pooled = (26 - kernel + 1) // 2
    found = {
        "conv1": 32 * 9 + 32,
        "conv2": 32 * channels * kernel**2 + channels,
        "fc1": channels * pooled**2 * 128 + 128,
        "fc2": 128 * 10 + 10,
    }
    return found | {"all": sum(found.values())}


def test_memory_and_accuracy_are_in_the_store_and_rounded_figures_are_no_bytes(study):
    memory = sql("SELECT moment, quantity, bytes >> 20 FROM memory ORDER BY 1 DESC, 2", study)
    accuracy = sql("SELECT accuracy FROM step WHERE phase = 'test' ORDER BY 1", study)
    rounded = dict(sql("SELECT name, value FROM summary WHERE name LIKE 'memory %'", study))
    epochs = sql("SELECT value FROM summary WHERE name = 'epochs'", study)
    origins = sql("SELECT DISTINCT origin FROM run", study)
    assert memory == [
        ("before", "device_free", 38_554),
        ("after", "device_free", 37_876),
        ("after", "device_total", 40_960),
    ]
    assert accuracy == [(0.992,), (0.9933,)]
    assert rounded == {
        "memory allocated, before": None,
        "memory allocated, after": 0.02,
        "memory reserved, before": 0.02,
        "memory reserved, after": 0.62,
    }
    assert (epochs, origins) == ([(14,)], [("transcribed",)])


def test_the_page_says_that_nothing_of_it_was_measured_here(page):
    assert "The numbers below are transcribed" in page
    assert "published figures of a study on a V100, typed off; not measured by perfctl" in page


def test_no_file_passes_for_the_output_of_a_profiler():
    for path in EXAMPLE.glob("b*/ncu.csv"):
        assert path.read_text().startswith("==TRANSCRIPTION==")
    assert "transcription of published figures" in (EXAMPLE / "README.md").read_text()


def test_replaying_the_study_finds_the_same_and_leaves_it_a_transcription(perfctl):
    assert perfctl(f"replay {EXAMPLE} --store replayed.db --out runs").code == 0
    found = json.loads(perfctl("ledger --store replayed.db --json").out)
    assert [item["rule"] for item in found["sweep"]] == [
        "wrong window",
        "time does not follow",
        "FADD alone",
        "hand estimate",
    ]
    listed = json.loads(perfctl("runs --store replayed.db --json").out)
    assert {run["origin"] for run in (listed["runs"] if isinstance(listed, dict) else listed)} == {
        "transcribed"
    }
