"""perfctl.ingest as Python users call it: a record comes back, nothing is printed, errors
name fields."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import perfctl
from perfctl.orchestrator.commands.ingest import build_ingest_lines
from perfctl.orchestrator.errors import PartlyDone, UsageError
from perfctl.orchestrator.ingest import reports as ingest_reports
from perfctl.orchestrator.ingest.context import UserHints
from perfctl.orchestrator.ingest.derive import derive_counts_of_all_runs
from perfctl.orchestrator.ingest.find import (
    describe_batches_from_names,
    find_batches_in_names,
    find_single_batch_in_name,
    hash_file_or_folder,
)
from perfctl.orchestrator.ingest.ingest import ingest_paths
from tests.cli.test_ingest import NCU
from tests.make.stored import execute, rows

DERIVED = "DELETE FROM derived_value", "DELETE FROM derived_rule"


@pytest.fixture(scope="module")
def trace(recorded):
    return recorded / "torch" / "b16" / "report.pt.trace.json.gz"


def test_a_report_goes_into_a_store_that_is_made_with_the_command_line_that_is_given(
    trace, tmp_path
):
    store = tmp_path / "perfctl.db"
    hints = UserHints(batch=16, workload="mnist_cnn")
    done = ingest_paths(trace, store, hints=hints, command_line="perfctl ingest trace")
    ((path, written),) = done.taken
    assert (done.store, path, written.new, done.failed) == (store, trace, True, ())
    (run,) = perfctl.runs(store)
    assert (run.id, run.workload, run.batch_size) == (written.run_id, "mnist_cnn", 16)
    done.check()
    assert rows(store, "SELECT kind, command FROM sweep") == [("ingest", "perfctl ingest trace")]
    again = perfctl.ingest([trace], store)
    assert [(one.run_id, one.new) for _, one in again.taken] == [(written.run_id, False)]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param("N", "invalid value 'N'", id="without a value"),
        pytest.param("N=", "invalid value 'N='", id="with an empty value"),
        pytest.param("2N=3", "invalid value '2N=3'", id="with a name that no formula can use"),
        pytest.param("batch=64", "cannot set the batch size", id="that has an option of its own"),
    ],
)
def test_a_parameter_is_refused(given, problem, trace, tmp_path):
    with pytest.raises(UsageError, match=f"{problem}.*|`parameters` {problem}"):
        perfctl.ingest(trace, tmp_path / "perfctl.db", parameters=[given])


def test_a_run_has_the_parameters_that_the_user_gave_and_its_batch_size(trace, tmp_path):
    store = tmp_path / "perfctl.db"
    perfctl.ingest(trace, store, batch=16, parameters=["N=1024", "precision=a=b"])
    stored = rows(store, "SELECT name, value, number FROM parameter ORDER BY rowid")
    assert stored == [("batch", "16", 16), ("N", "1024", 1024), ("precision", "a=b", None)]


def test_formulas_are_worked_out_for_each_run_also_of_a_report_that_is_there_already(
    trace, heard, tmp_path
):
    store = tmp_path / "perfctl.db"
    perfctl.ingest(trace, store, batch=16, parameters=["N=1024"])
    hints = UserHints(expect=["nosuch: flops=2*N*batch, bytes=4*N"])
    done = ingest_paths(trace, store, hints=hints, listener=heard)
    assert "".join(build_ingest_lines(done).lines) == (
        f"{trace}: already in the database as run 1; perfctl replaced its formulas\n"
    )
    stored = "SELECT pattern, flops, bytes, formula, source FROM expectation"
    text = "flops=2*N*batch, bytes=4*N"
    assert rows(store, stored) == [("nosuch", 2 * 1024 * 16, 4 * 1024, text, "option")]
    assert any("run 1: no kernel or range matches 'nosuch'" in line for line in heard.lines)
    ranges = UserHints(expect=["perfctl:step:0: flops=1"])
    ingest_paths(trace, store, hints=ranges, listener=heard)
    assert any("'perfctl:step:0' matches ranges without kernels" in line for line in heard.lines)
    ingest_paths(trace, store, hints=hints, listener=heard)
    with pytest.raises(UsageError, match=r"no parameter 'L' .*known: batch, N"):
        perfctl.ingest(trace, store, expect=["x: flops=L"])
    with pytest.raises(UsageError, match="'x' has several formulas"):
        perfctl.ingest(trace, store, expect=["x: flops=1", "x: flops=2"])
    perfctl.ingest(trace, store, parameters=["N=2"])
    (values,) = rows(store, stored)
    assert values[1:3] == (2 * 2 * 16, 4 * 2), "the formula with the new parameter"


def test_what_cannot_be_read_is_in_the_record_and_the_listener_hears_it(trace, heard, tmp_path):
    done = ingest_paths([trace, tmp_path / "gone.csv"], tmp_path / "perfctl.db", listener=heard)
    said = f"{tmp_path / 'gone.csv'}: file not found"
    assert (len(done.taken), done.failed, heard.total) == (1, (said,), 2)
    listed = f"batch size 16, from the name: {trace.name}"
    read = [listed, f"reading {trace.name}", "end"]
    assert heard.lines == [*read, "reading gone.csv", f"failed: {said}", "end"]
    with pytest.raises(PartlyDone, match="1 of 2 could not be read"):
        done.check()


def test_two_calls_within_a_second_are_two_sweeps(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "perfctl.orchestrator.store.write.format_utc_now", lambda: "2026-11-20T10:00:00Z"
    )
    store = tmp_path / "perfctl.db"
    perfctl.ingest(trace, store)
    perfctl.ingest(trace.parent.parent / "b32" / trace.name, store)
    assert rows(store, "SELECT count(DISTINCT sweep_id) FROM run") == [(2,)]


def test_derived_counts_and_families_are_derived_again_from_the_rows(tmp_path):
    store = tmp_path / "perfctl.db"
    folder = tmp_path / "made"
    script = Path(__file__).parents[2] / "scripts" / "speed" / "make_sweeps.py"
    subprocess.run([sys.executable, script, "1", "1", "2", "30", folder], check=True)
    perfctl.ingest(folder, store)
    tables = (
        "SELECT kernel_id, instruction, value, rule FROM derived_count ORDER BY 1, 2",
        "SELECT name, family FROM kernel_name ORDER BY id",
        "SELECT launch, source FROM kernel ORDER BY run_id, launch",
    )
    before = [rows(store, table) for table in tables]
    execute(store, "UPDATE kernel_name SET family = 'none'", *DERIVED)
    assert derive_counts_of_all_runs(store) == 1
    assert [rows(store, table) for table in tables] == before


def test_what_an_ended_ingest_did_not_derive_is_derived_by_the_next_for_every_rank(tmp_path):
    store = tmp_path / "perfctl.db"
    folder = Path(__file__).parents[1] / "data" / "h100" / "nsys" / "b16"
    perfctl.ingest(folder, store)
    perfctl.ingest(folder, store, again=True)
    count = "SELECT run_id, count(*) FROM kernel WHERE source = 'derived' GROUP BY run_id"
    before = rows(store, count)
    assert len(before) == 2, "a run and, as the database says from now on, its second rank"
    execute(
        store,
        "UPDATE run SET world_size = 2, rank = 2 - id, sweep_id = 1, origin = 'measured'",
        "UPDATE kernel_launch SET source = NULL WHERE source = 'derived'",
        "UPDATE kernel_name SET family = NULL",
        *DERIVED,
    )
    perfctl.ingest(folder, store)
    assert rows(store, count) == before


# Batch sizes that reports' names say: which, when somebody is asked, and what is listed before


def sizes(*names, pattern=None):
    files = [Path("runs", name) for name in names]
    chosen = find_batches_in_names(files, pattern)
    return [chosen.get(file) for file in files]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("ncu_b16.csv", 16),
        ("forward_batch_size_128.json", 128),
        ("trace bs=32.json", 32),
        ("batch=8/r.csv", 8),
        ("batchsize-64.csv", 64),
        ("BS_4.csv", 4),
        ("resnet_5_batch.csv", 5),
        ("b2/report.pt.trace.json.gz", 2),
        ("lib64.csv", None),
        ("gemm_bf16.csv", None),
        ("b200_trace.json", None),
        ("b0.csv", None),
        ("batch.csv", None),
        ("ncu-bs128.csv", 128),
        ("b32/report.csv", 32),
        ("conv2d_result.csv", None),
        ("web2.csv", None),
        ("b200_bf16_b1_ctx32k.ncu.csv", 1),
    ],
)
def test_a_name_says_its_batch_size_in_the_usual_forms(name, size):
    assert sizes(name) == [size]
    assert find_single_batch_in_name(Path("runs", name)) == size


def test_the_name_of_a_gpu_is_a_batch_size_only_beside_other_batch_sizes():
    assert sizes("ncu_b100.csv", "ncu_b200.csv") == [None, None]
    assert sizes("ncu_b50.csv", "ncu_b100.csv", "ncu_b200.csv", "nsys_b200.csv") == [
        50,
        100,
        200,
        None,
    ]


def test_a_pattern_of_ones_own_takes_the_place_of_the_usual_forms():
    assert sizes("run16_b7.csv", "run32_b7.csv", pattern=r"run(\d+)") == [16, 32]
    assert sizes("n=12/x.csv", pattern=r"n=(?P<batch>\d+)") == [12], (
        "the folder's name, where the file's has none"
    )
    assert sizes("a16.csv", "x.csv", pattern=r"(\d+)") == [16, None]


@pytest.mark.parametrize(
    ("pattern", "said"), [("b(", "invalid regular expression"), (r"b\d+", "has no group")]
)
def test_a_pattern_that_is_none_is_refused(pattern, said):
    with pytest.raises(UsageError, match=said):
        sizes("b16.csv", pattern=pattern)


def test_of_several_numbers_in_a_name_somebody_decides_and_nobody_guesses():
    path = Path("b16_vs_b32.csv")
    assert find_single_batch_in_name(path) is None
    with pytest.raises(
        UsageError,
        match=r"b16_vs_b32.csv: the name may contain the batch size 16 or 32.*`batch_pattern`",
    ):
        find_batches_in_names([path])
    with pytest.raises(UsageError, match="the name may contain the batch size 1 or 16"):
        sizes("run1_b16.csv", "run2_b16.csv", pattern=r"(\d+)")
    asked: list[tuple[Path, list[int]]] = []

    def ask(file, among):
        asked.append((file, list(among)))
        return among[-1]

    assert find_batches_in_names([path, Path("b8.csv"), Path("b4_b4.csv")], ask=ask) == {
        path: 32,
        Path("b8.csv"): 8,
        Path("b4_b4.csv"): 4,
    }
    assert asked == [(path, [16, 32])], "one number twice is one"


def test_each_file_is_listed_and_many_are_counted():
    few = {Path(f"r_b{size}.csv"): size for size in (16, 32)}
    assert describe_batches_from_names(few) == [
        f"batch size {size}, from the name: r_b{size}.csv" for size in (16, 32)
    ]
    many = {Path(f"r{number}_b{8 << number % 2}.csv"): 8 << number % 2 for number in range(20)}
    lines = describe_batches_from_names(many)
    assert (len(lines), lines[-1]) == (13, "and 8 more files, batch size (files): 8 (4), 16 (4)")


def test_a_pattern_for_paths_takes_each_file_in_with_the_batch_size_of_its_name(tmp_path):
    for size in (16, 128):
        (tmp_path / f"forward_batch_size_{size}.csv").write_text(NCU.format(count=size))
    (tmp_path / "other_b1_b2.csv").write_text(NCU.format(count=3))
    done = perfctl.ingest(tmp_path / "forward_*.csv", tmp_path / "s.db")
    assert [
        (run.batch_size, path.name)
        for run, (path, _) in zip(perfctl.runs(tmp_path / "s.db"), done.taken, strict=True)
    ] == [
        (128, "forward_batch_size_128.csv"),
        (16, "forward_batch_size_16.csv"),
    ]
    with pytest.raises(UsageError, match=r"other_b1_b2\.csv"):
        perfctl.ingest(tmp_path, tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists(), "nothing was read"
    said = UserHints(batch=9)
    assert len(ingest_paths(tmp_path / "other_b1_b2.csv", tmp_path / "s.db", hints=said).taken) == 1


# What is read besides plain files: several runs from one file, archives, and reports that give


SUM = "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n100.0,{0},2,{0}.0,cudaFree\n"


def log(*totals):
    reports = [
        f"Processing [r{total}.sqlite] with [cuda_api_sum]...\n\n{SUM.format(total)}\n"
        for total in totals
    ]
    return "epoch 1\n".join(reports)


def test_a_log_of_several_runs_goes_in_once_run_by_run(tmp_path):
    store, path = tmp_path / "s.db", tmp_path / "job.log"
    path.write_text(log(100, 200, 300))
    first = perfctl.ingest(path, store)
    assert [(written.new, written.operations) for _, written in first.taken] == [(True, 1)] * 3
    assert rows(store, "SELECT cpu_ns FROM operation ORDER BY run_id") == [(100,), (200,), (300,)]
    (digest,) = {sha.partition("#")[0] for (sha,) in rows(store, "SELECT artifact_sha256 FROM run")}
    assert rows(store, "SELECT artifact_sha256 FROM run ORDER BY id") == [
        (f"{digest}#{number}",) for number in (1, 2, 3)
    ]
    again = perfctl.ingest(path, store)
    assert [(one.run_id, one.new) for _, one in again.taken] == [
        (one.run_id, False) for _, one in first.taken
    ]
    path.write_text(log(100, 200, 300, 400))
    assert [written.new for _, written in perfctl.ingest(path, store).taken] == [True] * 4, (
        "another file"
    )


def test_what_an_ingest_that_was_stopped_left_out_of_a_log_is_taken_by_the_next(tmp_path):
    store, path = tmp_path / "s.db", tmp_path / "job.log"
    path.write_text(log(100, 200, 300))
    perfctl.ingest(path, store)
    execute(store, "DELETE FROM operation WHERE run_id = 3", "DELETE FROM run WHERE id = 3")
    assert [written.new for _, written in perfctl.ingest(path, store).taken] == [False, False, True]


def test_a_broken_run_in_a_log_is_a_failed_run_and_one_that_comes_twice_is_left_out(
    heard, tmp_path
):
    store, path = tmp_path / "s.db", tmp_path / "job.log"
    path.write_text(
        f"{log(100)}{log(200)}{log(100)}Processing [c.sqlite] with [osrt_sum]...\nERROR: no room\n"
    )
    ingest_paths(path, store, listener=heard)
    found = rows(store, "SELECT status, reason FROM run ORDER BY id")
    assert [status for status, _ in found] == ["ok", "ok", "failed"]
    assert "nsys stats stopped with an error" in found[2][1]
    assert any(line.endswith("run 3 repeats run 1 and was skipped") for line in heard.lines)


def test_a_report_that_is_recognised_and_gives_no_rows_is_a_warning_and_a_partial_run(
    heard, tmp_path
):
    header, row, _ = SUM.split("\n")
    swapped = ",".join(reversed(header.split(",")))
    (tmp_path / "swapped.csv").write_text(f"{swapped}\n{row.format(100)}\n")
    (tmp_path / "good.csv").write_text(NCU.format(count=1))
    done = ingest_paths(
        [tmp_path / "good.csv", tmp_path / "swapped.csv"], tmp_path / "s.db", listener=heard
    )
    assert [path.name for path in done.empty] == ["swapped.csv"]
    ((status, reason),) = rows(
        tmp_path / "s.db", "SELECT status, reason FROM run WHERE artifact = 'swapped.csv'"
    )
    assert (status, reason.partition(":")[0]) == ("partial", "no rows were read")
    assert any("swapped.csv: no rows were read: " in line for line in heard.lines)
    with pytest.raises(PartlyDone, match="1 of 2 gave no rows"):
        done.check()


def test_a_file_that_grows_while_it_is_read_gives_a_partial_run(tmp_path, monkeypatch):
    path, store = tmp_path / "grows.csv", tmp_path / "s.db"
    path.write_text(NCU.format(count=1))

    def hash_and_append(file):
        digest = hash_file_or_folder(file)
        with file.open("a") as opened:
            opened.write("\n")
        return digest

    monkeypatch.setattr(ingest_reports, "hash_file_or_folder", hash_and_append)
    ingest_paths(path, store)
    ((status, reason),) = rows(store, "SELECT status, reason FROM run")
    assert (status, reason[:16]) == ("partial", "the file changed")
    monkeypatch.undo()
    ingest_paths(path, store)
    assert rows(store, "SELECT status FROM run") == [("partial",), ("ok",)]


def test_two_broken_reports_of_one_batch_size_are_both_kept(tmp_path):
    whole = NCU.format(count=1)
    for name, value in (("a_b16.csv", 1), ("c_b16.csv", 2)):
        (tmp_path / name).write_text(NCU.format(count=value) + whole.splitlines()[1][:30])
    perfctl.ingest(tmp_path, tmp_path / "s.db")
    found = rows(tmp_path / "s.db", "SELECT batch_size, status, artifact FROM run ORDER BY id")
    assert found == [(16, "partial", "a_b16.csv"), (16, "partial", "c_b16.csv")]
