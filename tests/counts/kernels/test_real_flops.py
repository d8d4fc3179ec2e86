"""FLOPs and kernel names of real reports: known truths, and never a silent hole."""

import re
from dataclasses import replace

import pytest

from perfctl import parsers
from perfctl.orchestrator.counts.counters.work import is_flop_counter
from perfctl.orchestrator.counts.kernels.names import recognise_family
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.records.errors import ReportError
from tests.make import synthetic
from tests.make.tables import table

SIDE = 20480
COUNTER = re.compile(r"\b(?:[FDH](?:ADD|MUL|FMA)2?|HFMA2|tensor)\b")


def whole(path):
    """A report with its bulk fields as lists, as the store gives it back."""
    if path.suffix in (".ncu-rep", ".nsight-cuprof-report"):
        pytest.importorskip("ncu_report")
    report = parsers.parse(path)
    return replace(report, kernels=list(report.kernels), counters=list(report.counters))


def flops(path):
    run = replace(
        synthetic.make_run(profiler="ncu", profiler_version=None, device=None), report=whole(path)
    )
    return run, PreparedRun(run).flops_by_launch


def test_a_product_on_volta_is_its_tensor_work_and_one_scale_an_output(reports):
    run, found = flops(reports / "ncu/csv_long/wangzy_roofline_output.csv")
    products = [
        found[kernel.launch]
        for kernel in run.report.kernels
        if recognise_family(kernel.name) == "gemm"
    ]
    assert len(products) == 7
    assert {item.tensor.value for item in products} == {2 * SIDE**3}
    named = next(found[kernel.launch] for kernel in run.report.kernels if "s884gemm" in kernel.name)
    assert named.total.value == 2 * SIDE**3 + SIDE**2 and not named.total.lower_bound
    assert named.total.rule == (
        "fp32: FADD + FMUL + 2 FFMA; "
        "tensor: 512 x tensor instructions (HMMA.884, fp32 accumulation)"
    )


@table("file", ["gardenia_gemm_smsp_sass", "gardenia_share_tile_smsp_sass"])
def test_a_product_on_ampere_names_its_phantom_and_does_not_count_it(file, reports):
    run, found = flops(reports / f"ncu/csv_long/{file}.csv")
    totals = [found[kernel.launch].total for kernel in run.report.kernels]
    product = max(totals, key=lambda total: total.value or 0)
    if file == "gardenia_gemm_smsp_sass":
        assert product.value == 2 * SIDE * SIDE * 81920
    assert "tensor pipe only moved constants" in (product.reason or "")
    assert "HFMA2 moved constants and is not included" in (product.reason or "")
    assert not any(item.tensor.value or item.fp16.value for item in found.values())


def fp_reports(folder):
    for path in sorted((folder / "ncu").rglob("*")):
        if not path.is_file() or path.suffix in (".ncu-rep", ".nsight-cuprof-report"):
            continue
        try:
            if any(is_flop_counter(counter.name) for counter in parsers.parse(path).counters):
                yield path
        except ReportError:
            continue


def named(figure):
    """Every part of the total that is missing has a reason that names a counter."""
    parts = {"fp32": figure.fp32, "fp64": figure.fp64, "fp16": figure.fp16, "tensor": figure.tensor}
    return all(COUNTER.search(item.reason or "") for item in parts.values() if item.value is None)


def test_every_report_with_flop_counters_gets_a_sum_or_the_name_of_what_is_missing(reports):
    seen = 0
    for path in fp_reports(reports):
        run, found = flops(path)
        for kernel in run.report.kernels:
            item = found[kernel.launch]
            assert item.total.value is not None or COUNTER.search(item.total.reason or ""), (
                path.name,
                item.total,
            )
            assert named(item), (path.name, item)
            assert item.total.rule or not item.total.value, (path.name, item.total)
        seen += 1
    assert seen >= 8


@table(
    "file",
    [
        "armleth_mlp_report.ncu-rep",
        "cs599k_h100_silu_2025-04-21.ncu-rep",
    ],
)
def test_report_files_do_so_too(file, reports):
    _, found = flops(reports / "ncu/rep" / file)
    assert found and all(
        named(item) and (item.total.value is None or item.total.rule or item.total.value == 0)
        for item in found.values()
    )
