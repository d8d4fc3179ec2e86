from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.cli.conftest import Perfctl

NCU = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Section '
    'Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","1","app","host","gemm","1","7","Command line profiler metrics",'
    '"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum","inst","{count}"\n'
)


def told(said: Any) -> list[str]:
    """The lines of stderr, without those that a slow machine shows of how far it is."""
    return [line for line in said.err.splitlines() if not re.match(r"\d+ of \d+: ", line)]


def count(table: str) -> int:
    with closing(sqlite3.connect("perfctl.db")) as store, store:
        (number,) = store.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(number)


def test_what_the_file_cannot_say_is_told_and_marked_as_told(perfctl: Perfctl) -> None:
    Path("r.csv").write_text(NCU.format(count=5))
    said = perfctl("ingest r.csv --batch 64 --workload mnist_cnn --device-name 'Tesla V100'")
    assert said.code == 0
    (row,) = perfctl("runs --json").json
    assert (row["batch_size"], row["workload"], row["device_name"], row["origin"]) == (
        64,
        "mnist_cnn",
        "Tesla V100",
        "ingested",
    )
    assert count("diagnostic WHERE text LIKE '%set by the user%'") == 3


def test_one_bad_file_does_not_stop_the_others_and_the_exit_code_says_so(perfctl: Perfctl) -> None:
    Path("good.csv").write_text(NCU.format(count=1))
    Path("bad.csv").write_text("no report at all\n")
    Path("empty.csv").touch()
    Path("pointer.sqlite").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    )
    said = perfctl("ingest bad.csv good.csv empty.csv pointer.sqlite missing.csv")
    assert said.code == 4
    lines = told(said)
    assert len(lines) == 5, "one line for each bad file, one for the sum"
    for name in ("bad.csv", "empty.csv", "pointer.sqlite", "missing.csv"):
        assert sum(name in line for line in lines) == 1
    assert "git lfs pull" in said.err
    assert count("run") == 1


def test_when_nothing_could_be_read_the_exit_code_is_1_and_no_store_is_left(
    perfctl: Perfctl,
) -> None:
    Path("bad.csv").write_text("no report at all\n")
    assert perfctl("ingest bad.csv").code == 1
    assert [path.name for path in Path().iterdir()] == ["bad.csv"]


def test_a_file_that_is_not_there_and_a_folder_without_a_report_are_named(perfctl: Perfctl) -> None:
    Path("empty").mkdir()
    said = perfctl("ingest gone.csv empty")
    assert (said.code, said.out) == (1, "")
    assert said.err.splitlines() == [
        "perfctl: gone.csv: file not found",
        "perfctl: empty: no report was found in this folder. Name the report file itself",
        "perfctl: no reports ingested: 2 of 2 could not be read",
    ]


def test_a_folder_is_walked_and_batch_sizes_are_read_from_names(perfctl: Perfctl) -> None:
    for batch in (16, 64):
        folder = Path("study") / f"batch_{batch}"
        folder.mkdir(parents=True)
        (folder / "ncu.csv").write_text(NCU.format(count=batch))
    (Path("study") / "notes.txt").write_text("not a report")
    said = perfctl("ingest study --json")
    assert [row["kernels"] for row in said.json["runs"]] == [1, 1]
    assert [row["batch_size"] for row in perfctl("runs --json").json] == [16, 64]
    assert count("diagnostic WHERE text LIKE '%was read from the name%'") == 2


def test_the_six_reports_of_different_tools_go_in_together_with_right_counts(
    perfctl: Perfctl, reports: Path
) -> None:
    said = perfctl(
        f"ingest {reports / 'ncu/csv_long/leleucas_conv2d_result.csv'} {reports / 'ncu/csv_long/wangzy_roofline_output.csv'} {reports / 'nsys/sqlite/lowertri_la.sqlite'} {reports / 'ncu/rep/lashi_profile.ncu-rep'} {reports / 'dlprof/odema_pytorch/no_relu'} {reports / 'kineto/tracelens_h100_Falconsai_vit.json.gz'} --json",
    )
    assert said.code == 0
    counts = [
        (row["kernels"], row["counters"], row["ranges"], row["copies"]) for row in said.json["runs"]
    ]
    assert counts[0] == (1, 60, 0, 0)
    assert counts[1] == (11, 165, 0, 0)
    assert counts[2] == (1221, 0, 1276, 1226 + 1), "1,226 copies and one memset"
    assert counts[3][0] == 3
    assert counts[4][0] == 51
    assert counts[5][0] == 154
    assert perfctl("report").code == 0
    assert Path("perfctl-report.html").stat().st_size < 8_000_000


def test_what_is_left_of_reports_in_a_folder_is_refused_line_by_line(perfctl: Perfctl) -> None:
    folder = Path("profiles")
    folder.mkdir()
    (folder / "r.csv").write_text(NCU.format(count=5))
    (folder / "notes.txt").write_text("nothing\n")
    (folder / "pointer.sqlite").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )
    (folder / "empty.nsys-rep").touch()
    (folder / "noise.ncu-rep").write_bytes(bytes(range(256)))
    with closing(sqlite3.connect(folder / "whole.sqlite")) as database, database:
        database.execute("CREATE TABLE t AS SELECT hex(randomblob(9000)) AS x")
    data = (folder / "whole.sqlite").read_bytes()
    (folder / "cut.sqlite").write_bytes(data[: len(data) // 2])
    said = perfctl("ingest profiles")
    assert said.code == 4
    assert "4 of 5 could not be read" in said.err
    reasons = {
        "pointer": "git-LFS pointer",
        "empty": "the file is empty",
        "noise": "not a profiler report",
        "cut": "is truncated",
    }
    for name, reason in reasons.items():
        (line,) = [line for line in told(said) if f"/{name}." in line]
        assert reason in line
    assert "skipped 2 files that are not reports: notes.txt, whole.sqlite" in said.err
    assert count("run") == 1


def test_what_a_newer_format_holds_beyond_the_known_is_one_warning_line_and_kept_in_the_store(
    perfctl: Perfctl,
) -> None:
    newer = NCU.replace('"Stream",', '"Stream","Cluster Size",').replace('"7",', '"7","(2, 1, 1)",')
    Path("newer.csv").write_text(newer.format(count=1))
    said = perfctl("ingest newer.csv")
    assert said.code == 0
    (line,) = told(said)
    assert line == "warning: newer.csv: not understood and left out: columns Cluster Size"
    assert count("diagnostic WHERE severity = 'warning' AND text LIKE '%Cluster Size%'") == 1
    assert count("metric_value") == 1


def test_a_file_that_cannot_be_read_brings_one_line_even_with_a_secret_in_it(
    perfctl: Perfctl,
) -> None:
    Path("bad.csv").write_text("export HF_TOKEN=abcdefgh\nno report\n")
    assert len(told(perfctl("ingest bad.csv"))) == 2, "the file's line and the sum"


def test_a_folder_of_dlprof_json_is_one_run(perfctl: Perfctl) -> None:
    folder = Path("prof") / "b8"
    folder.mkdir(parents=True)
    columns = ["Iteration", "Op Name", "Kernel Name", "GPU Start Time (ns)", "GPU Duration (ns)"]
    row = dict(zip(columns, [1, "conv1", "gemm", 5, 7], strict=True))
    (folder / "dlprof_iteration.json").write_text(json.dumps([row]))
    ops = {"Op Name": "conv1", "Op Type": "conv2d", "No. Calls": 3, "Total CPU Time (ns)": 9}
    (folder / "dlprof_detailed.json").write_text(json.dumps([ops]))
    (row,) = perfctl("ingest prof --json").json["runs"]
    assert (row["kernels"], row["operations"]) == (1, 1)
