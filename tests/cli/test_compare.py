"""perfctl compare, from recorded sweeps of the CPU whose steps are stretched by known factors."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import sql

NOISE = (1.0, 1.01, 0.99, 1.005)


def step(said):
    """The row of the whole step."""
    (pair,) = said.json["pairs"]
    (row,) = (row for row in pair["rows"] if (row["quantity"], row["item"]) == ("time", "step"))
    return dict(row)


def test_a_step_that_became_slower_is_a_regression_with_exit_code_3_also_in_markdown_on_stdout(
    perfctl, repeated
):
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
    summary = perfctl(f"compare {a} {b} --markdown -")
    assert summary.code == 3
    assert summary.out.startswith("### perfctl compare: b against a\n")
    assert "step is 30.0% slower at batch 16" in summary.out
    assert "| step |" in summary.out
    assert perfctl(f"compare {a} {b} --gate 50%").code == 0
    back = perfctl(f"compare {b} {a} --json").ok()
    assert step(back)["result"] == "faster"
    assert back.json["improvements"] >= 1


def test_other_precision_is_shown_and_judged_by_anyway_alone(perfctl, repeated):
    a, b = repeated("a", NOISE), repeated("b", [1.3 * factor for factor in NOISE], tf32_conv="on")
    said = perfctl(f"compare {a} {b}").ends(1, "tf32_conv: off in A, on in B", "--anyway")
    assert [line[:2] for line in said.out.splitlines()] == ["A ", "B "], "the sides and no figures"
    anyway = perfctl(f"compare {a} {b} --anyway --out c.html --markdown c.md")
    assert anyway.code == 3
    for text in (anyway.out, Path("c.html").read_text(), Path("c.md").read_text()):
        assert "Compared anyway" in " ".join(text.split()).replace("\\", "")


def test_sides_are_named_by_store_sweep_or_run(perfctl, recorded):
    perfctl("replay", recorded / "torch")
    (row, *_) = perfctl("runs --json").json
    ((name,),) = sql("SELECT name FROM sweep")
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
    perfctl, recorded, tmp_path
):
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


def test_a_batch_size_that_failed_in_b_is_exit_code_1(perfctl, recorded, replayed):
    broken = Path("broken")
    shutil.copytree(recorded / "torch", broken)
    (broken / "b32" / "report.pt.trace.json.gz").unlink()
    assert perfctl(f"replay {broken} --store b.db --out two").code == 4
    perfctl(f"compare {replayed} b.db").ends(1, "failed in B: mnist_cnn, training, fp32, batch 32")


def test_the_sweep_table_has_the_step_of_compare_and_the_interval_over_all_repeats(
    perfctl, repeated
):
    assert perfctl("ingest", repeated("a", NOISE)).code == 0
    assert len(perfctl("runs --json").json) == 4
    assert perfctl("report").code == 0
    page = Path("perfctl-report.html").read_text()
    assert "over repeats" in page
    assert "4 runs, from" in page
    assert "steps in 4 runs" in page


def test_without_repeats_the_report_has_no_column_for_them(perfctl, replayed):
    assert perfctl(f"report --store {replayed}").code == 0
    assert "over repeats" not in Path("perfctl-report.html").read_text()
