"""Kernels that match a formula of the user's are a row of the ledger: what the formula gives for
all of them against what they executed."""

from fractions import Fraction

import pytest

from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.records.paper import LayerCall
from perfctl.records.report import Kernel, Range
from perfctl.records.run import Expectation, make_parameter
from tests.make.synthetic import V100, fp_counters, make_run, study_of
from tests.make.tables import table

LAUNCHES = 3
SIZES = (256, 512)
GEMM = "void mm_naive<float>(float*, float*, int)"


def formula(flops, pattern="mm_*", size=None):
    return Expectation(pattern, flops, size, "flops=...", "option")


def run_of(n, *expected, executed=None, **more):
    """A run of LAUNCHES products of n x n matrices, each of n**3 FFMA."""
    kernels = [Kernel(number, GEMM, duration_ns=1000) for number in range(LAUNCHES)]
    macs = n**3 if executed is None else executed // 2
    counters = [item for number in range(LAUNCHES) for item in fp_counters(number, 0, 0, macs)]
    return make_run(
        n,
        **{
            "profiler": "ncu",
            "workload": "mm",
            "batch_size": None,
            "device": V100,
            "parameters": (make_parameter("N", n),),
            "expectations": expected,
            "kernels": kernels,
            "counters": counters,
            **more,
        },
    )


def analysed(*runs):
    return analyse_study(study_of(*runs))


def formula_rows(analysis):
    return [row for row in analysis.ledger.rows if row.kind == "formula"]


def test_a_formula_for_one_launch_is_compared_with_all_its_launches():
    n = SIZES[0]
    (row,) = formula_rows(analysed(run_of(n, formula(2 * n**3))))
    assert (row.name, row.estimated.value, row.executed.value, row.ratio) == (
        "mm_*",
        LAUNCHES * 2 * n**3,
        LAUNCHES * 2 * n**3,
        1.0,
    )
    assert row.time is not None and row.time.median == LAUNCHES * 1000


@table(
    "name",
    {
        "unnamed namespace": f"<unnamed>::{GEMM[5:]}",
        "as ncu for Windows cuts it": "unnamed>::mm_naive(float *, int)",
    },
)
def test_a_pattern_finds_a_kernel_without_its_namespace(name):
    kernels = [Kernel(0, name, duration_ns=1000)]
    (row,) = formula_rows(analysed(run_of(2, formula(16, "mm_naive"), kernels=kernels)))
    assert row.estimated.value == 16


def test_without_counters_the_count_is_derived_from_a_formula_that_is_a_product():
    m, n, k = 128, 256, 512
    expected = Expectation("*sgemm*", 2 * m * n * k, None, "flops=2*M*N*K", "option")
    kernel = Kernel(
        0,
        "ampere_sgemm_128x64_tn",
        duration_ns=1000,
        grid_x=n // 64,
        grid_y=m // 128,
        grid_z=1,
        block_x=128,
        block_y=1,
        block_z=1,
    )
    run = run_of(
        n,
        expected,
        profiler="nsys",
        kernels=[kernel],
        counters=[],
        parameters=[
            make_parameter(name, size) for name, size in zip("MNK", (m, n, k), strict=True)
        ],
    )
    (row,) = formula_rows(analysed(run))
    whole_tiles = 2 * m * n * k + m * n  # and the multiplication by alpha
    assert (row.executed.state, row.executed.value) == ("derived", whole_tiles)


def test_a_range_is_compared_as_a_whole_with_the_kernels_inside():
    n = SIZES[0]
    kernels = [Kernel(number, GEMM, range_number=0) for number in range(LAUNCHES)]
    inside = Range(0, "solve", None, 0, 10, 1, 0, None)
    run = run_of(n, formula(LAUNCHES * 2 * n**3, "solve"), kernels=kernels, ranges=[inside])
    (row,) = formula_rows(analysed(run))
    assert (row.layer, row.ratio) == ("solve", 1.0)


def test_a_launch_of_a_layer_with_an_estimate_stays_in_its_row():
    n = SIZES[0]
    kernels = [Kernel(0, GEMM, layer="fc", direction="forward"), Kernel(1, GEMM)]
    call = LayerCall("fc", "Linear", "forward", n**3, 2 * n**3, 0, 0, 0, 0, None)
    run = run_of(n, formula(2 * n**3), kernels=kernels, layer_calls=(call,))
    rows = {row.layer: row.ratio for row in analysed(run).ledger.rows}
    assert rows == {"fc": 1.0, "mm_*": 1.0}


def test_bytes_of_a_formula_place_it_under_the_roofline_where_none_were_counted():
    n = SIZES[0]
    analysis = analysed(run_of(n, formula(2 * n**3, size=3 * 4 * n**2)))
    (row,) = formula_rows(analysis)
    point = analysis.roofline.get_ledger_row_point(row.batch, row.layer, row.direction)
    assert point is not None and point.traffic.dram.state == "estimated"
    assert point.intensity == pytest.approx(2 * n**3 / (3 * 4 * n**2))


@table(
    "ratios mistakes",
    {
        "2n**3 as n**3": ((2, 2), "multiply-adds instead of FLOPs"),
        "2n**3 as 2n**2": (SIZES, "a factor N left out"),
        "2n**3 as 2n**4": ([Fraction(1, n) for n in SIZES], "a factor N too many"),
        "of all launches": ([Fraction(1, LAUNCHES)] * 2, "all 3 launches together, not one"),
        "2n**3 as n**2": (
            [2 * n for n in SIZES],
            "a factor N left out and multiply-adds instead of FLOPs",
        ),
        "another mistake at each size": ((SIZES[0], 2), None),
        "no common mistake": ((7, 7), None),
        "right": ((1, 1), None),
    },
)
def test_a_wrong_formula_is_explained_by_the_mistake_that_fits_at_every_size(ratios, mistakes):
    """``ratios``: executed / estimated at each of SIZES."""
    runs = [
        run_of(n, formula(round(2 * n**3 / ratio))) for n, ratio in zip(SIZES, ratios, strict=True)
    ]
    analysis = analysed(*runs)
    for row, ratio in zip(formula_rows(analysis), ratios, strict=True):
        assert row.ratio == pytest.approx(float(ratio))
        judged = analysis.judgement.get_row_causes(row.batch, row.layer, row.direction).causes
        found = [cause.facts for cause in judged if cause.rule == "wrong formula"]
        said = [(facts["mistakes"], facts["over"]) for facts in found]
        assert said == ([(mistakes, "every N (256, 512)")] if mistakes else [])


def test_rules_about_products_say_nothing_about_a_formula_that_is_none():
    stencil = run_of(SIZES[0], formula(10**9), executed=3 * 10**9)
    analysis = analysed(stencil)
    (row,) = formula_rows(analysis)
    judged = analysis.judgement.get_row_causes(row.batch, row.layer, row.direction).causes
    assert [cause.rule for cause in judged] == []


def test_a_time_of_other_launches_than_the_counted_ones_is_not_that_of_the_formula():
    n = SIZES[0]
    counted = run_of(n, formula(2 * n**3))
    kernels = [Kernel(number, GEMM, duration_ns=1000) for number in range(LAUNCHES + 1)]
    timed = run_of(n, formula(2 * n**3), id=n + 1, profiler="nsys", kernels=kernels, counters=[])
    (row,) = formula_rows(analysed(counted, timed))
    assert (row.time, row.time_reason) == (None, "nsys timed 4 launches, and ncu measured 3")
    assert row.ratio == 1.0


def test_the_estimate_of_the_capture_is_partial_if_a_kernel_matches_no_formula():
    n = SIZES[0]
    both = [Kernel(0, GEMM), Kernel(1, "other")]
    estimates = []
    for kernels in (both[:1], both):
        (step,) = analysed(
            run_of(n, formula(2 * n**3), kernels=kernels)
        ).roofline.select_points_by_work_level("run")
        estimates.append((step.traffic.estimated, step.traffic.paper_why))
    assert estimates == [(2 * n**3, None), (None, "not included: kernels that match no formula")]


def test_a_count_is_missing_at_the_parameters_where_there_is_no_batch_size():
    timed = run_of(SIZES[0], formula(2), profiler="nsys", counters=[])
    (row,) = formula_rows(analysed(timed))
    assert row.executed.reason == "no ncu run at N=256; run 'perfctl ncu'"
