"""Nsight Compute CSV: known truths of real files, facts of launches, advice, and what is refused."""

from collections import Counter as Tally
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError, parse, parse_every_run
from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu.advice import format_rule_text, parse_percent
from perfctl.parsers.ncu.facts import CYCLES, is_flop_counter
from tests.make.ncu_csv import METRIC, line, read

TENSOR, FMUL = (
    "sm__inst_executed_pipe_tensor.sum",
    "sm__sass_thread_inst_executed_op_fmul_pred_on.sum",
)
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"


def value(report, name, launch):
    (found,) = [one.value for one in report.counters if (one.name, one.launch) == (name, launch)]
    return found


def launch_of(report, part):
    return next(kernel.launch for kernel in report.kernels if part in kernel.name)


# Real files


def test_the_tensor_instructions_of_a_known_gemm_are_exact(reports):
    report = ncu_csv.parse(reports / "ncu/csv_long/wangzy_roofline_output.csv")
    side = 20480
    gemms = [
        counter.launch for counter in report.counters if counter.name == TENSOR and counter.value
    ]
    assert 2 * side**3 == 33_554_432_000 * 512
    assert {value(report, TENSOR, launch) for launch in gemms} == {33_554_432_000}
    assert side**2 in {value(report, FMUL, launch) for launch in gemms}
    assert report.devices[0].compute_capability == "7.0"


def test_the_ffma_of_a_naive_gemm_are_exact_although_printed_as_floats(reports):
    report = ncu_csv.parse(reports / "ncu/csv_long/gardenia_gemm_smsp_sass.csv")
    counted = value(report, FFMA, launch_of(report, "gemm_v0"))
    assert counted == 34_359_738_368_000 == 20480 * 20480 * 81920
    assert isinstance(counted, int)


# Facts about a launch among the metrics of real reports, and which metrics count FLOPs


def test_whole_counts_of_multiply_adds_count_the_work_and_rates_or_additions_do_not():
    op = "thread_inst_executed_op_{}_pred_on.sum"
    counts = [
        f"{unit}__sass_{op.format(name)}"
        for unit in ("sm", "smsp")
        for name in ("ffma", "dfma", "hfma", "ffma2")
    ]
    counts += ["sm__inst_executed_pipe_tensor.sum", "sm__ops_path_tensor_src_bf16_dst_fp32.sum"]
    assert all(map(is_flop_counter, counts))
    others = [
        f"{counts[0]}.per_cycle_elapsed",
        counts[0].replace("ffma", "fadd"),
        "sm__inst_executed.sum",
        "FFMA",
    ]
    assert not any(map(is_flop_counter, others))


def test_where_a_report_has_all_three_cycles_by_clock_rate_is_its_duration(reports):
    pytest.importorskip("ncu_report")
    found = parse(reports / "ncu" / "rep" / "cs599k_h100_silu_2025-04-21.ncu-rep")
    values = {(item.launch, item.name): item.value for item in found.counters}
    for kernel in found.kernels:
        for cycles, rate in CYCLES:
            by_cycles = (
                (values[kernel.launch, cycles] or 0) / (values[kernel.launch, rate] or 1) * 1e9
            )
            assert by_cycles == pytest.approx(kernel.duration_ns, rel=1e-6)


# What ncu's tables lack, and what is refused, in the words that the user reads


CASES = Path(__file__).resolve().parents[2] / "data" / "ncu"
BARE = ["ID", "Process ID", "Kernel Name", *METRIC]


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        (BARE[:3], "with metrics"),
        ([*BARE[:2], *METRIC], "Kernel Name"),
        (BARE[:5], "Metric Value"),
        (BARE[:4], "Metric Unit, Metric Value"),
        ([*BARE[:3], "Metric Value"], "Metric Name, Metric Unit"),
    ],
)
def test_a_header_without_a_column_that_every_row_needs_is_refused(header, missing, tmp_path):
    with pytest.raises(ReportError, match=rf"the CSV has no column {missing} \(it is truncated"):
        read(tmp_path, line(*header), line(0, 42, "k", "a__b.sum", "inst", 1))


def test_a_header_without_rows_is_refused(tmp_path):
    reason = "the CSV has a header but no rows: the CSV ends after its header"
    with pytest.raises(ReportError, match=reason):
        read(tmp_path, line(*BARE))


@pytest.mark.parametrize(
    ("case", "runs", "start"),
    [
        ("outputs/headers.csv", 3, 3),
        ("outputs/messages.csv", 3, 5),
        ("summary/two_outputs.csv", 2, 3),
        ("wide/two_outputs.csv", 2, 4),
        ("text-launches/two_outputs.txt", 2, 7),
        ("text-launches/two_logs.txt", 2, 8),
    ],
)
def test_several_outputs_in_a_file_are_pointed_out_with_the_line_of_the_second(case, runs, start):
    with pytest.raises(ReportError, match=rf"it holds {runs} runs; .* begins at line {start}\b"):
        parse(CASES / case)


def test_a_further_table_without_its_columns_says_which_lines_cannot_be_read():
    _, second = parse_every_run(CASES / "outputs/second_without_columns.csv")
    assert second.error is not None
    assert second.error.reason.startswith("lines 3 to 4: the CSV has no column Kernel Name")


def test_a_summary_on_the_console_is_refused_with_the_way_to_export_it(tmp_path):
    ruler = "    ------------ ----------- -------- -------- --------\n"
    path = tmp_path / "summary.txt"
    head = "  k(int) (4, 1, 1)x(32, 1, 1), Device 0, CC 8.0, Invocations 3\n"
    path.write_text(f"{head}    Section: S\n{ruler}    a__b.s  Kbyte  1  3  2\n{ruler}")
    with pytest.raises(ReportError, match="a summary, or the source page") as caught:
        parse(path)
    assert "ncu --import" in caught.value.remedy


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (
            "long/units.csv",
            "3 metrics are rounded because ncu printed them in scaled units (for example "
            "gpu__time_duration.sum in usecond); export with --print-units base for exact figures",
        ),
        ("long/twice.csv", "not understood and left out: columns New Column"),
        ("wide/columns.csv", "not understood and left out: columns Not A Metric"),
        (
            "text-tables/four_columns.txt",
            "not understood and left out: parts a table of 4 columns in section S",
        ),
    ],
)
def test_what_is_rounded_or_not_understood_is_a_note(case, text):
    assert text in [note.text for note in parse(CASES / case).diagnostics]


# Results of ncu's rules: read alike from CSV, console text and report files, and as an independent


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "see the\n @section:LaunchStats:Launch Statistics@  section",
            "see the Launch Statistics section",
        ),
        ("@url:Guide:https://x.y/a#b@ says", "Guide (https://x.y/a#b) says"),
        ("@source:C:/a b.cu:12:line 12@ and @sass:0x10:there@", "line 12 and there"),
        ("mail a@b and c@d", "mail a@b and c@d"),
        ("@section:broken", "@section:broken"),
    ],
)
def test_links_in_a_text_read_as_ncu_prints_them(text, shown):
    assert format_rule_text(text) == shown


def test_a_percentage_has_a_point_or_a_comma():
    assert [parse_percent(text) for text in ("47.2", "4,206", "100", "", "1,2,3", "nan%")] == [
        47.2,
        4.206,
        100,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("locale", ["C", "en_US.UTF-8", "de_DE.UTF-8"])
def test_a_report_file_and_its_export_by_ncu_give_the_same_rules_in_every_locale(reports, locale):
    pytest.importorskip("ncu_report")
    export = parsers.parse(reports / f"ncu/locale_generated/lashi_profile.details.{locale}.csv")
    report = parsers.parse(reports / "ncu/rep/lashi_profile.ncu-rep")
    assert Tally(report.advice) == Tally(export.advice)
    assert len(list(export.advice)) == 30
