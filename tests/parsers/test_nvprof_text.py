"""nvprof's traces and summaries: tests/data/nvprof-synthetic is made up after the layouts of CUDA 5
to 12."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, nvprof, parse, sniff

DATA = Path(__file__).resolve().parent.parent / "data" / "nvprof-synthetic"
HEADER = (
    "   Start  Duration            Grid Size      Block Size     Regs*    SSMem*    DSMem*      "
    "Size  Throughput           Device   Context    Stream  Name\n"
)
DASHES = "                    -               -         -         -         -  "


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


def test_warnings_come_along_and_output_of_the_program_does_not_hide_a_line() -> None:
    said = [(entry.severity, entry.text) for entry in parse(DATA / "trace.txt").diagnostics]
    assert ("warning", "2 API trace records have same start and end timestamps.") in said


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
