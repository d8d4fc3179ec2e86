"""ncu's console text: what its lines are told by, where a rule or a stack ends, and how much of
each is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.ncu import text as ncu_text
from perfctl.records.report import Counter, Device, Diagnostic, Gap, Kernel, Report, Summary

RULER = "    ------ ---- ---------"
HEADED = "  k(int) (4, 3, 2)x(32, 16, 1), Context 1, Stream 7, Device 2, CC 8.6"
TABLE = ["    Section: S", RULER, "    Name   inst       123", RULER]


def read(folder: Path, *lines: str, end: str = "\n") -> Report:
    path = folder / "ncu.txt"
    path.write_text("\n".join(lines) + end)
    return ncu_text.parse(path)


def rules(report: Report) -> list[tuple[object, ...]]:
    return [one[1:] for one in report.advice]


@pytest.mark.parametrize(
    ("line", "kernel", "capability"),
    [
        (
            HEADED,
            Kernel(
                0,
                "k(int)",
                device_index=2,
                stream=7,
                grid_x=4,
                grid_y=3,
                grid_z=2,
                block_x=32,
                block_y=16,
                block_z=1,
                context=1,
            ),
            "8.6",
        ),
        (
            "  k(int), 2023-Sep-06 05:40:14, Context 3, Stream 13",
            Kernel(0, "k(int)", stream=13, context=3),
            None,
        ),
        ("  k(int), Context 1", Kernel(0, "k(int)", context=1), None),
        (
            " k, x (1, 2, 3)x(4, 5, 6), Context 1, Device 0",
            Kernel(
                0,
                "k, x",
                device_index=0,
                grid_x=1,
                grid_y=2,
                grid_z=3,
                block_x=4,
                block_y=5,
                block_z=6,
                context=1,
            ),
            None,
        ),
        (
            f"{HEADED}, Series ID 3, Combination 2",
            Kernel(
                0,
                "k(int)",
                device_index=2,
                stream=7,
                grid_x=4,
                grid_y=3,
                grid_z=2,
                block_x=32,
                block_y=16,
                block_z=1,
                context=1,
            ),
            "8.6",
        ),
        ("        k, Context 1", Kernel(0, "k", context=1), None),
    ],
)
def test_the_line_of_a_launch_says_where_and_how_it_ran(
    line: str, kernel: Kernel, capability: str | None, tmp_path: Path
) -> None:
    report = read(tmp_path, line, *TABLE)
    assert list(report.kernels) == [kernel]
    assert list(report.counters) == [Counter(0, "Name", 123, "inst", "S")]
    at = kernel.device_index or 0
    assert report.devices == ((Device(None, "gpu", at, capability),) if capability else ())
    assert report.form == f"ncu console text, {'with grids' if kernel.grid_x else 'up to 2022.3'}"


@pytest.mark.parametrize(
    "line",
    ["k(int), Context 1", "         k(int), Context 1", "  k(int), Context x", "  , Context 1"],
)
def test_a_line_that_is_no_launch_begins_none(line: str, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="ncu's console text has no launch"):
        read(tmp_path, line, *TABLE)


def test_a_launch_whose_line_is_cut_off_is_none(tmp_path: Path) -> None:
    report = read(tmp_path, HEADED, *TABLE, HEADED, end="")
    assert len(list(report.kernels)) == 1
    assert len(list(read(tmp_path, HEADED, *TABLE, HEADED).kernels)) == 2


def test_counters_belong_to_the_launch_and_section_above_them(tmp_path: Path) -> None:
    other = [line.replace("Section: S", "Section: Other  ").replace("123", "456") for line in TABLE]
    report = read(tmp_path, HEADED, *TABLE, *other, HEADED, *TABLE[1:], *other)
    assert list(report.counters) == [
        Counter(0, "Name", 123, "inst", "S"),
        Counter(0, "Name", 456, "inst", "Other"),
        Counter(1, "Name", 123, "inst"),
        Counter(1, "Name", 456, "inst", "Other"),
    ]


@pytest.mark.parametrize(("blanks", "goes_on"), [(7, False), (8, True), (14, True), (15, False)])
def test_a_rule_goes_on_in_lines_that_are_indented_as_ncu_does(
    blanks: int, goes_on: bool, tmp_path: Path
) -> None:
    more = " " * blanks
    report = read(
        tmp_path,
        HEADED,
        *TABLE,
        "    OPT   first",
        f"{more}second  ",
        "          third",
        "",
        *TABLE,
    )
    assert rules(report) == [("S", "OPT", "first second third" if goes_on else "first", None, None)]
    assert [counter.value for counter in report.counters] == [123, 123]


@pytest.mark.parametrize(
    "line", ["OPT   words", " OPT  words", "    OPTX words", "    OP  words", "    OPT    words"]
)
def test_other_lines_are_no_rules(line: str, tmp_path: Path) -> None:
    assert rules(read(tmp_path, HEADED, *TABLE, line)) == []
    assert rules(read(tmp_path, HEADED, *TABLE, "  INF words")) == [
        ("S", "INF", "words", None, None)
    ]


@pytest.mark.parametrize(
    ("said", "text", "speedup", "scope"),
    [
        ("Est. Speedup: 12.5% 3 of 4 warps wait", "3 of 4 warps wait", 0.125, "global"),
        ("Est. Local Speedup: 7% words", "words", 0.07, "local"),
        ("Est. Speedup: 4,206% words", "words", 0.04206, "global"),
        ("Estimated Speedup: 50% words", "words", 0.5, None),
        ("Est. Speedup: 100% words", "words", 1, "global"),
        ("Est. Local Speedup: 250% words", "words", None, "local"),
        ("Est. Speedup: ,.% words", "words", None, "global"),
        ("An Est. Speedup: 5% words", "An Est. Speedup: 5% words", None, None),
    ],
)
def test_an_estimated_speed_up_stands_before_the_words_and_is_a_share(
    said: str, text: str, speedup: float | None, scope: str | None, tmp_path: Path
) -> None:
    assert rules(read(tmp_path, HEADED, *TABLE, f"    OPT   {said}")) == [
        ("S", "OPT", text, speedup, scope)
    ]


def test_each_result_of_a_rule_stands_with_its_launch_and_section(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        HEADED,
        *TABLE,
        "    OPT   a",
        "    Section: T",
        "    INF   b",
        HEADED,
        *TABLE,
        "    OPT   a",
    )
    assert [one[:4] for one in report.advice] == [
        (0, "S", "OPT", "a"),
        (0, "T", "INF", "b"),
        (1, "S", "OPT", "a"),
    ]


def test_the_innermost_of_many_ranges_counts(tmp_path: Path) -> None:
    stack = [f"        <{n},l{n}:forward>" for n in range(1000)]
    report = read(
        tmp_path,
        HEADED,
        "    NVTX Push/Pop Stack for Thread 42:",
        "     <default domain>",
        *stack,
        *TABLE,
    )
    assert [kernel.layer for kernel in report.kernels] == ["l999"]
    assert [counter.value for counter in report.counters] == [123]


def test_warnings_of_rules_below_a_launch_are_warnings_and_output_of_the_program_is_none(
    tmp_path: Path,
) -> None:
    report = read(
        tmp_path,
        "Warning: before",
        HEADED,
        *TABLE,
        "    Warning: odd value",
        "Warning: odd value",
        "loss 1",
    )
    said = Diagnostic("warning", "ncu", "odd value (2 times)")
    assert [one for one in report.diagnostics if one.source == "ncu"] == [said]


def test_a_process_that_comes_again_begins_a_run_and_further_ones_are_named(
    tmp_path: Path,
) -> None:
    first, second = "[42] app@127.0.0.1", "[43] app@127.0.0.1"
    with pytest.raises(ReportError, match=r"it holds 3 runs; the second begins at line 7\b"):
        read(tmp_path, first, HEADED, *TABLE, first, HEADED, *TABLE, first)
    report = read(tmp_path, first, HEADED, *TABLE, second, HEADED, *TABLE)
    begin = "the launches of further processes begin at line 7 and"
    assert any(said.text.startswith(begin) for said in report.diagnostics)
    alone = read(tmp_path, first, HEADED, *TABLE)
    assert not [said for said in alone.diagnostics if "further" in said.text]


def test_rows_that_are_cut_off_are_those_of_the_text(tmp_path: Path) -> None:
    report = read(tmp_path, HEADED, *TABLE[:3], "    Name   inst      123", *TABLE[3:])
    assert Gap("counter", "unreadable", "1 rows of the text are cut off or broken") in report.gaps
    assert [counter.value for counter in report.counters] == [123]


@pytest.mark.parametrize(
    ("text", "is_ncu"),
    [
        ("    Section: S\n    ------ ----\n", True),
        ("    Section: S\n    Metric Name  x\n", True),
        ("    Section: S\n    INF  words\n", True),
        ("    Section: S\n    INF words\n", False),
        ("         Section: S\n    ------\n", False),
        (f"  {'-' * 20} --- ---\n", True),
        (f"  {'-' * 19} --- ---\n", False),
        ("  Metric Name   Metric Unit   Metric Value\n", True),
        ("Metric Name Metric Unit Metric Value\n", False),
        ('"ID","Process ID"\n    Section: S\n    ------ ----\n', False),
        ("", False),
        ("    Section: S\n    ------ ----\n\0", False),
    ],
)
def test_console_text_is_told_by_a_section_with_its_table_or_rule_or_by_a_wide_ruler(
    text: str, is_ncu: bool, tmp_path: Path
) -> None:
    path = tmp_path / "ncu.txt"
    path.write_text(text)
    assert ncu_text.sniff(path, text.encode()) is is_ncu


def test_a_table_of_the_program_at_the_edge_of_the_page_is_none_of_ncu(tmp_path: Path) -> None:
    flush = [line.removeprefix("    ") for line in TABLE[1:]]
    report = read(tmp_path, *TABLE, HEADED, *flush, *TABLE, *[" " + line for line in flush])
    assert [counter.value for counter in report.counters] == [123, 123]
    assert [counter.section for counter in report.counters] == ["S", "S"]


def test_a_summary_s_tables_may_begin_at_the_edge_and_its_line_has_to_be_whole(
    tmp_path: Path,
) -> None:
    ruler = "------------ ----------- -------- -------- --------"
    titles = "Metric Name  Metric Unit Minimum  Maximum  Average "
    table = [ruler, "a__b.s       Kbyte       1        3        2       ", ruler]
    headed = ["    Section: S", *("    " + text for text in (ruler, titles, *table))]
    heads = (
        (
            "  k(int) (4, 1, 1)x(32, 1, 1), Device 0, CC 8.0, Invocations 3",
            headed,
            "3",
            "(4, 1, 1)",
            "(32, 1, 1)",
        ),
        (
            "k(int), Block Size (32, 1, 1), Grid Size (4, 1, 1), Device 0, 3 invocations",
            table,
            "3",
            "(4, 1, 1)",
            "(32, 1, 1)",
        ),
        ("k(int), Block Size 32, Grid Size 4, 1 invocation", table, "1", "4", "32"),
    )
    for head, lines, count, grid, block in heads:
        report = read(tmp_path, head, *lines)
        assert report.form == "ncu console text, summary"
        about = f"of {count} launches of k(int) grid {grid} block {block}"
        figures = (("minimum", 1), ("maximum", 3), ("average", 2))
        assert list(report.summaries) == [
            Summary(f"a__b.s, {word} {about}", 1000 * n, "byte") for word, n in figures
        ]
        with pytest.raises(ReportError, match="ncu's console text has no launch"):
            read(tmp_path, head, end="")
    strange = read(tmp_path, "== NVTX State ==", heads[0][0], *table).diagnostics
    text = "NVTX states of a summary (its kernels are separated by name only)"
    assert strange == (
        Diagnostic("warning", "perfctl parser", f"not understood and left out: parts {text}"),
    )


def test_figures_of_a_value_that_failed_lose_their_mark_and_others_keep_it(tmp_path: Path) -> None:
    rows = ["    Name   inst   (!) n/a", "    Name   inst   (!) nan", "    Other  inst     (!) x"]
    report = read(tmp_path, HEADED, *TABLE[:2], *rows, RULER)
    assert [(counter.value, counter.text) for counter in report.counters] == [
        (None, "n/a"),
        (None, "nan"),
        (None, "(!) x"),
    ]
