"""ncu's console text: what its lines are told by, where a rule or a stack ends, and how much of each is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.ncu import text as ncu_text
from perfctl.parsers.ncu.facts import range_names
from perfctl.parsers.ncu.text import TextTable, spans_of
from perfctl.records.report import Counter, Device, Diagnostic, Gap, Kernel, Report, Summary

RULER = "    ------ ---- ---------"
SPANS = ((4, 10), (11, 15), (16, 25))
HEADED = "  k(int) (4, 3, 2)x(32, 16, 1), Context 1, Stream 7, Device 2, CC 8.6"
TABLE = ["    Section: S", RULER, "    Name   inst       123", RULER]


def read(folder: Path, *lines: str, end: str = "\n") -> Report:
    path = folder / "ncu.txt"
    path.write_text("\n".join(lines) + end)
    return ncu_text.parse(path)


def rules(report: Report) -> list[tuple[str, str]]:
    return [(said.source, said.text) for said in report.diagnostics if said.source.startswith("ncu rule")]


@pytest.mark.parametrize(
    ("line", "kernel", "capability"),
    [
        (HEADED, Kernel(0, "k(int)", device_index=2, stream=7, grid_x=4, grid_y=3, grid_z=2, block_x=32, block_y=16,
                        block_z=1), "8.6"),
        ("  k(int), 2023-Sep-06 05:40:14, Context 1, Stream 13", Kernel(0, "k(int)", stream=13), None),
        ("  k(int), Context 1", Kernel(0, "k(int)"), None),
        (" k, x (1, 2, 3)x(4, 5, 6), Context 1, Device 0", Kernel(0, "k, x", device_index=0, grid_x=1, grid_y=2,
                        grid_z=3, block_x=4, block_y=5, block_z=6), None),
        (f"{HEADED}, Series ID 3, Combination 2", Kernel(0, "k(int)", device_index=2, stream=7, grid_x=4, grid_y=3,
                        grid_z=2, block_x=32, block_y=16, block_z=1), "8.6"),
        ("        k, Context 1", Kernel(0, "k"), None),
    ],
)  # fmt: skip
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
    "line", ["k(int), Context 1", "         k(int), Context 1", "  k(int), Context x", "  , Context 1"]
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
        Counter(0, "Name", 123, "inst", "S"), Counter(0, "Name", 456, "inst", "Other"),
        Counter(1, "Name", 123, "inst"), Counter(1, "Name", 456, "inst", "Other"),
    ]  # fmt: skip


@pytest.mark.parametrize(("blanks", "goes_on"), [(7, False), (8, True), (14, True), (15, False)])
def test_a_rule_goes_on_in_lines_that_are_indented_as_ncu_does(blanks: int, goes_on: bool, tmp_path: Path) -> None:
    more = " " * blanks
    report = read(tmp_path, HEADED, *TABLE, "    OPT   first", f"{more}second  ", "          third", "", *TABLE)
    said = "OPT 1 times; the first: " + ("first second third" if goes_on else "first")
    assert rules(report) == [("ncu rule of section S", said)]
    assert [counter.value for counter in report.counters] == [123, 123]


@pytest.mark.parametrize("line", ["OPT   words", " OPT  words", "    OPTX words", "    OP  words", "    OPT    words"])
def test_other_lines_are_no_rules(line: str, tmp_path: Path) -> None:
    assert rules(read(tmp_path, HEADED, *TABLE, line)) == []
    assert rules(read(tmp_path, HEADED, *TABLE, "  INF words")) == [
        ("ncu rule of section S", "INF 1 times; the first: words")
    ]


def test_rules_that_differ_in_their_figures_alone_are_one_and_others_are_told_apart(tmp_path: Path) -> None:
    said = [
        "    OPT   Est. Speedup: 12.5% 3 of 4 warps wait", "    OPT   Est. Local Speedup: 7% 1 of 40 warps wait",
        "    INF   3 of 4 warps wait", f"    OPT   {'w' * 80}one", f"    OPT   {'w' * 80}two", f"    OPT   {'w' * 79}X",
    ]  # fmt: skip
    report = read(tmp_path, HEADED, *TABLE, *said, "    Section: T", said[0])
    assert rules(report) == [
        ("ncu rule of section S", "OPT 2 times; the first: Est. Speedup: 12.5% 3 of 4 warps wait"),
        ("ncu rule of section S", "INF 1 times; the first: 3 of 4 warps wait"),
        ("ncu rule of section S", f"OPT 2 times; the first: {'w' * 80}one"),
        ("ncu rule of section S", f"OPT 1 times; the first: {'w' * 79}X"),
        ("ncu rule of section T", "OPT 1 times; the first: Est. Speedup: 12.5% 3 of 4 warps wait"),
    ]


def test_two_thousand_different_rules_are_kept_and_those_go_on_being_counted(tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    many = [f"    OPT   {a}{b}{c}" for a in letters for b in letters for c in letters][:2001]
    found = rules(read(tmp_path, HEADED, *TABLE, *many, many[0], many[-1]))
    assert len(found) == 2000
    assert found[0][1] == "OPT 2 times; the first: aaa"
    assert {text.partition(" times")[0] for _, text in found[1:]} == {"OPT 1"}


@pytest.mark.parametrize(("depth", "kept"), [(199, 199), (200, 200), (201, 200)])
def test_two_hundred_ranges_of_a_stack_are_kept(depth: int, kept: int, tmp_path: Path) -> None:
    stack = [f"        <{n},l{n}:forward>" for n in range(depth)]
    report = read(tmp_path, HEADED, "    NVTX Push/Pop Stack for Thread 42:", "     <default domain>", *stack, *TABLE)
    assert [kernel.layer for kernel in report.kernels] == [f"l{kept - 1}"]
    assert [counter.value for counter in report.counters] == [123]
    assert range_names("".join(f'"<default domain>:l{n}"' for n in range(2))) == ["l0", "l1"]


def test_warnings_of_rules_below_a_launch_are_warnings_and_output_of_the_program_is_none(tmp_path: Path) -> None:
    report = read(tmp_path, "Warning: before", HEADED, *TABLE, "    Warning: odd value", "Warning: odd value", "loss 1")
    assert [said for said in report.diagnostics if said.source == "ncu"] == [
        Diagnostic("warning", "ncu", "odd value (2 times)")
    ]


def test_a_process_that_comes_again_is_refused_with_its_line_and_further_ones_are_named(tmp_path: Path) -> None:
    first, second = "[42] app@127.0.0.1", "[43] app@127.0.0.1"
    with pytest.raises(ReportError, match=r"the output of one process appears twice \(again at line 7\b"):
        read(tmp_path, first, HEADED, *TABLE, first, HEADED, *TABLE, first)
    report = read(tmp_path, first, HEADED, *TABLE, second, HEADED, *TABLE)
    assert any(
        said.text.startswith("the launches of further processes begin at line 7 and") for said in report.diagnostics
    )
    alone = read(tmp_path, first, HEADED, *TABLE)
    assert not [said for said in alone.diagnostics if "further" in said.text]


def test_rows_that_are_cut_off_are_those_of_the_text(tmp_path: Path) -> None:
    report = read(tmp_path, HEADED, *TABLE[:3], "    Name   inst      123", *TABLE[3:])
    assert Gap("counter", "unreadable", "1 rows of the text are cut off or broken") in report.gaps
    assert [counter.value for counter in report.counters] == [123]


@pytest.mark.parametrize(
    ("text", "is_ncu"),
    [
        ("    Section: S\n    ------ ----\n", True), ("    Section: S\n    Metric Name  x\n", True),
        ("    Section: S\n    INF  words\n", True), ("    Section: S\n    INF words\n", False),
        ("         Section: S\n    ------\n", False), (f"  {'-' * 20} --- ---\n", True), (f"  {'-' * 19} --- ---\n", False),
        ("  Metric Name   Metric Unit   Metric Value\n", True), ("Metric Name Metric Unit Metric Value\n", False),
        ('"ID","Process ID"\n    Section: S\n    ------ ----\n', False), ("", False),
        ("    Section: S\n    ------ ----\n\0", False),
    ],
)  # fmt: skip
def test_console_text_is_told_by_a_section_with_its_table_or_rule_or_by_a_wide_ruler(
    text: str, is_ncu: bool, tmp_path: Path
) -> None:
    path = tmp_path / "ncu.txt"
    path.write_text(text)
    assert ncu_text.sniff(path, text.encode()) is is_ncu


def rows_of(*lines: str, by_left: bool = False) -> tuple[list[list[str]], int]:
    table = TextTable(SPANS, RULER, by_left=by_left)
    for text in lines:
        table.take(text + "\n")
    return table.rows(), table.broken


def test_a_value_in_two_lines_is_one_of_two_words_and_a_row_without_a_name_is_broken() -> None:
    assert rows_of("    Name   inst    NVIDIA", "                     RTX", RULER) == ([["Name", "inst", "NVIDIA"]], 1)
    assert rows_of("    Name   inst    NVIDIA", "                      RTX", RULER) == (
        [["Name", "inst", "NVIDIA RTX"]],
        0,
    )
    assert rows_of("           inst       123", RULER) == ([], 1)


def test_a_name_whose_last_column_is_a_blank_goes_on_and_a_shorter_one_does_not() -> None:
    rest = "    ame"
    assert rows_of("    Long.N inst       123", rest, RULER) == ([["Long.Name", "inst", "123"]], 0)
    assert rows_of("    Long.  inst       123", rest, RULER) == ([["Long.ame", "inst", "123"]], 0)
    assert rows_of("    Long   inst       123", rest, RULER) == ([["Long", "inst", "123"], ["ame", "", ""]], 0)


def test_a_ruler_has_two_columns_at_least_of_three_dashes_each() -> None:
    assert spans_of("--- ---") == ((0, 3), (4, 7))
    assert spans_of("  --- ----  ") == ((2, 5), (6, 10))
    assert spans_of("--- --") == spans_of("---  ---") == ()


def test_a_table_of_the_program_at_the_edge_of_the_page_is_none_of_ncu(tmp_path: Path) -> None:
    flush = [line.removeprefix("    ") for line in TABLE[1:]]
    report = read(tmp_path, *TABLE, HEADED, *flush, *TABLE, *[" " + line for line in flush])
    assert [counter.value for counter in report.counters] == [123, 123]
    assert [counter.section for counter in report.counters] == ["S", "S"]


def test_a_summary_s_tables_may_begin_at_the_edge_and_its_line_has_to_be_whole(tmp_path: Path) -> None:
    ruler = "------ ---- ---- ---- ----"
    table = [ruler, "a__b.s inst 1    3    2", ruler]
    heads = {
        "k(int) (4, 1, 1)x(32, 1, 1), Device 0, CC 8.0, Invocations 3": ("3", "(4, 1, 1)", "(32, 1, 1)"),
        "k(int), Block Size (32, 1, 1), Grid Size (4, 1, 1), Device 0, 3 invocations": ("3", "(4, 1, 1)", "(32, 1, 1)"),
        "k(int), Block Size 32, Grid Size 4, 1 invocation": ("1", "4", "32"),
    }
    for head, (count, grid, block) in heads.items():
        report = read(tmp_path, head, *table)
        assert report.form == "ncu console text, summary"
        name = f"a__b.s, {{}} of {count} launches of k(int) grid {grid} block {block}"
        assert list(report.summaries) == [
            Summary(name.format("minimum"), 1, "inst"), Summary(name.format("maximum"), 3, "inst"),
            Summary(name.format("average"), 2, "inst"),
        ]  # fmt: skip
        with pytest.raises(ReportError, match="ncu's console text has no launch"):
            read(tmp_path, head, end="")
    strange = read(tmp_path, "== NVTX State ==", next(iter(heads)), *table).diagnostics
    text = "NVTX states of a summary (its kernels are separated by name only)"
    assert strange == (Diagnostic("warning", "perfctl parser", f"not understood and left out: parts {text}"),)


def test_figures_of_a_value_that_failed_lose_their_mark_and_others_keep_it(tmp_path: Path) -> None:
    rows = ["    Name   inst   (!) n/a", "    Other  inst     (!) x"]
    report = read(tmp_path, HEADED, *TABLE[:2], *rows, RULER)
    assert [(counter.value, counter.text) for counter in report.counters] == [(None, "n/a"), (None, "(!) x")]
