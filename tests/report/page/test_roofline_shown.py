"""The roofline on the page: roofs with their source, points with their sentence, refused ones
not drawn."""

import re
from dataclasses import replace

import pytest

from perfctl.orchestrator.ledger.roofline import Roofline, build_roofline_point
from perfctl.orchestrator.report.ledger.roofline import (
    build_bound_cell,
    build_roofline_tables,
    describe_device_peaks,
    describe_roofline_bound,
    draw_roofline_charts_by_precision,
)
from perfctl.orchestrator.report.page.page import render_view_as_html
from perfctl.orchestrator.report.page.sections import build_report_view
from perfctl.records.report import Counter
from tests.make import synthetic
from tests.make.tables import table
from tests.make.traffic import PEAKS, counted, traffic
from tests.report.outline import analysed

WHEN = "2026-11-20T20:40:00Z"
HOSTILE = "</script><img src=x onerror=alert(1)> $\\frac{1}{2}$ \x00 \ud800"


def with_bytes(runs, each):
    def add(run):
        extra = [
            Counter(kernel.launch, "dram__bytes.sum", each, "byte") for kernel in run.report.kernels
        ]
        return synthetic.with_report(run, counters=[*run.report.counters, *extra])

    return [add(run) if run.report.counters else run for run in runs]


@pytest.fixture
def found():
    """conv2 forward at batch 64: 679,477,248 FLOP executed, 100,000 bytes."""
    return analysed(*with_bytes(synthetic.gpu_pair(1, 64), 100_000))


def test_the_sentence_has_the_number_behind_the_word_the_roofs_their_source_and_each_level_a_table(
    found,
):
    point = found.roofline.get_ledger_row_point(64, "conv2", "forward")
    assert point is not None
    intensity = synthetic.macs("conv2", 64) / 100_000
    ridge = 80 * 64 * 2 * 1.53e9 / 900e9
    said = describe_roofline_bound(point, found.roofline) or ""
    assert said.startswith(
        f"compute-bound: {intensity:.0f} FLOP per byte, above the ridge at {ridge:.1f}"
    )
    assert (
        build_bound_cell(point, found.roofline).text
        == f"compute {round((point.reached or 0) * 100)}%"
    )
    note = describe_device_peaks(found.roofline)
    assert "published values of the V100 SXM2, dense" in note and "memory 900 GB/s" in note
    captions = [table.caption for table in build_roofline_tables(found.roofline, {})]
    assert captions == [
        "Complete steps: utilization",
        "Roofline of the layers",
        "Roofline of the kernels, batch 64",
    ]


def test_refused_points_are_not_drawn_and_counted_in_the_note():
    roofs = analysed(*with_bytes(synthetic.gpu_pair(1, 64), 20_000_000)).roofline
    (drawn,) = draw_roofline_charts_by_precision("s1", roofs, {}, {})
    over = [p for p in roofs.select_points_by_work_level("layer") if p.refused]
    assert over and f"{len(over)} refused and not drawn" in drawn.note
    assert not any(f">{p.traffic.name}<" in drawn.svg for p in over)
    assert ">conv2 backward<" in drawn.svg


def with_levels(runs, tensor=""):
    """Bytes of L1 and L2, three and nine times those of DRAM; FLOPs of the layer ``tensor`` on
    tensor cores."""
    found = []
    for run in with_bytes(runs, 1_000_000):
        extra, counters = [], list(run.report.counters)
        for kernel in run.report.kernels if counters else ():
            extra += [
                Counter(kernel.launch, f"{name}.sum", 1_000_000 * many, "byte")
                for name, many in (("lts__t_bytes", 3), ("l1tex__t_bytes", 9))
            ]
            if kernel.layer == tensor:
                counters = [
                    one
                    for one in counters
                    if one.launch != kernel.launch or one.name.startswith("dram")
                ]
                counters += synthetic.fp_counters(kernel.launch, 0, 0, 0, pipe=None)
                extra.append(
                    Counter(kernel.launch, "sm__ops_path_tensor_src_fp16.sum", 50_000_000, "op")
                )
        found.append(synthetic.with_report(run, counters=[*counters, *extra]))
    return found


def test_each_precision_has_a_drawing_with_a_slope_and_a_shape_for_each_level():
    roofs = analysed(*with_levels(synthetic.gpu_pair(1, 64), "fc1")).roofline
    drawings = draw_roofline_charts_by_precision("s1", roofs, {}, {})
    assert [re.search(r"and the (.+) ceilings", one.title)[1] for one in drawings] == [
        "fp32",
        "tensor fp16",
    ]  # type: ignore[index]
    fp32, tensor = drawings
    assert all(text in fp32.svg for text in ("▲ L1 15.7 TB/s", "■ L2 3.13 TB/s", "● DRAM 900 GB/s"))
    assert "triangles: L1, squares: L2, circles: DRAM" in fp32.note
    points = [
        one
        for one in roofs.select_points_by_work_level("layer")
        if one.path == "fp32"
        for level in one.levels
        if level.reached
    ]
    assert fp32.svg.count('class="hit"') == len(points) > 10
    assert 'data-layer="fc1"' not in fp32.svg and 'data-trail="fc1/forward/64"' in tensor.svg
    said = re.search(r'data-trail="conv2/forward/64"[^>]*aria-label="([^"]*L2[^"]*)"', fp32.svg)
    executed = synthetic.macs("conv2", 64)  # Winograd: half of 2 a multiply-add
    assert (
        said is not None
        and f"{executed / 3e6:.0f} FLOP/B" in said[1]
        and "kernel " in said[1]
        and "bound by compute" in said[1]
    )


@table(
    "moved text said",
    {
        "half of the bandwidth": (
            5e8,
            "unknown",
            "unknown: the executed FLOPs are a lower bound; its bytes reach 50.0% of 1.00 TB/s",
        ),
        "nine tenths of the bandwidth": (
            9e8,
            "memory 90%",
            "memory-bound: its bytes reach 90.0% of 1.00 TB/s",
        ),
    },
)
def test_a_lower_bound_of_flops_is_on_no_side_of_the_ridge(moved, text, said):
    work = traffic(dram=moved, executed=counted(2e9, missing=("fp16",)))
    roofs = Roofline(PEAKS, (), ())
    cell = build_bound_cell(build_roofline_point(work, PEAKS), roofs)
    assert (cell.text, cell.title) == (text, said)


def test_the_table_by_level_has_the_points_of_the_drawing(found):
    roofs = analysed(*with_levels(synthetic.gpu_pair(1, 64))).roofline
    (table,) = [
        one for one in build_roofline_tables(roofs, {}) if one.caption == "Roofline of the layers"
    ]
    heads = [column.label for column in table.columns]
    rows = {(row[0].value, row[heads.index("level")].text): row for row in table.rows}
    for point in roofs.select_points_by_work_level("layer"):
        for one in point.levels:
            row = rows[point.traffic.name, one.level]
            assert row[heads.index("intensity")].value == pytest.approx(one.intensity, rel=1e-5)
            assert row[heads.index("of attainable")].value == (
                None if one.reached is None else pytest.approx(one.reached, abs=1e-6)
            )
    assert len(table.marks) == len(table.rows) and table.marks[0] == ("conv1", "forward")
    plain = build_roofline_tables(found.roofline, {})[1]
    assert "level" not in {column.label for column in plain.columns}, "DRAM alone"


def test_without_bytes_there_is_no_drawing_and_without_measured_roofs_the_page_says_how_to_get_them():
    roofs = analysed(*synthetic.gpu_pair(1, 64)).roofline
    assert draw_roofline_charts_by_precision("s1", roofs, {}, {}) == ()
    table = build_roofline_tables(roofs, {})[1]
    assert any("no DRAM bytes were measured" in note for note in table.notes)
    view = build_report_view([synthetic.cpu_run(1, 16)], generated_at=WHEN)
    page = render_view_as_html(view, "run.html")
    assert "perfctl has no published peaks for CPUs" in page and "--peaks measured" in page


def test_a_rule_of_the_executed_flops_is_no_reason_for_a_missing_utilization():
    roofs = analysed(*synthetic.gpu_pair(1, 64)).roofline
    points = tuple(
        replace(
            point,
            hfu=None,
            traffic=replace(
                point.traffic, executed=replace(point.traffic.executed, reason="a rule")
            ),
        )
        for point in roofs.above_kernels
    )
    notes = build_roofline_tables(replace(roofs, above_kernels=points), {})[1].notes
    assert any("HFU" in note for note in notes) and not any("a rule" in note for note in notes)
