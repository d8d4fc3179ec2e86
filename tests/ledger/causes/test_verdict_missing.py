"""Rules about figures that are not there, with rows made by hand: what they say, word for word, and
where they keep silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.counts.figure import Figure, missing
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.evidence import KernelGroup, RowEvidence
from perfctl.orchestrator.ledger.causes.missing_rules import (
    direction_missing,
    directions_missing,
    fadd_alone,
    not_collected,
)
from perfctl.orchestrator.ledger.causes.rule import RuleInput
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from tests.make.rows import by_place, call, case, work

FP32 = "smsp__sass_thread_inst_executed_op_{fadd,fmul,ffma}_pred_on.sum"
FP64 = "smsp__sass_thread_inst_executed_op_{dadd,dmul,dfma}_pred_on.sum"
FP16 = "smsp__sass_thread_inst_executed_op_{hadd,hmul,hfma}_pred_on.sum"
TENSOR = "sm__ops_path_tensor_src_*.sum (older ncu: sm__inst_executed_pipe_tensor.sum)"
WHOLE = {"ffma": 5.0, "dfma": 0.0, "hfma": 0.0, "pipe": 0.0}


def scene(one: RowEvidence, *others: RowEvidence) -> RuleInput:
    return RuleInput(one, by_place(one, *others))


def counted(figure: Figure, *works: KernelGroup) -> RowEvidence:
    made = case(32, *works)
    return replace(made, row=replace(made.row, counted=figure))


def test_additions_alone_are_said_with_the_multiply_adds_that_they_omit() -> None:
    said = fadd_alone(scene(case(32, work("k", fadd=1280), work("l", fadd=40))))
    assert said is not None
    assert describe_cause(said) == (
        "fc forward at batch 32: the profiler collected only FADD (1,320). The 32,000 estimated "
        "multiply-adds are FFMA instructions, which FADD does not include."
    )
    assert (
        describe_fix(said)
        == f"Collect {FP32}: FLOPs = FADD + FMUL + 2 FFMA; 'perfctl ncu' collects all of them."
    )
    assert (said.rule, said.factor, said.kernels) == ("FADD alone", None, ("k", "l"))
    tensor = Algorithm("gemm", "gemm", tensor_core=True, math="tf32")
    for works in (
        (work(fadd=5), work(ffma=5)),
        (work(fadd=5), work(fmul=5)),
        (work("s1688gemm", tensor, fadd=5),),
        (work(fmul=5),),
        (),
    ):
        assert fadd_alone(scene(case(32, *works))) is None


@pytest.mark.parametrize(
    ("lacks", "parts", "metrics"),
    [
        (("ffma",), "fp32", FP32),
        (("dfma",), "fp64", FP64),
        (("hfma",), "fp16", FP16),
        (("pipe",), "tensor", TENSOR),
        (("dfma", "pipe"), "fp64 and tensor", f"{FP64}, {TENSOR}"),
    ],
)
def test_what_was_not_collected_is_named_with_the_counters_to_ask_for(
    lacks: tuple[str, ...], parts: str, metrics: str
) -> None:
    counts = {count: value for count, value in WHOLE.items() if count not in lacks}
    figure = Figure(1_500_000.0, "counted", None, 3, 4, missing=("fp64",))
    said = not_collected(scene(counted(figure, work("whole", **WHOLE), work("k", **counts))))
    assert said is not None
    assert describe_cause(said) == (
        "fc forward at batch 32: at least 1.5 MFLOP, because k has no "
        f"{parts.replace(' and ', ' and no ')} counters (3 of 4 launches have a value)."
    )
    assert (
        describe_fix(said)
        == f"Collect {metrics} for every launch; 'perfctl ncu' collects all of them."
    )
    assert (said.rule, said.factor, said.kernels) == ("counter not collected", None, ("whole", "k"))
    none = not_collected(
        scene(counted(missing("not_collected", "x", of_launches=2), work("k", **counts)))
    )
    assert none is not None
    assert describe_fix(none) == f"Collect {metrics}; 'perfctl ncu' collects all of them."
    assert describe_cause(none) == (
        f"fc forward at batch 32: no FLOPs, because the profiler did not collect {parts} counters "
        "(0 of 2 launches have a value)."
    )


def test_either_form_of_tensor_counters_will_do() -> None:
    works = (work(ffma=5, dfma=0, hfma=0, ops_path=0), work(**WHOLE))
    assert not_collected(scene(counted(Figure(10, "counted"), *works))) is None
    (said,) = [not_collected(scene(counted(Figure(10, "counted", None, 1, 2), *works)))]
    assert said is not None
    assert (
        describe_cause(said)
        == "fc forward at batch 32: at least 10 FLOP, because 1 of 2 launches have a value."
    )
    assert describe_fix(said) == (
        "Profile again without excluding launches (--launch-count); 'perfctl ncu' collects all "
        "of them."
    )


def test_a_launch_whose_hfma2_may_only_move_constants_was_counted() -> None:
    doubt = replace(
        work("indices", **WHOLE),
        flops=missing(
            "refused", "HFMA2 may only have moved constants: not included", moves_constants=True
        ),
    )
    figure = Figure(10, "counted", None, 1, 2)
    assert not_collected(scene(counted(figure, work(**WHOLE), doubt))) is None
    other = replace(doubt, flops=missing("refused", "another reason"))
    said = not_collected(scene(counted(figure, work(**WHOLE), other)))
    assert said is not None and "because another reason (1 of 2 launches" in describe_cause(said)
    assert "--launch-count" not in describe_fix(said), "no launch was left out"


@pytest.mark.parametrize(
    ("figure", "why"),
    [
        (
            Figure(10, "counted", "ncu printed n/a", 2, 2, ("fp64", "tensor")),
            (
                "at least 10 FLOP, because fp64 and tensor counters have no value: ncu printed "
                "n/a (2 of 2 launches have a value)."
            ),
        ),
        (
            missing("not_available", "ncu printed n/a", of_launches=2),
            ("no FLOPs, because ncu printed n/a (0 of 2 launches have a value)."),
        ),
        (
            Figure(None, "not_available", None, 0, 2),
            ("no FLOPs, because ncu printed no value (0 of 2 launches have a value)."),
        ),
        (Figure(10, "counted", "HFMA2", 2, 2, ("tensor",), moves_constants=True), None),
        (Figure(10, "counted", None, 2, 2), None),
    ],
)
def test_counters_without_a_value_say_ncus_own_reason(figure: Figure, why: str | None) -> None:
    said = not_collected(scene(counted(figure, replace(work(**WHOLE), flops=figure))))
    assert (describe_cause(said) if said else None) == (
        f"fc forward at batch 32: {why}" if why else None
    )
    if said:
        assert (
            describe_fix(said)
            == "A newer ncu may support them on this chip; 'perfctl ncu' collects all of them."
        )
    assert not_collected(scene(counted(figure))) is None, "no kernels"
    assert not_collected(scene(counted(figure, work(fadd=5)))) is None, "that is a rule of its own"


def test_counters_that_tensor_cores_explain_are_theirs() -> None:
    half = Algorithm("gemm", "gemm", tensor_core=True, math="fp16")
    kernel = replace(
        work("k", half, ffma=0, dfma=0, hfma=0, pipe=9), tensor=missing("not_available", "shape")
    )
    figure = Figure(10, "counted", None, 2, 2, ("tensor",))
    assert not_collected(scene(counted(figure, kernel))) is None
    assert (
        not_collected(
            scene(counted(figure, replace(kernel, algorithm=Algorithm("gemm"), counts=WHOLE)))
        )
        is not None
    )


AUTOGRAD = (
    "Autograd launches backward from a separate thread: annotate that thread ('perfctl ncu' does "
    "this), or use emit_nvtx."
)


@pytest.mark.parametrize(
    ("direction", "more", "todo"),
    [
        ("forward", {}, "Look for its kernels among those outside of layers."),
        *(
            (direction, {}, AUTOGRAD)
            for direction in ("backward", "grad_input", "grad_weight", "grad_bias")
        ),
        (
            "backward",
            {"left_out": "the ncu run is partial"},
            "Profile the complete run again: the ncu run is partial.",
        ),
        (
            "forward",
            {"left_out": "the ncu run is partial"},
            "Profile the complete run again: the ncu run is partial.",
        ),
    ],
)
def test_a_row_without_kernels_says_what_paper_has_and_where_to_look(
    direction: str, more: dict[str, Any], todo: str
) -> None:
    row = case(32, direction=direction, **more)
    said = direction_missing(RuleInput(row, by_place(row), (work("loose", ffma=32_000),)))
    assert said is not None
    assert (
        describe_cause(said)
        == f"fc {direction} at batch 32 has no kernels in the report, but the estimate is 64 "
        "kFLOP."
    )
    assert (said.rule, said.factor, describe_fix(said), said.kernels) == (
        "direction missing",
        None,
        todo,
        (),
    )


def test_what_ncu_did_not_look_at_or_has_nothing_on_paper_is_not_missing() -> None:
    assert direction_missing(scene(case(32, work(ffma=5)))) is None
    assert direction_missing(scene(case(32, profiled=False))) is None
    assert direction_missing(scene(case(32, calls=()))) is None
    owner = case(32, work(ffma=64_000), layer="a", position=0)
    served = case(32, layer="b", position=1)
    assert direction_missing(scene(served, owner)) is None, "its neighbour's kernel does it"


def network(
    *missing: tuple[str, str], batches: tuple[int, ...] = (16, 64), **more: Any
) -> dict[Any, RowEvidence]:
    """Layers a, b, c, d of 1, 2, 3, 4 thousand multiply-adds a sample each way; those ``missing``
    have no kernels."""
    made = []
    for batch in batches:
        for position, layer in enumerate("abcd"):
            for direction in ("forward", "backward"):
                calls = (call(batch, direction, macs=1000 * (position + 1), layer=layer),)
                works = () if (layer, direction) in missing else (work("k", ffma=1),)
                made.append(
                    case(
                        batch,
                        *works,
                        layer=layer,
                        direction=direction,
                        calls=calls,
                        position=position,
                        **more,
                    )
                )
    return by_place(*made)


def test_backward_of_every_layer_is_autograds_thread() -> None:
    cases = network(*((layer, "backward") for layer in "abcd"))
    (said,) = directions_missing(
        cases, {64: (work("loose", ffma=320_000), work("more", ffma=0)), 16: (work("x", ffma=5),)}
    )
    assert describe_cause(said) == (
        "The backward pass of every layer has no kernels at batch 64: autograd launches it from "
        "a separate thread, which a range around loss.backward() does not cover. The estimate is "
        "1.28 MFLOP, 50.0% of the step. Kernels outside of layers executed 640 kFLOP, 50.0% of the "
        "estimate."
    )
    assert (describe_fix(said), said.kernels) == (AUTOGRAD, ("loose", "more"))


@pytest.mark.parametrize(
    ("missing", "start"),
    [
        (
            (("a", "backward"),),
            (
                "The backward pass of the first layer, a, has no kernels at batch 64: its input "
                "needs no gradient, so a module backward hook fires before the kernels run. The "
                "estimate is 128 kFLOP, 5.0% of the step."
            ),
        ),
        (
            (("b", "backward"),),
            (
                "Backward of b has no kernels at batch 64: no range covers its kernels. The "
                "estimate is 256 kFLOP, 10.0% of the step."
            ),
        ),
        (
            (("a", "backward"), ("b", "backward"), ("c", "backward")),
            (
                "Backward of a, b, c has no kernels at batch 64: no range covers its kernels. "
                "The estimate is 768 kFLOP, 30.0% of the step."
            ),
        ),
        (
            (("a", "forward"),),
            (
                "Forward of a has no kernels at batch 64: no range covers its kernels. The "
                "estimate is 128 kFLOP, 5.0% of the step."
            ),
        ),
        (
            tuple((layer, "forward") for layer in "abcd"),
            (
                "Forward of a, b, c and others has no kernels at batch 64: no range covers its "
                "kernels. The estimate is 1.28 MFLOP, 50.0% of the step."
            ),
        ),
    ],
)
def test_which_directions_are_missing_and_how_much_of_paper_that_is(
    missing: tuple[tuple[str, str], ...], start: str
) -> None:
    outside = {64: (work("loose", ffma=6.4e6),)}
    (said,) = directions_missing(network(*missing), outside)
    assert describe_cause(said).startswith(
        start + " Kernels outside of layers executed 12.8 MFLOP, "
    )
    assert said.kernels == ("loose",)


@pytest.mark.parametrize(
    "loose", [(), (work("loose", ffma=1000),), (work("copy", Algorithm("copy"), ffma=640_000),)]
)
def test_backward_did_not_run_where_no_kernel_outside_of_layers_could_be_it(loose: Any) -> None:
    (said,) = directions_missing(network(*((layer, "backward") for layer in "abcd")), {64: loose})
    assert describe_cause(said).startswith(
        "The backward pass of every layer has no kernels at batch 64: no kernel outside of "
        "layers fits either, so it did not run during the recording (evaluation, frozen layers, "
        "or a capture that ended before). The estimate"
    )
    assert "utograd" not in describe_cause(said) + describe_fix(said) and describe_fix(
        said
    ).startswith("Check whether the recording contains")


def test_what_was_left_out_may_have_run_unseen() -> None:
    missing = tuple((layer, "backward") for layer in "abcd")
    cases = network(*missing, left_out="ncu excluded launches (--launch-count)")
    (said,) = directions_missing(cases, {})
    assert describe_cause(said).startswith(
        "Backward of a, b, c and others has no kernels at batch 64: ncu excluded launches "
        "(--launch-count), so the profiler may have missed them. The estimate"
    )
    three = network(*missing[:3], left_out="the ncu run is partial")
    assert describe_cause(directions_missing(three, {})[0]).startswith(
        "Backward of a, b, c has no kernels"
    )


def test_each_direction_that_is_missing_has_its_sentence() -> None:
    said = directions_missing(network(("b", "forward"), ("b", "backward"), ("c", "backward")), {})
    assert [describe_cause(item).split(" has ")[0] for item in said] == [
        "Forward of b",
        "Backward of b, c",
    ]
    assert directions_missing(network(), {}) == []


@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("train", "autograd launches it from a separate thread"),
        (None, "autograd launches it from a separate thread"),
        ("infer", "the run is inference, which has no backward pass"),
    ],
)
def test_backward_that_inference_has_not_is_not_looked_for_on_autograds_thread(
    mode: str | None, cause: str
) -> None:
    forward = case(32, work(ffma=32_000), counted=64_000, mode=mode)
    backward = case(32, direction="backward", mode=mode)
    loose = {32: (work("loose", ffma=32_000),)}
    (said,) = directions_missing(by_place(forward, backward), loose)
    assert cause in describe_cause(said)
    (row,) = [
        found
        for found in [
            direction_missing(RuleInput(backward, by_place(forward, backward), loose[32]))
        ]
        if found
    ]
    assert ("utograd" in describe_fix(row)) is (mode != "infer")
