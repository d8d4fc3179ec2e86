"""Counts that do not follow the batch size, row by row: when they are those of another batch, and
of which."""

from dataclasses import replace

from perfctl.orchestrator.counts.kernels.grids import GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.window_rules import (
    detect_counts_from_other_batch,
    find_work_constant_across_batches,
    list_batches_explaining_counts,
    list_constant_work_causes,
    list_fadd_without_ffma_causes,
)
from perfctl.orchestrator.report.ledger.causes import describe_cause
from tests.make.rows import (
    GEMM,
    by_place,
    call,
    case,
    linear,
    measured,
    partly_counted,
    seen_with,
    work,
)
from tests.make.tables import table

CONV = Algorithm("conv", "implicit gemm")
BATCH_LIMIT = 1 << 20


def find(rows, *loose):
    return find_work_constant_across_batches(
        by_place(*rows), {16: loose, 64: loose} if loose else {}
    )


def reason(window):
    (cause,) = list_constant_work_causes(window)
    return describe_cause(cause)


@table(
    "counts direction batches",
    [
        ({"ffma": 5000}, "forward", {"ffma": 5}),
        ({"ffma": 5500}, "forward", {}),
        ({"ffma": 1000}, "forward", {"ffma": 1}),
        ({"ffma": 0, "fadd": 0}, "forward", {}),
        ({"fadd": 70}, "forward", {"fadd": 7}),
        ({"fmul": 30, "ffma": 2000}, "forward", {"ffma": 2, "fmul": 3}),
        ({"fadd": 70, "fmul": 30}, "grad_weight", {}),
        ({"ffma": 1000 * BATCH_LIMIT}, "forward", {"ffma": BATCH_LIMIT}),
        ({"ffma": 1000 * (BATCH_LIMIT + 1)}, "forward", {}),
    ],
)
def test_one_count_per_multiply_add_or_output_gives_the_batch(counts, direction, batches):
    kernel, row = work(**counts), case(32, direction=direction)
    matches = list_batches_explaining_counts(row, (kernel,))
    assert {match.count: match.batch for match in matches} == batches
    assert all(match.value == counts[match.count] for match in matches)
    others = [replace(kernel, algorithm=Algorithm(family)) for family in ("winograd", "fft")]
    others.append(replace(kernel, algorithm=Algorithm("gemm", role="reduction")))
    assert list_batches_explaining_counts(row, others) == []


def test_counts_that_stay_while_the_work_grows_are_another_batchs():
    rows = [case(batch, work("k", ffma=5000)) for batch in (64, 16, 32)]
    window = find(rows)
    assert window is not None
    assert (window.batch, window.kernels) == (5, ("k",))
    assert window.places == {row.row_key for row in rows}
    assert reason(window).startswith(
        "The executed FLOPs do not change with the batch size: fc forward executed 5,000 FFMA at "
        "batch 16 to 64, which fits a batch of 5. The program may ignore its batch size, or the profiler"
    )
    odd = find([case(batch, work("k", ffma=5500)) for batch in (16, 64)])
    assert odd is not None and odd.batch is None
    assert "fc forward executed the same at batch 16 to 64." in reason(odd)
    assert list_constant_work_causes(None) == []


def rows_of(*counts, batches=(16, 64), **more):
    return [
        case(batch, work(ffma=count), **more) for batch, count in zip(batches, counts, strict=True)
    ]


def half_and(macs):
    """A layer whose count stays, next to one of 1,000 multiply-adds per sample that grows and one
    that was not counted."""
    return [
        row
        for batch in (16, 64)
        for row in (
            case(
                batch, work(ffma=50 * macs), layer="a", calls=(call(batch, macs=macs, layer="a"),)
            ),
            case(batch, work(ffma=1000 * batch), layer="b"),
            case(batch, layer="not counted", calls=(call(batch, macs=10**6),)),
        )
    ]


def staying(algorithm=GEMM, ffma=5000, **more):
    """The count of 5 samples at batch 16 and 64."""
    kernel = work(
        "k", algorithm, more.pop("grid", None), ffma=ffma, launches=more.pop("launches", 1)
    )
    return [
        measured(batch, kernel, forward=GemmShape(batch, 10, 100), **more) for batch in (16, 64)
    ]


def unknown_tiles(*batches):
    """A kernel whose tile no name states, in complete tiles of 64 x 64."""
    return [
        linear(
            GemmShape(batch, 512, 100),
            work("triton", Algorithm("gemm"), ffma=-(-batch // 64) * 64 * 512 * 100),
        )
        for batch in batches
    ]


def named_tiles(*batches):
    kernel = work("k", Algorithm("gemm", "gemm", (128, 64, None)), (1, 1, 1), ffma=128 * 64 * 100)
    return [linear(GemmShape(batch, 64, 100), kernel) for batch in batches]


def of_ranks(*worlds):
    return [
        measured(
            batch,
            work("k", grid=(64, 1, 1), ffma=32_000),
            environment={"world_size": str(world)} if world > 1 else {},
        )
        for batch, world in zip((32, 64, 128), worlds, strict=True)
    ]


def sliced(tiles):
    """20 parts of 628, padded to 640: 12,800 of 12,544."""
    algorithm = Algorithm("gemm", "gemm", tile=(32, 32, None))
    area = tiles * 32 * 1024
    counts = {"ffma": area * 12_800, "fmul": 80 * area, "fadd": 60 * area}
    kernel = work("ampere_sgemm_32x32_sliced1x4_tn", algorithm, **counts)
    return [linear(GemmShape(batch, 1024, 12_544), kernel) for batch in (6, 10)]


@table(
    "rows is_window",
    {
        "half as much work again": (rows_of(5000, 5000, batches=(2, 3)), True),
        "less than half as much again": (rows_of(5000, 5000, batches=(5, 7)), False),
        "less than a thousandth more": (rows_of(10_000, 10_009), True),
        "a thousandth more": (rows_of(10_000, 10_011), False),
        "a thousandth less": (rows_of(10_011, 10_000), False),
        "no count": (rows_of(0, 0), False),
        "one batch size": (rows_of(5000, batches=(16,)), False),
        **{
            f"{macs} of {macs + 1000} stay": (half_and(macs), macs > 1000)
            for macs in (999, 1000, 1001)
        },
        "a linear layer": (staying(), True),
        "a recurrent layer": (staying(kind="LSTM"), False),
        # 2:4 sparsity counts half of a tile that both batches fit
        "one row of tiles": (
            staying(Algorithm("gemm", "gemm", (128, 64, None)), 64 * 128 * 50, grid=(1, 1, 1)),
            False,
        ),
        "one tile of 128 rows": (named_tiles(64, 128), False),
        "one row of tiles of an unknown size": (unknown_tiles(1, 8, 32), False),
        "one rank": (of_ranks(1, 1, 1), True),
        "more ranks with as many samples each": (of_ranks(1, 2, 4), False),
        "each batch fits one tile": (sliced(1), False),
        "60 tiles in a row are no batch of 10": (sliced(60), True),
    },
)
def test_a_count_that_stays_is_a_window_if_the_batch_must_change_it(rows, is_window):
    assert (find(rows) is not None) is is_window


@table(
    "rows batch",
    {
        "each product once": (staying(ffma=6000), 6),
        "6 samples once, or 3 twice": (staying(ffma=6000, launches=2), None),
        "partly counted": ([partly_counted(row) for row in staying()], None),
        # additions of an epilogue propose no batch next to multiply-adds
        "FADD": ([measured(batch, work("k", ffma=5000, fadd=150)) for batch in (16, 64)], 5),
    },
)
def test_a_window_names_a_batch_if_only_one_explains_the_counts(rows, batch):
    window = find(rows)
    assert window is not None and window.batch == batch


@table(
    "counts phrase",
    [
        (
            {"ffma": 5000},
            "5,000 FFMA at batch 16 to 64. This is one FFMA per multiply-add of fc for a batch "
            "of 5 (5 x 1,000)",
        ),
        (
            {"fadd": 70},
            "70 FADD at batch 16 to 64. This is one add per output of fc for a batch of 7 (7 x 10)",
        ),
        (
            {"fmul": 30},
            "30 FMUL at batch 16 to 64. This is one multiply per output of fc for a batch of 3 "
            "(3 x 10)",
        ),
        (
            {"ffma": 5000, "fadd": 20},
            "20 FADD at batch 16 to 64. This is one add per output of fc for a batch of 2 (2 x 10)",
        ),
        ({"ffma": 5500}, "the same at batch 16 to 64"),
    ],
)
def test_kernels_of_no_layer_show_whose_outputs_they_are(counts, phrase):
    rows = case(16), case(64), case(64, direction="grad_weight", layer="other")
    window = find(rows, work("k", **counts))
    assert window is not None
    assert (window.places, window.kernels) == (frozenset(), ("k",))
    assert f": k executed {phrase}. The program may ignore its batch size, or" in reason(window)
    assert (window.batch is None) is ("the same" in phrase)


@table("batch is_padded", [(100, True), (64, True), (32, False)])
def test_a_batch_of_the_largest_or_beyond_may_be_one_that_the_program_pads_to(batch, is_padded):
    phrase = f"or the program pads every batch to {batch:,}"
    assert (phrase in reason(find(rows_of(1000 * batch, 1000 * batch)))) is is_padded


def test_a_convolutions_kernel_serves_no_linear_layer():
    kernel = work("k", CONV, ffma=5000)
    window = find((case(16), case(64)), kernel)
    assert window is not None and window.batch is None
    conv = find((case(64), case(64, layer="conv", kind="Conv2d")), kernel)
    assert "of conv for a batch of 5" in reason(conv)


STAYING = work("k", ffma=5000)


@table(
    "loose is_window",
    [
        *(
            ({16: (STAYING, work("m", ffma=1)), 64: (STAYING, work("m", ffma=most))}, most < 5000)
            for most in (5001, 5000, 4999)
        ),
        *(
            (dict.fromkeys((16, 64), (replace(STAYING, algorithm=other),)), False)
            for other in (Algorithm(None), Algorithm("gemm", role="sum"), Algorithm("elementwise"))
        ),
        ({64: (STAYING,)}, False),
        ({16: (STAYING, STAYING), 64: (work("k", ffma=10_000),)}, True),  # several grids
    ],
)
def test_of_kernels_of_no_layer_products_that_stay_must_outweigh_those_that_grow(loose, is_window):
    assert (
        find_work_constant_across_batches(by_place(case(16), case(64)), loose) is not None
    ) is is_window


def test_a_row_of_the_wrong_window_says_whose_count_it_has():
    cause = detect_counts_from_other_batch(
        seen_with(case(16, work(ffma=5000), counted=10_000).replace_profiled_batch(40))
    )
    assert cause is not None and cause.factor == 2.5
    assert describe_cause(cause) == (
        "fc forward at batch 16 has the executed FLOPs of a batch of 40, 2.50 times the estimate, "
        "at every batch size."
    )


@table(
    "row",
    [
        case(16, work(ffma=5000)),
        case(16, work(ffma=5000)).replace_profiled_batch(16),
        case(16).replace_profiled_batch(40),
        case(16, work(other=5)).replace_profiled_batch(40),
    ],
)
def test_a_row_of_its_own_batch_or_without_counts_is_in_no_wrong_window(row):
    assert detect_counts_from_other_batch(seen_with(row)) is None


FADD_ONLY = "FADD omits the multiply-adds, which are FFMA instructions."


@table(
    "kernels sentence",
    [
        (
            (work("other", fadd=9, ffma=9), work("large", fadd=640), work("none", fmul=999)),
            f"640 in large. {FADD_ONLY} One output of fc needs 100 multiply-adds, so FFMA should "
            "be 64,000.",
        ),
        ((work("odd", fadd=645),), f"645 in odd. {FADD_ONLY}"),
        ((work("conv", CONV, fadd=640),), f"640 in conv. {FADD_ONLY}"),
        ((work("whole", fadd=5, ffma=5),), None),
    ],
)
def test_additions_alone_outside_of_layers_name_the_multiply_adds_that_are_missing(
    kernels, sentence
):
    table = by_place(case(16), case(64), case(64, direction="grad_weight"))
    small = () if sentence is None else (work("small", fadd=160),)
    causes = list_fadd_without_ffma_causes(table, {16: small, 64: kernels})
    start = "The profiler collected only FADD: "
    assert [describe_cause(cause) for cause in causes] == ([start + sentence] if sentence else [])
    assert list_fadd_without_ffma_causes(by_place(case(16, work(ffma=5))), {64: kernels}) == []
