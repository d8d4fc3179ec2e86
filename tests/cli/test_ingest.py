import gzip
import json
import re
from pathlib import Path

from tests.cli.conftest import sql

NCU = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Section '
    'Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","1","app","host","gemm","1","7","Command line profiler metrics",'
    '"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum","inst","{count}"\n'
)


def told(said):
    """The lines of stderr, without those that a slow machine shows of how far it is."""
    return [line for line in said.err.splitlines() if not re.match(r"\d+ of \d+: ", line)]


def count(table):
    ((number,),) = sql(f"SELECT count(*) FROM {table}")
    return int(number)


def test_what_the_file_cannot_say_is_told_and_marked_as_told(perfctl):
    Path("r.csv").write_text(NCU.format(count=5))
    perfctl("ingest r.csv --batch 64 --workload mnist_cnn --device-name 'Tesla V100'").ok()
    (row,) = perfctl("runs --json").json
    assert (row["batch_size"], row["workload"], row["device_name"], row["origin"]) == (
        64,
        "mnist_cnn",
        "Tesla V100",
        "ingested",
    )
    assert count("diagnostic WHERE text LIKE '%set by the user%'") == 3


def test_when_nothing_could_be_read_the_exit_code_is_1_and_no_store_is_left(perfctl):
    Path("bad.csv").write_text("no report at all\n")
    assert perfctl("ingest bad.csv").code == 1
    assert [path.name for path in Path().iterdir()] == ["bad.csv"]


def test_what_is_left_of_reports_in_a_folder_is_refused_line_by_line(perfctl):
    folder = Path("profiles")
    folder.mkdir()
    (folder / "r.csv").write_text(NCU.format(count=5))
    (folder / "notes.txt").write_text("nothing\n")
    (folder / "pointer.sqlite").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )
    (folder / "empty.nsys-rep").touch()
    (folder / "noise.ncu-rep").write_bytes(bytes(range(256)))
    (folder / "packed.csv.gz").write_bytes(gzip.compress(NCU.format(count=5).encode()))
    (folder / "data.csv.gz").write_bytes(gzip.compress(b"x,y\n1,2\n"))
    sql("CREATE TABLE t AS SELECT hex(randomblob(9000)) AS x", folder / "whole.sqlite")
    data = (folder / "whole.sqlite").read_bytes()
    (folder / "cut.sqlite").write_bytes(data[: len(data) // 2])
    said = perfctl("ingest profiles").ends(4, "5 of 6 could not be read")
    reasons = {
        "packed": "it is a gzip-compressed report. Unpack it",
        "pointer": "git-LFS pointer",
        "empty": "the file is empty",
        "noise": "not a profiler report",
        "cut": "is truncated",
    }
    for name, reason in reasons.items():
        (line,) = [line for line in told(said) if f"/{name}." in line]
        assert reason in line
    assert "skipped 3 files that are not reports: data.csv.gz, notes.txt, whole.sqlite" in said.err
    assert count("run") == 1


def test_what_a_newer_format_holds_beyond_the_known_is_one_warning_line_and_kept_in_the_store(
    perfctl,
):
    newer = NCU.replace('"Stream",', '"Stream","Cluster Size",').replace('"7",', '"7","(2, 1, 1)",')
    Path("newer.csv").write_text(newer.format(count=1))
    said = perfctl("ingest newer.csv").ok()
    (line,) = told(said)
    assert line == "warning: newer.csv: not understood and left out: columns Cluster Size"
    assert count("diagnostic WHERE severity = 'warning' AND text LIKE '%Cluster Size%'") == 1
    assert count("metric_value") == 1


def test_a_folder_of_dlprof_json_is_one_run(perfctl):
    folder = Path("prof") / "b8"
    folder.mkdir(parents=True)
    columns = ["Iteration", "Op Name", "Kernel Name", "GPU Start Time (ns)", "GPU Duration (ns)"]
    row = dict(zip(columns, [1, "conv1", "gemm", 5, 7], strict=True))
    (folder / "dlprof_iteration.json").write_text(json.dumps([row]))
    ops = {"Op Name": "conv1", "Op Type": "conv2d", "No. Calls": 3, "Total CPU Time (ns)": 9}
    (folder / "dlprof_detailed.json").write_text(json.dumps([ops]))
    (row,) = perfctl("ingest prof --json").json["runs"]
    assert (row["kernels"], row["operations"]) == (1, 1)
