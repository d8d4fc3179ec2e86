"""Logs that hold the outputs of several runs: each is a run, with the program's output between them
left out."""

import pickle

import pytest

from perfctl.parsers import parse_every_run
from perfctl.parsers.common.doubts import SeveralRunsError
from tests.make.files import read, write
from tests.make.texts import NVPROF_CHILD

SUMS = (
    " Time (%)  Total Time (ns)  {calls}  Avg (ns)  Name\n --------  ---------------  ---------  "
    "--------  ----\n"
    "    100.0  {total:15}  {count:9}  {mean:8}  {name}\n\n"
)
TITLES = {
    "osrt_sum": "OS Runtime Summary",
    "cuda_api_sum": "CUDA API Summary",
    "cuda_gpu_kern_sum": "CUDA GPU Kernel Summary",
}


def recording(run, *tables):
    """What nsys profile --stats=true prints after the program's output; each figure has the run's
    number in it."""
    text = (
        f"loss 0.{run}\nGenerating '/tmp/nsys-report-{run}.qdstrm'\n"
        "[1/8] [0%] r.nsys-rep\r[1/8] [====100%] r.nsys-rep\n"
    )
    for number, table in enumerate(tables, 3):
        calls = "Instances" if "kern" in table else "Num Calls"
        body = SUMS.format(calls=calls, total=100 * run, count=run, mean=100, name=f"{table}_{run}")
        text += (
            f"[{number}/8] Executing '{table}' stats report\n\n ** {TITLES[table]} ({table}):\n\n"
            f"{body}"
        )
    return text + (
        f"[8/8] Executing 'nvtx_sum' stats report\nSKIPPED: r{run} does not contain NV Tools "
        "Extension (NVTX) data.\n"
    )


def found(folder, text, encoding="utf-8"):
    parts = list(parse_every_run(write(folder / "job.log", text, encoding)))
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    return [part.report for part in parts if part.report is not None]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_each_recording_of_a_job_log_is_a_run_with_its_own_tables(tmp_path, encoding):
    runs = 30
    texts = [
        recording(run, "osrt_sum", *(["cuda_gpu_kern_sum"] if run % 2 else []))
        for run in range(1, runs + 1)
    ]
    read = found(tmp_path, "".join(texts), encoding)
    assert len(read) == runs
    for run, report in enumerate(read, 1):
        expected = {f"osrt_sum_{run}": run} | ({f"cuda_gpu_kern_sum_{run}": run} if run % 2 else {})
        assert {one.name: one.calls for one in report.operations} == expected
        assert sum("NVTX" in gap.reason for gap in report.gaps) == 1, (
            "what was skipped is said of its own run"
        )


def test_a_table_that_comes_again_begins_a_run_where_nothing_says_that_nsys_recorded(tmp_path):
    """A job of four processes: sums of system calls of each, and sums of kernels of one (titles
    of 2021)."""
    columns = (
        " Time(%)  Total Time (ns)  {calls}  Average  Name\n -------  ---------------  ---------  "
        "-------  ----\n"
    )
    system = "Operating System Runtime API Statistics:\n\n" + columns.format(calls="Num Calls")
    kernels = (
        "CUDA Kernel Statistics:\n\n"
        + columns.format(calls="Instances")
        + "   100.0              900          3    300.0  gemm\n\n"
    )
    rows = [
        system + f"   100.0  {1000 + run:15}          1  {1000 + run:7}  poll\n\n\n"
        for run in range(4)
    ]
    read = found(tmp_path, "\n".join(["started", rows[0], rows[1], rows[2] + kernels, rows[3]]))
    assert [
        [(one.name, one.cpu_ns or one.device_ns) for one in report.operations] for report in read
    ] == [
        [("poll", 1000)],
        [("poll", 1001)],
        [("poll", 1002), ("gemm", 900)],
        [("poll", 1003)],
    ]


def test_runs_under_nvprof_are_runs_and_a_process_with_its_children_is_one(tmp_path):
    one, other = (f"==7{n}== NVPROF is profiling process 7{n}, command: ./a\n" for n in (7, 8))
    first, second = (
        one + NVPROF_CHILD,
        other + NVPROF_CHILD.replace("==77==", "==78==").replace("3500.0", "3600.0"),
    )
    read = found(tmp_path, first + ">>>\ncommit: 1\n<<<\n" + second)
    assert [next(kernel.duration_ns for kernel in report.kernels) for report in read] == [
        3_500_000,
        3_600_000,
    ]
    silent = NVPROF_CHILD.replace("==77==", "==78==")
    assert len(found(tmp_path, one + other + silent + NVPROF_CHILD)) == 1


def test_an_output_that_stands_there_twice_is_one_run_and_one_that_is_broken_is_named(tmp_path):
    one, cut = (
        recording(1, "osrt_sum"),
        "Generating '/tmp/a.qdstrm'\n[3/8] Executing 'osrt_sum' stats report\nERROR: no room\n",
    )
    parts = list(
        parse_every_run(write(tmp_path / "job.log", one + recording(2, "osrt_sum") + one + cut))
    )
    assert [(part.report is not None, part.twin) for part in parts] == [
        (True, None),
        (True, None),
        (False, 1),
        (False, None),
    ]
    assert parts[3].error is not None
    lines = 2 * one.count("\n") + recording(2, "osrt_sum").count("\n")
    assert (
        f"lines {lines + 1:,} to {lines + 3:,}: nsys stats stopped with an error"
        in parts[3].error.reason
    )


def test_the_error_of_a_joined_file_goes_from_one_process_to_another(tmp_path):
    with pytest.raises(SeveralRunsError) as refused:
        read(tmp_path, recording(1, "osrt_sum") + recording(2, "osrt_sum"))
    copied = pickle.loads(pickle.dumps(refused.value))
    assert (copied.starts, str(copied)) == (refused.value.starts, str(refused.value))
