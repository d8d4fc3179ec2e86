"""The published study, ingested and reported by the commands a user types: the page finds by itself
what was wrong."""

from __future__ import annotations

import html
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run
from perfctl.orchestrator.report.numbers import time
from tests.cli.conftest import Perfctl

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mnist_v100_study"
BATCHES = (16, 32, 64, 128, 256)
OUTPUTS = 64 * 24 * 24


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store, with the page beside it."""
    folder = tmp_path_factory.mktemp("study")
    store, out = folder / "study.db", folder / "study.html"
    for arguments in (
        ["ingest", str(EXAMPLE), "--store", str(store)],
        ["report", "--store", str(store), "--out", str(out)],
    ):
        assert run(arguments) == 0
    return store


@pytest.fixture(scope="module")
def page(study: Path) -> str:
    """The page's text, tags taken out."""
    out = study.with_suffix(".html")
    text = re.sub(r"<(script|style).*?</\1>", " ", out.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", text)))


def test_the_store_has_them_as_derived_counts_of_their_launch(
    perfctl: Perfctl, tmp_path: Path
) -> None:
    store = tmp_path / "study.db"
    assert perfctl(f"ingest {EXAMPLE} --store {store}").code == 0
    with closing(sqlite3.connect(store)) as connection:
        rows = connection.execute(
            "SELECT k.name, k.source, instruction, value, verified_error FROM derived_count AS d"
            " JOIN kernel AS k ON k.id = d.kernel_id WHERE k.run_id = 1 ORDER BY instruction"
        ).fetchall()
    outputs = 1000 * OUTPUTS
    kernel = "volta_scudnn_128x64_relu_xregs_large_nn_v1"
    assert [row[:4] for row in rows] == [
        (kernel, "derived", "FFMA", outputs * 32 * 9),
        (kernel, "derived", "FMUL", outputs),
    ]  # FADD was counted
    assert all(0 <= error < 0.02 for *_, error in rows)


def parameters(channels: int, kernel: int) -> dict[str, int]:
    """Weights and biases of each layer; the pool halves the second convolution's output."""
    pooled = (26 - kernel + 1) // 2
    found = {
        "conv1": 32 * 9 + 32,
        "conv2": 32 * channels * kernel**2 + channels,
        "fc1": channels * pooled**2 * 128 + 128,
        "fc2": 128 * 10 + 10,
    }
    return found | {"all": sum(found.values())}


def spaced(number: int) -> str:
    return f"{number:,}"


def test_both_shapes_stand_side_by_side(page: str) -> None:
    table = page.partition("Variants side by side, batch 64")[2].partition("CPU-timer times")[0]
    first, second = parameters(64, 3), parameters(128, 5)
    assert (first["all"], second["all"]) == (1_199_882, 2_086_730)  # as published
    for layer, name in (
        ("conv2", "conv2 parameters"),
        ("fc1", "fc1 parameters"),
        ("all", "all parameters"),
    ):
        assert f"{name}{spaced(first[layer])}{spaced(second[layer])} " in table
    work = [
        64 * channels * width**2 * 32 * kernel**2
        for channels, width, kernel in ((64, 24, 3), (128, 22, 5))
    ]
    assert f"conv2 forward, MAC{spaced(work[0])}{spaced(work[1])} " in table
    assert "last accuracy99.20%99.33%" in table
    assert "conv2 forward, time0.1746 ms0.1304 ms" in table
    assert "time / time of the first variant1.00refused" in table


def test_times_stand_beside_the_least_that_the_peak_of_the_fastest_v100_allows(page: str) -> None:
    table = page.partition("CPU-timer times, and the minimum at peak FLOP/s")[2].partition(
        "Ledger"
    )[0]
    # multiprocessors x FP32 units x 2 FLOP x boost clock of the V100 SXM2
    peak = 80 * 64 * 2 * 1530e6
    for batch in (16, 256, 1000):
        least = 2 * batch * OUTPUTS * 288 / peak
        assert time(least * 1e9) in table
    assert "assumed to be a V100 SXM2, the fastest candidate: 15.7 TFLOP/s" in table


def test_the_chart_shows_counts_that_stay_while_paper_grows(page: str) -> None:
    assert f"Executed: constant; estimated: {BATCHES[-1] // BATCHES[0]}-fold" in page


def test_each_finding_stands_once_and_begins_with_a_short_sentence(study: Path) -> None:
    text = study.with_suffix(".html").read_text(encoding="utf-8")
    listed = re.search(r'<section class="findings".*?</section>', text, flags=re.DOTALL)
    assert listed is not None
    items = re.findall(
        '<li>(?:<details><summary>|<span>)(.*?)</.*? <span class="proof">.*?<a '
        'href="#([^"]*)">[^<]*</a></span>',
        listed[0],
        flags=re.DOTALL,
    )
    firsts = [html.unescape(item) for item, _ in items]
    assert len(firsts) == len(set(firsts)) == 7  # six errors and a warning
    assert max(map(len, firsts)) <= 140
    assert all(f'id="{link}"' in text for _, link in items)
    # a trail repeats what was found
    shown = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert all(
        shown.count(html.escape(first, quote=False).replace("'", "&#39;")) <= 1 for first in firsts
    )


def test_the_ledger_of_the_terminal_has_the_same_findings_and_both_tables(
    study: Path, perfctl: Perfctl
) -> None:
    said = perfctl(f"ledger --store {study}").out
    flat = re.sub(r"\s+", " ", said)
    assert "6 Implausible timing:" in flat
    assert "Variants side by side, batch 64" in said
    assert "CPU-timer times" in said


def test_memory_and_accuracy_are_in_the_store_and_rounded_figures_are_no_bytes(study: Path) -> None:
    with closing(sqlite3.connect(study)) as connection:
        memory = connection.execute(
            "SELECT moment, quantity, bytes >> 20 FROM memory ORDER BY 1 DESC, 2"
        ).fetchall()
        accuracy = connection.execute(
            "SELECT accuracy FROM step WHERE phase = 'test' ORDER BY 1"
        ).fetchall()
        rounded = dict(
            connection.execute("SELECT name, value FROM summary WHERE name LIKE 'memory %'")
        )
        epochs = connection.execute("SELECT value FROM summary WHERE name = 'epochs'").fetchall()
        origins = connection.execute("SELECT DISTINCT origin FROM run").fetchall()
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


def test_the_page_says_that_nothing_of_it_was_measured_here(page: str) -> None:
    assert "The numbers below are transcribed" in page
    assert "published figures of a study on a V100, typed off; not measured by perfctl" in page


def test_every_batch_size_is_a_run_of_its_own(page: str) -> None:
    assert f"batch{' '.join(map(str, BATCHES))}" in page


def test_no_file_passes_for_the_output_of_a_profiler() -> None:
    for path in EXAMPLE.glob("b*/ncu.csv"):
        assert path.read_text().startswith("==TRANSCRIPTION==")
    assert "transcription of published figures" in (EXAMPLE / "README.md").read_text()


def test_replaying_the_study_finds_the_same_and_leaves_it_a_transcription(
    perfctl: Perfctl,
) -> None:
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
