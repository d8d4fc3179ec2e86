"""The published study, ingested and reported by the commands a user types: the page finds by itself what was wrong."""

from __future__ import annotations

import html
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.cli.main import run

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mnist_v100_study"
BATCHES = (16, 32, 64, 128, 256)
OUTPUTS = 64 * 24 * 24


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page's text, tags taken out."""
    folder = tmp_path_factory.mktemp("study")
    store, out = folder / "study.db", folder / "study.html"
    for arguments in (
        ["ingest", str(EXAMPLE), "--store", str(store)],
        ["report", "--store", str(store), "--out", str(out)],
    ):
        assert run(arguments) == 0
    text = re.sub(r"<(script|style).*?</\1>", " ", out.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", text)))


def test_the_count_does_not_follow_the_batch(page: str) -> None:
    assert "The count does not follow the batch size" in page
    assert f"executed {1000 * OUTPUTS:,} FADD at batch {BATCHES[0]} to {BATCHES[-1]}" in page


def test_it_is_one_add_per_output_of_a_batch_of_1000(page: str) -> None:
    assert f"one add per output of conv2 for a batch of 1,000 (1,000 x {OUTPUTS:,})" in page


def test_it_omits_the_multiply_adds(page: str) -> None:
    assert "it omits the multiply-adds, which are FFMA instructions" in page


def test_the_missing_multiply_adds_are_derived_with_their_arithmetic(page: str) -> None:
    tiles = f"ceil({1000 * 24 * 24:,} outputs / 128) x ceil(64 channels / 64) tiles x 128 x 64 x {32 * 9}"
    assert f"Derived for conv2 at a batch of 1,000: {tiles} = {1000 * OUTPUTS * 32 * 9:,} FFMA" in page
    assert f"and {1000 * OUTPUTS:,} FADD, as counted" in page


def test_the_table_of_derived_counts_has_them_at_every_batch_size(page: str) -> None:
    table = page.partition("Derived counts, by the rule of each kernel")[2].partition("Kernels by name")[0]
    assert table.count(f"= {1000 * OUTPUTS * 32 * 9:,} FFMA") == len(BATCHES)
    assert "launches on an A100" in table


def test_the_store_has_them_as_derived_counts_of_their_launch(perfctl: Callable[..., Any], tmp_path: Path) -> None:
    store = tmp_path / "study.db"
    assert perfctl("ingest", EXAMPLE, "--store", store).code == 0
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


def test_the_times_do_not_follow_the_batch_either(page: str) -> None:
    assert "The times of conv2 forward do not follow the batch either" in page
    assert "saw the launch, not the kernel" in page


def test_the_hand_estimate_used_11x11_outputs_and_slipped_in_the_product(page: str) -> None:
    assert f"{64 * 18432 * 120:,} comes from two slips: input 13x13 instead of 26x26, and 11x11 taken as 120." in page
    assert f"{18432 + 64 + 64 * 64 * 121:,} comes from two slips" in page
    assert f"Right is {64 * OUTPUTS * 288:,} MAC = {2 * 64 * OUTPUTS * 288:,} FLOP" in page


def test_the_page_says_that_nothing_of_it_was_measured_here(page: str) -> None:
    assert " transcribed " in page
    assert "published figures of a study on a V100, typed off; not measured by perfctl" in page


def test_every_batch_size_is_a_run_of_its_own(page: str) -> None:
    assert f"batch{' '.join(map(str, BATCHES))}" in page


def test_no_file_passes_for_the_output_of_a_profiler() -> None:
    for path in EXAMPLE.glob("b*/ncu.csv"):
        assert path.read_text().startswith("==TRANSCRIPTION==")
    assert "transcription of published figures" in (EXAMPLE / "README.md").read_text()


def test_replaying_the_study_finds_the_same_and_leaves_it_a_transcription(perfctl: Callable[..., Any]) -> None:
    assert perfctl("replay", EXAMPLE, "--store", "replayed.db", "--out", "runs").code == 0
    found = json.loads(perfctl("ledger", "--store", "replayed.db", "--json").out)
    assert [item["rule"] for item in found["sweep"]] == [
        "wrong window", "time does not follow", "FADD alone", "hand estimate", "hand estimate",
    ]  # fmt: skip
    listed = json.loads(perfctl("runs", "--store", "replayed.db", "--json").out)
    assert {run["origin"] for run in (listed["runs"] if isinstance(listed, dict) else listed)} == {"transcribed"}
