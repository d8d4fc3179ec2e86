"""perfctl compare, from recorded sweeps of the CPU whose steps are stretched by known factors."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Perfctl

NOISE = (1.0, 1.01, 0.99, 1.005)
Repeated = Callable[..., Path]
"""The fixture ``repeated``."""


def step(said: Any) -> dict[str, Any]:
    """The row of the whole step."""
    (pair,) = said.json["pairs"]
    (row,) = (row for row in pair["rows"] if (row["quantity"], row["item"]) == ("time", "step"))
    return dict(row)


def test_a_step_that_became_slower_is_a_regression_with_exit_code_3(
    perfctl: Perfctl, repeated: Repeated
) -> None:
    a, b = repeated("a", NOISE), repeated("b", [1.3 * factor for factor in NOISE])
    said = perfctl(f"compare {a} {b} --json")
    assert said.code == 3
    row = step(said)
    assert row["result"] == "slower"
    assert row["change"] == pytest.approx(0.3, abs=1e-6)
    assert row["interval"][0] < 0.3 < row["interval"][1]
    assert row["a"]["runs"] == 4
    assert re.search(
        r"\d regressions? over 5%(; largest)?: step at batch 16, \+30\.0% \(slower\)", said.err
    )
    assert perfctl(f"compare {a} {b} --gate 50%").code == 0
    back = perfctl(f"compare {b} {a} --json")
    assert back.code == 0
    assert step(back)["result"] == "faster"
    assert back.json["improvements"] >= 1


def test_a_comparison_without_a_tested_time_warns_and_is_no_failure(
    perfctl: Perfctl, recorded: Path
) -> None:
    said = perfctl(f"compare {recorded / 'torch'} {recorded / 'torch'}")
    assert (said.code, "--repeat 5" in said.err) == (0, True)


def test_an_upgrade_is_compared_and_named_as_the_likely_cause(
    perfctl: Perfctl, repeated: Repeated
) -> None:
    a, b = repeated("a", NOISE), repeated("b", [1.3 * factor for factor in NOISE], torch="2.99.0")
    said = perfctl(f"compare {a} {b} --json")
    assert said.code == 3
    assert said.json["findings"][0].startswith("The step is 30.0% slower at batch 16: ")
    assert any(
        "torch (2.15.0+cu132 in A, 2.99.0 in B) is the only version that changed." in text
        for text in said.json["findings"]
    )
    (pair,) = said.json["pairs"]
    assert (
        next(one["likelihood"] for one in pair["differences"] if one["fact"] == "torch") == "likely"
    )


def test_other_precision_is_shown_and_judged_by_anyway_alone(
    perfctl: Perfctl, repeated: Repeated
) -> None:
    a, b = repeated("a", NOISE), repeated("b", [1.3 * factor for factor in NOISE], tf32_conv="on")
    said = perfctl(f"compare {a} {b}")
    assert said.code == 1
    assert "tf32_conv: off in A, on in B" in said.err
    assert "--anyway" in said.err
    assert [line[:2] for line in said.out.splitlines()] == ["A ", "B "], "the sides and no figures"
    anyway = perfctl(f"compare {a} {b} --anyway --out c.html --markdown c.md")
    assert anyway.code == 3
    for text in (anyway.out, Path("c.html").read_text(), Path("c.md").read_text()):
        assert "Compared anyway" in " ".join(text.split()).replace("\\", "")


def test_two_profilers_are_not_comparable(perfctl: Perfctl, recorded: Path) -> None:
    said = perfctl(f"compare {recorded / 'torch'} {recorded / 'nsys'}")
    assert said.code == 1
    assert "profiler: torch in A, nsys in B" in said.err
    anyway = perfctl(f"compare {recorded / 'torch'} {recorded / 'nsys'} --anyway --json")
    assert anyway.code == 0, "times of two profilers are shown and never judged"
    rows = [
        row for pair in anyway.json["pairs"] for row in pair["rows"] if row["quantity"] == "time"
    ]
    assert rows
    assert {row["result"] for row in rows if row["a"] and row["b"]} == {"not judged"}


def test_sides_are_named_by_store_sweep_or_run(perfctl: Perfctl, recorded: Path) -> None:
    perfctl("replay", recorded / "torch")
    (row, *_) = perfctl("runs --json").json
    with closing(sqlite3.connect("perfctl.db")) as store, store:
        ((name,),) = store.execute("SELECT name FROM sweep").fetchall()
    for one in ("perfctl.db", name, name[:10], "sweep:1", next(Path("perfctl-runs").iterdir())):
        said = perfctl(f"compare {one} perfctl.db --json")
        assert said.code == 0, (one, said.err)
        assert len(said.json["pairs"]) == 2
    said = perfctl(f"compare {row['id']} run:{row['id']} --json")
    assert [pair["batch_a"] for pair in said.json["pairs"]] == [16]
    assert said.json["a"]["label"] == "run 1"
    report = next(Path("perfctl-runs").glob("*/b16/report.*"))
    assert perfctl(f"compare {report} {report}").code == 0


def test_a_run_that_the_other_side_has_nothing_like_is_not_called_no_run(
    perfctl: Perfctl, recorded: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(recorded / "torch" / "b16", other)
    for name in ("workload.json", "run.json"):
        about = json.loads((other / name).read_text())
        (other / name).write_text(json.dumps(about | {"workload": "other"}))
    said = perfctl(f"compare {recorded / 'torch' / 'b16'} other")
    assert said.code == 1
    assert (
        "A  b16: 0 runs of 1, because the other side has no matching runs" in said.out.splitlines()
    )


def test_a_batch_size_that_failed_in_b_is_exit_code_1(
    perfctl: Perfctl, recorded: Path, replayed: Path
) -> None:
    broken = Path("broken")
    shutil.copytree(recorded / "torch", broken)
    (broken / "b32" / "report.pt.trace.json.gz").unlink()
    assert perfctl(f"replay {broken} --store b.db --out two").code == 4
    said = perfctl(f"compare {replayed} b.db")
    assert said.code == 1
    assert "failed in B: mnist_cnn, training, fp32, batch 32" in said.err


def test_the_markdown_summary_goes_to_stdout_alone(perfctl: Perfctl, repeated: Repeated) -> None:
    a, b = repeated("a", NOISE), repeated("b", [1.3 * factor for factor in NOISE])
    said = perfctl(f"compare {a} {b} --markdown -")
    assert said.code == 3
    assert said.out.startswith("### perfctl compare: b against a\n")
    assert "step is 30.0% slower at batch 16" in said.out
    assert "| step |" in said.out


def test_the_report_takes_the_newest_repeat_and_shows_the_interval_over_all(
    perfctl: Perfctl, repeated: Repeated
) -> None:
    assert perfctl("ingest", repeated("a", NOISE)).code == 0
    assert len(perfctl("runs --json").json) == 4
    assert perfctl("report").code == 0
    page = Path("perfctl-report.html").read_text()
    assert "over repeats" in page
    assert "4 runs, from" in page
    assert "of the newest of 4 runs" in page


def test_without_repeats_the_report_has_no_column_for_them(
    perfctl: Perfctl, replayed: Path
) -> None:
    assert perfctl(f"report --store {replayed}").code == 0
    assert "over repeats" not in Path("perfctl-report.html").read_text()
