"""nvprof's traces and summaries: tests/data/nvprof-synthetic is made up after the layouts of CUDA 5
to 12."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, nvprof, parse, sniff

DATA = Path(__file__).resolve().parent.parent / "data" / "nvprof-synthetic"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prof.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["trace.txt", "trace.csv", "summary.txt"])
def test_files_are_recognised_by_content(tmp_path: Path, name: str) -> None:
    path = tmp_path / "anything"
    path.write_bytes((DATA / name).read_bytes())
    found = sniff(path)
    assert found is not None
    assert found.name == "nvprof text"


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
