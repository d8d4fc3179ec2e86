"""nvprof's traces and summaries: tests/data/nvprof-synthetic is made up after the layouts of CUDA 5
to 12."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, nvprof, parse, sniff
from perfctl.records.report import Copy, Kernel, Report

DATA = Path(__file__).resolve().parent.parent / "data" / "nvprof-synthetic"
HEADER = (
    "   Start  Duration            Grid Size      Block Size     Regs*    SSMem*    DSMem*      "
    "Size  Throughput           Device   Context    Stream  Name\n"
)
DASHES = "                    -               -         -         -         -  "


def figures(report: Report) -> dict[str, float | None]:
    return {figure.name: figure.value for figure in report.summaries}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prof.txt"
    path.write_text(text)
    return path


def copy_line(size: str, throughput: str) -> str:
    place = "Old GPU (0)         1        13  [CUDA memcpy HtoD]"
    return f"10.0ms  1.0502ms{DASHES}{size}  {throughput}  {place}\n"


@pytest.mark.parametrize("name", ["trace.txt", "trace.csv", "summary.txt"])
def test_files_are_recognised_by_content(tmp_path: Path, name: str) -> None:
    path = tmp_path / "anything"
    path.write_bytes((DATA / name).read_bytes())
    found = sniff(path)
    assert found is not None
    assert found.name == "nvprof text"


@pytest.mark.parametrize("name", ["trace.txt", "trace.csv"])
def test_a_launch_has_its_grid_registers_shared_memory_and_times(name: str) -> None:
    assert next(iter(parse(DATA / name).kernels)) == Kernel(
        launch=0,
        name="void conv<float, int>(float const *, int)",
        device_index=1,
        stream=7,
        grid_x=39063,
        grid_y=2,
        grid_z=1,
        block_x=256,
        block_y=1,
        block_z=1,
        registers=32,
        static_shared_bytes=4096,
        dynamic_shared_bytes=128,
        start_ns=103_000_000,
        duration_ns=3_500_000,
    )


def test_copies_and_memory_settings_are_no_kernels() -> None:
    # printed as a power of ten
    assert list(parse(DATA / "trace.txt").kernels)[1].duration_ns == 2400 * 10**9
    copies = list(parse(DATA / "trace.txt").copies)
    assert copies == [
        Copy("HtoD", 10 * 2**20, 100_000_000, 2_000_000, None, 1, 7),
        Copy("memset", 512, 102_500_000, 1000, None, 1, 14),
    ]


def test_warnings_come_along_and_output_of_the_program_does_not_hide_a_line() -> None:
    said = [(entry.severity, entry.text) for entry in parse(DATA / "trace.txt").diagnostics]
    assert ("warning", "2 API trace records have same start and end timestamps.") in said


def test_a_summary_becomes_figures_by_group_and_says_that_launches_are_missing() -> None:
    report = parse(DATA / "summary.txt")
    found = figures(report)
    assert found["GPU activities: add(float*, float*): Time"] == 3_000_000
    assert found["GPU activities: [CUDA memcpy DtoH]: Calls"] == 1
    assert found["API calls: cudaMalloc: Max"] == 1_490_000_000
    assert found["add(float*, float*): flop_count_sp: Avg"] == 2000
    assert ("summary", "not_available") in {(gap.quantity, gap.state) for gap in report.gaps}
    assert ("kernel", "not_collected") in {(gap.quantity, gap.state) for gap in report.gaps}
    assert not list(report.kernels)


def test_metrics_of_a_trace_are_counters_of_their_launch(tmp_path: Path) -> None:
    text = (
        '"Start","Duration","Grid X","Grid Y","Grid Z","Device","Stream","Kernel","flop_count_sp"\n'
        'us,us,,,,,,,\n1.0,2.0,4,1,1,"GPU (0)","7","k(int)",4096\n'
    )
    report = parse(written(tmp_path, "==9== Profiling result:\n" + text))
    (counter,) = report.counters
    assert (counter.launch, counter.name, counter.value) == (0, "flop_count_sp", 4096)
    assert [kernel.name for kernel in report.kernels] == ["k(int)"]


def test_unified_memory_moves_are_copies(tmp_path: Path) -> None:
    head = (
        "   Start  Duration            Grid Size      Block Size     Regs*    SSMem*    "
        "DSMem*           Device   Context    Stream        Unified Memory  Virtual Address  Name\n"
    )
    rows = (
        f"1.00ms         -{DASHES}             -         -         -         PC 0x46de3225   "
        "0x7612d2000000  [Unified Memory CPU page faults]\n"
        f"2.00ms  2.0000us{DASHES}  GPU (0)         -         -                  512B   "
        "0x7612d2000000  [Unified Memory Memcpy HtoD]\n"
    )
    report = parse(written(tmp_path, "==9== Profiling result:\n" + head + rows))
    assert [(copy.kind, copy.bytes, copy.stream) for copy in report.copies] == [("HtoD", 512, None)]


def test_a_run_without_a_table_is_refused_with_nvprofs_own_words(tmp_path: Path) -> None:
    text = (
        "==9== NVPROF is profiling process 9, command: x\n==9== Warning: No CUDA application was "
        "profiled, exiting\n"
    )
    with pytest.raises(ReportError, match="No CUDA application was profiled"):
        parse(written(tmp_path, text))


@pytest.mark.parametrize("name", ["trace.txt", "trace.csv"])
def test_a_cut_trace_gives_the_first_launches_or_an_error(tmp_path: Path, name: str) -> None:
    whole = (DATA / name).read_bytes()
    kernels, copies = list(parse(DATA / name).kernels), list(parse(DATA / name).copies)
    path = tmp_path / name
    for size in range(0, len(whole), 3):
        path.write_bytes(whole[:size])
        try:
            report = nvprof.parse(path)
        except ReportError:
            continue
        assert list(report.kernels) == kernels[: len(list(report.kernels))], size
        assert list(report.copies) == copies[: len(list(report.copies))], size


def test_broken_rows_between_good_ones_are_counted_and_left_out(tmp_path: Path) -> None:
    text = (DATA / "trace.csv").read_text()
    broken = '"a\rb"c,\r"x\n' + '"' + "y" * 200_000 + '",1\n' + "1,2,3\n"
    report = parse(written(tmp_path, text + broken + text.splitlines()[-1] + "\n"))
    assert [kernel.grid_x for kernel in report.kernels] == [39063, 39063]
    assert any(gap.reason.startswith("3 lines") for gap in report.gaps if gap.state == "unreadable")


def test_a_report_says_which_tables_it_is_of_and_what_they_leave_open(tmp_path: Path) -> None:
    said = {name: parse(DATA / name) for name in ("trace.txt", "trace.csv", "summary.txt")}
    assert {name: report.form for name, report in said.items()} == {
        "trace.txt": "nvprof GPU trace, text",
        "trace.csv": "nvprof GPU trace, CSV",
        "summary.txt": "nvprof summary, text and metrics, text",
    }
    gaps = {
        name: [(gap.quantity, gap.state) for gap in report.gaps] for name, report in said.items()
    }
    assert gaps["trace.txt"] == gaps["trace.csv"] == [("kernel.layer", "not_available")]
    assert gaps["summary.txt"] == [
        ("kernel", "not_collected"),
        ("copy", "not_collected"),
        ("summary", "not_available"),
    ]
    rounding = "nvprof printed five digits a number, so times and sizes are rounded (see --csv)"
    rounded = {
        name: rounding in [entry.text for entry in report.diagnostics]
        for name, report in said.items()
    }
    assert rounded == {"trace.txt": True, "trace.csv": False, "summary.txt": True}
    copies = parse(written(tmp_path, HEADER + copy_line("512B", "5.9GB/s")))
    assert [(gap.quantity, gap.reason) for gap in copies.gaps] == [
        ("kernel", "the file has no kernel: run nvprof --print-gpu-trace for single launches")
    ]


def test_the_tables_of_further_processes_are_named_by_their_lines(tmp_path: Path) -> None:
    one = "==5== Profiling result:\n" + HEADER + copy_line("512B", "5.9GB/s")
    report = parse(
        written(tmp_path, one + one.replace("==5==", "==6==") + one.replace("==5==", "==7=="))
    )
    assert len(list(report.copies)) == 3
    assert any(
        entry.text.startswith("the tables of further processes begin at line 5, 8 and")
        for entry in report.diagnostics
    )
    alone = parse(written(tmp_path, one))
    assert not [entry for entry in alone.diagnostics if "further processes" in entry.text]
