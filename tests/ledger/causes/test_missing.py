"""Rules about figures that are missing, with rows made by hand: what they say, word for word, and
where they propose nothing."""

from dataclasses import replace

from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.missing_rules import (
    detect_direction_without_kernels,
    detect_fadd_without_ffma,
    detect_missing_counters,
    detect_zero_flops,
    list_missing_direction_causes,
)
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from tests.make.rows import HALF, by_place, call, case, measured, seen_with, work
from tests.make.tables import table

FP32, FP64, FP16 = (
    f"smsp__sass_thread_inst_executed_op_{{{kind}add,{kind}mul,{kind}{fma}}}_pred_on.sum"
    for kind, fma in (("f", "fma"), ("d", "fma"), ("h", "fma"))
)
TENSOR = "sm__ops_path_tensor_src_*.sum (older ncu: sm__inst_executed_pipe_tensor.sum)"
COUNTS = {"ffma": 5.0, "dfma": 0.0, "hfma": 0.0, "pipe": 0.0}
ASKS = "; 'perfctl ncu' collects all of them."
NEWER = f"A newer ncu may support them on this chip{ASKS}"
AGAIN = f"Profile again without excluding launches (--launch-count){ASKS}"


def counted(figure, *kernels):
    row = case(32, *kernels)
    return replace(row, row=replace(row.row, executed=figure))


def without(*counts):
    return {count: value for count, value in COUNTS.items() if count not in counts}


def test_additions_alone_are_named_with_the_multiply_adds_that_they_omit():
    cause = detect_fadd_without_ffma(seen_with(case(32, work("k", fadd=1280), work("l", fadd=40))))
    assert cause is not None and cause.kernels == ("k", "l")
    assert describe_cause(cause) == (
        "fc forward at batch 32: the profiler collected only FADD (1,320). The 32,000 estimated "
        "multiply-adds are FFMA instructions, which FADD does not include."
    )
    assert describe_fix(cause) == f"Collect {FP32}: FLOPs = FADD + FMUL + 2 FFMA{ASKS}"


@table(
    "kernels",
    [
        (work(fadd=5), work(ffma=5)),
        (work(fadd=5), work(fmul=5)),
        (work("s1688gemm", HALF, fadd=5),),
        (work(fmul=5),),
        (),
    ],
)
def test_additions_next_to_products_are_not_alone(kernels):
    assert detect_fadd_without_ffma(seen_with(case(32, *kernels))) is None


@table(
    "lacks parts metrics",
    [
        (("ffma",), "fp32", FP32),
        (("dfma",), "fp64", FP64),
        (("hfma",), "fp16", FP16),
        (("pipe",), "tensor", TENSOR),
        (("dfma", "pipe"), "fp64 and tensor", f"{FP64}, {TENSOR}"),
    ],
)
def test_what_was_not_collected_is_named_with_the_counters_to_ask_for(lacks, parts, metrics):
    lacking = work("k", **without(*lacks))
    figure = Figure(1_500_000.0, "counted", None, 3, 4, missing=("fp64",))
    some = detect_missing_counters(seen_with(counted(figure, work("whole", **COUNTS), lacking)))
    none = detect_missing_counters(
        seen_with(counted(make_missing_figure("not_collected", "x", of_launches=2), lacking))
    )
    assert some is not None and none is not None
    assert describe_cause(some) == (
        "fc forward at batch 32: at least 1.5 MFLOP, because k has no "
        f"{parts.replace(' and ', ' and no ')} counters (3 of 4 launches have a value)."
    )
    assert describe_fix(some) == f"Collect {metrics} for every launch{ASKS}"
    assert some.kernels == ("whole", "k")
    assert describe_cause(none) == (
        f"fc forward at batch 32: no FLOPs, because the profiler did not collect {parts} counters "
        "(0 of 2 launches have a value)."
    )
    assert describe_fix(none) == f"Collect {metrics}{ASKS}"


def refused(reason, **more):
    return replace(work("indices", **COUNTS), flops=make_missing_figure("refused", reason, **more))


def with_figure(figure):
    return counted(figure, replace(work(**COUNTS), flops=figure))


SOME = Figure(10, "counted", None, 1, 2)
TWO_FORMS = work(ffma=5, dfma=0, hfma=0, ops_path=0), work(**COUNTS)
INTEGER = replace(
    work("k", HALF, **without("pipe"), pipe=9), tensor=make_missing_figure("not_available", "x")
)
TENSOR_LACKS = Figure(10, "counted", None, 2, 2, ("tensor",))


@table(
    "row reason fix",
    [
        (
            counted(SOME, *TWO_FORMS),
            "at least 10 FLOP, because 1 of 2 launches have a value.",
            AGAIN,
        ),
        (
            counted(SOME, work(**COUNTS), refused("another reason")),
            "at least 10 FLOP, because another reason (1 of 2 launches have a value).",
            NEWER,
        ),
        (
            with_figure(Figure(10, "counted", "ncu printed n/a", 2, 2, ("fp64", "tensor"))),
            "at least 10 FLOP, because fp64 and tensor counters have no value: ncu printed n/a "
            "(2 of 2 launches have a value).",
            NEWER,
        ),
        (
            with_figure(make_missing_figure("not_available", "ncu printed n/a", of_launches=2)),
            "no FLOPs, because ncu printed n/a (0 of 2 launches have a value).",
            NEWER,
        ),
        (
            with_figure(Figure(None, "not_available", None, 0, 2)),
            "no FLOPs, because ncu printed no value (0 of 2 launches have a value).",
            NEWER,
        ),
        (
            counted(
                Figure(0, "counted", None, 4, 6),
                work("whole", launches=4, **COUNTS),
                work("part", launches=2, **without("dfma")),
            ),
            "no FLOPs, because part has no fp64 counters (4 of 6 launches have a value).",
            f"Collect {FP64} for every launch{ASKS}",
        ),
    ],
)
def test_launches_without_a_value_have_ncus_own_reason(row, reason, fix):
    cause = detect_missing_counters(seen_with(row))
    assert cause is not None
    assert describe_cause(cause) == f"fc forward at batch 32: {reason}"
    assert describe_fix(cause) == fix


@table(
    "row",
    {
        "either form of tensor counters": counted(Figure(10, "counted"), *TWO_FORMS),
        "HFMA2 that may move constants": counted(
            SOME, work(**COUNTS), refused("HFMA2", moves_constants=True)
        ),
        "HFMA2 that moves constants": with_figure(
            Figure(10, "counted", "HFMA2", 2, 2, ("tensor",), moves_constants=True)
        ),
        "a complete count": with_figure(Figure(10, "counted", None, 2, 2)),
        "no kernels": counted(make_missing_figure("not_collected", "x")),
        "additions alone": counted(make_missing_figure("not_collected", "x"), work(fadd=5)),
        "products on tensor cores": counted(TENSOR_LACKS, INTEGER),
    },
)
def test_counters_are_not_missing_if_another_rule_names_the_reason(row):
    assert detect_missing_counters(seen_with(row)) is None


def test_a_count_of_exactly_0_is_a_cause_without_a_factor():
    cause = detect_zero_flops(seen_with(measured(32, work("copy", Algorithm("copy"), ffma=0))))
    assert cause is not None and cause.factor is None
    text = "ran only kernels without FLOPs (1 per step), but the estimate is 64 kFLOP"
    assert text in describe_cause(cause)


AUTOGRAD = (
    "Autograd launches backward from a separate thread: annotate that thread ('perfctl ncu' does "
    "this), or use emit_nvtx."
)
PARTIAL = {"left_out": "the ncu run is partial"}
RERUN = "Profile the complete run again: the ncu run is partial."


@table(
    "direction more fix",
    [
        ("forward", {}, "Look for its kernels among those outside of layers."),
        ("backward", {}, AUTOGRAD),
        ("grad_bias", {}, AUTOGRAD),
        ("backward", PARTIAL, RERUN),
        ("forward", PARTIAL, RERUN),
    ],
)
def test_a_row_without_kernels_names_the_estimate_and_where_to_look(direction, more, fix):
    row = case(32, direction=direction, **more)
    cause = detect_direction_without_kernels(seen_with(row, loose=(work("loose", ffma=32_000),)))
    assert cause is not None and (cause.factor, cause.kernels) == (None, ())
    sentence = "has no kernels in the report, but the estimate is 64 kFLOP."
    assert describe_cause(cause) == f"fc {direction} at batch 32 {sentence}"
    assert describe_fix(cause) == fix


@table(
    "rows",
    {
        "kernels": (case(32, work(ffma=5)),),
        "a layer that ncu was not to count": (case(32, profiled=False),),
        "no estimate": (case(32, calls=()),),
        "its neighbor's kernel does the work": (
            case(32, layer="b", position=1),
            case(32, work(ffma=64_000), layer="a"),
        ),
    },
)
def test_what_has_a_kernel_or_needs_none_is_not_missing(rows):
    assert detect_direction_without_kernels(seen_with(*rows)) is None


def network(*missing, **more):
    """Layers a, b, c, d of 1, 2, 3, 4 thousand multiply-adds per sample and direction at batch 16
    and 64; those ``missing`` have no kernels."""
    return by_place(
        *(
            case(
                batch,
                *(() if (layer, direction) in missing else (work("k", ffma=1),)),
                layer=layer,
                direction=direction,
                calls=(call(batch, direction, macs=1000 * number, layer=layer),),
                position=number,
                **more,
            )
            for batch in (16, 64)
            for number, layer in enumerate("abcd", 1)
            for direction in ("forward", "backward")
        )
    )


def every(direction, layers="abcd"):
    return tuple((layer, direction) for layer in layers)


NO_RANGE = "it may be among the kernels that no range covers"
LEFT_OUT = "ncu excluded launches (--launch-count)"
LOOSE = (work("loose", ffma=6.4e6),)


@table(
    "table loose fix sentence",
    [
        (
            network(*every("backward")),
            (work("loose", ffma=320_000), work("more", ffma=0)),
            AUTOGRAD,
            "The backward pass of every layer has no kernels at batch 64: autograd may have "
            "launched it from a separate thread, which a range around loss.backward() does not cover. The "
            "estimate is 1.28 MFLOP, 50.0% of the step. Kernels outside of layers executed 640 "
            "kFLOP, 50.0% of the estimate.",
        ),
        (
            network(("a", "backward")),
            LOOSE,
            AUTOGRAD,
            "The backward pass of the first layer, a, has no kernels at batch 64: its input "
            "needs no gradient, so a module backward hook may fire before the kernels run. The "
            "estimate is 128 kFLOP, 5.0% of the step. Kernels",
        ),
        (
            network(("b", "backward")),
            LOOSE,
            AUTOGRAD,
            f"Backward of b has no kernels at batch 64: {NO_RANGE}. The estimate is 256 kFLOP, "
            "10.0% of the step. Kernels",
        ),
        (
            network(*every("backward", "abc")),
            LOOSE,
            AUTOGRAD,
            f"Backward of a, b, c has no kernels at batch 64: {NO_RANGE}. The estimate is 768 "
            "kFLOP, 30.0%",
        ),
        (
            network(("a", "forward")),
            LOOSE,
            "Look for its",
            f"Forward of a has no kernels at batch 64: {NO_RANGE}. The estimate is 128 kFLOP, 5.0%",
        ),
        (
            network(*every("forward")),
            LOOSE,
            "Look for its",
            f"Forward of a, b, c and others has no kernels at batch 64: {NO_RANGE}. The estimate "
            "is 1.28 MFLOP, 50.0%",
        ),
        *(
            (
                network(*every("backward")),
                loose,
                "Check whether the recording contains",
                "The backward pass of every layer has no kernels at batch 64: no kernel outside "
                "of layers fits either, so it may not have run during the recording (evaluation, "
                "frozen layers, or a capture that ended before). The estimate",
            )
            for loose in (
                (),
                (work("loose", ffma=1000),),
                (work("copy", Algorithm("copy"), ffma=640_000),),
            )
        ),
        (
            network(*every("backward"), left_out=LEFT_OUT),
            (),
            "Profile the complete run again",
            f"Backward of a, b, c and others has no kernels at batch 64: {LEFT_OUT}, so the "
            "profiler may have missed them. The estimate",
        ),
        (
            network(*every("backward", "abc"), left_out=LEFT_OUT),
            (),
            "Profile the complete run again",
            "Backward of a, b, c has no kernels",
        ),
        (
            network(*every("backward"), mode="infer"),
            LOOSE,
            "Profile training",
            "The backward pass of every layer has no kernels at batch 64: the run is inference, "
            "which has no backward pass. The",
        ),
    ],
)
def test_rows_of_one_direction_without_kernels_are_one_cause(table, loose, fix, sentence):
    (cause,) = list_missing_direction_causes(table, {64: loose, 16: (work("x", ffma=5),)})
    assert describe_cause(cause).startswith(sentence)
    assert cause.kernels == tuple(kernel.name for kernel in loose)
    assert describe_fix(cause).startswith(fix)


def test_each_direction_that_is_missing_has_its_cause():
    causes = list_missing_direction_causes(network(("b", "forward"), *every("backward", "bc")), {})
    starts = [describe_cause(cause).split(" has ")[0] for cause in causes]
    assert starts == ["Forward of b", "Backward of b, c"]
    assert list_missing_direction_causes(network(), {}) == []
