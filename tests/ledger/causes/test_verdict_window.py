"""Counts that do not follow the batch size, row by row: when they are taken for another batch's,
and for which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.rule import RuleInput
from perfctl.orchestrator.ledger.causes.window_rules import (
    BatchMatch,
    Window,
    find_window,
    match_batches,
    unattributed_fadds,
    window_cause,
    wrong_window,
)
from perfctl.orchestrator.report.ledger.causes import describe_cause
from tests.make.rows import by_place, call, case, work

CONV = Algorithm("conv", "implicit gemm")
FORWARD_LIMIT = 1 << 20


def reason(window: Window) -> str:
    (cause,) = window_cause(window)
    return describe_cause(cause)


def triples(matches: list[BatchMatch]) -> list[tuple[str, float, int]]:
    return [(match.count, match.value, match.batch) for match in matches]


@pytest.mark.parametrize(
    ("counts", "direction", "found"),
    [
        ({"ffma": 5000}, "forward", [("ffma", 5000, 5)]),
        ({"ffma": 5500}, "forward", []),
        ({"ffma": 1000}, "forward", [("ffma", 1000, 1)]),
        ({"ffma": 0, "fadd": 0}, "forward", []),
        ({"fadd": 70}, "forward", [("fadd", 70, 7)]),
        ({"fmul": 30, "ffma": 2000}, "forward", [("ffma", 2000, 2), ("fmul", 30, 3)]),
        ({"fadd": 70, "fmul": 30}, "grad_weight", []),
        (
            {"ffma": 1000 * FORWARD_LIMIT},
            "forward",
            [("ffma", 1000 * FORWARD_LIMIT, FORWARD_LIMIT)],
        ),
        ({"ffma": 1000 * (FORWARD_LIMIT + 1)}, "forward", []),
    ],
)
def test_a_batch_is_read_off_one_count_a_multiply_add_or_an_output(
    counts: dict[str, float], direction: str, found: list[tuple[str, float, int]]
) -> None:
    seen = work(**counts)
    assert triples(match_batches(case(32, direction=direction), (seen,))) == found
    others = [replace(seen, algorithm=Algorithm(family)) for family in ("winograd", "fft")]
    others.append(replace(seen, algorithm=Algorithm("gemm", role="reduction")))
    assert match_batches(case(32, direction=direction), others) == []


def test_counts_that_stay_while_the_work_grows_are_another_batch_s() -> None:
    cases = by_place(*(case(batch, work("k", ffma=5000)) for batch in (64, 16, 32)))
    found = find_window(cases, {})
    assert found is not None
    assert (found.batch, found.places, found.kernels) == (5, frozenset(cases), ("k",))
    (said,) = window_cause(found)
    assert said.rule == "wrong window"
    assert describe_cause(said).startswith(
        "The executed FLOPs do not change with the batch size: fc forward executed 5,000 FFMA at "
        "batch 16 to 64, which fits a batch of 5. The profiler recorded"
    )
    assert window_cause(None) == []
    nobody = find_window(by_place(*(case(batch, work("k", ffma=5500)) for batch in (16, 64))), {})
    assert nobody is not None
    assert nobody.batch is None
    assert "fc forward executed the same at batch 16 to 64." in reason(nobody)


@pytest.mark.parametrize(
    ("batches", "counts", "stays"),
    [
        ((2, 3), (5000, 5000), True),  # half as much again
        ((5, 7), (5000, 5000), False),
        ((16, 64), (10_000, 10_009), True),  # less than a thousandth more
        ((16, 64), (10_000, 10_011), False),
        ((16, 64), (10_011, 10_000), False),
        ((16, 64), (0, 0), False),
        ((16,), (5000,), False),
    ],
)
def test_what_counts_as_staying(
    batches: tuple[int, ...], counts: tuple[int, ...], stays: bool
) -> None:
    cases = by_place(
        *(case(batch, work(ffma=count)) for batch, count in zip(batches, counts, strict=True))
    )
    assert (find_window(cases, {}) is not None) is stays


@pytest.mark.parametrize(("macs", "found"), [(999, False), (1000, False), (1001, True)])
def test_more_than_half_of_the_counted_work_must_stay(macs: int, found: bool) -> None:
    rows = [
        case(batch, work(ffma=50 * macs), layer="a", calls=(call(batch, macs=macs, layer="a"),))
        for batch in (16, 64)
    ]
    rows += [case(batch, work(ffma=1000 * batch), layer="b") for batch in (16, 64)]
    rows += [
        case(batch, layer="not counted", calls=(call(batch, macs=10**6),)) for batch in (16, 64)
    ]
    assert (find_window(by_place(*rows), {}) is not None) is found


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (
            {"ffma": 5000},
            (
                "5,000 FFMA at batch 16 to 64. This is one FFMA per multiply-add of fc for a "
                "batch of 5 (5 x 1,000)"
            ),
        ),
        (
            {"fadd": 70},
            "70 FADD at batch 16 to 64. This is one add per output of fc for a batch of 7 (7 x 10)",
        ),
        (
            {"fmul": 30},
            (
                "30 FMUL at batch 16 to 64. This is one multiply per output of fc for a batch of "
                "3 (3 x 10)"
            ),
        ),
        (
            {"ffma": 5000, "fadd": 20},
            "20 FADD at batch 16 to 64. This is one add per output of fc for a batch of 2 (2 x 10)",
        ),
        ({"ffma": 5500}, "the same at batch 16 to 64"),
    ],
)
def test_kernels_of_no_layer_tell_whose_outputs_they_are(
    counts: dict[str, float], said: str
) -> None:
    cases = by_place(case(16), case(64), case(64, direction="grad_weight", layer="other"))
    found = find_window(cases, {16: (work("k", **counts),), 64: (work("k", **counts),)})
    assert found is not None
    assert (found.places, found.kernels) == (frozenset(), ("k",))
    assert f": k executed {said}. The profiler recorded" in reason(found)
    assert (found.batch is None) is ("the same" in said)


def test_a_convolution_s_kernel_serves_no_linear_layer() -> None:
    seen = work("k", CONV, ffma=5000)
    loose = {16: (seen,), 64: (seen,)}
    linear = find_window(by_place(case(16), case(64)), loose)
    assert linear is not None
    assert linear.batch is None
    both = find_window(by_place(case(64), case(64, layer="conv", kind="Conv2d")), loose)
    assert both is not None
    assert "of conv for a batch of 5" in reason(both)


def test_what_grows_outweighs_what_stays_and_kernels_that_multiply_nothing_are_not_asked() -> None:
    staying, cases = work("k", ffma=5000), by_place(case(16), case(64))
    for most, told in ((5001, False), (5000, False), (4999, True)):
        loose = {16: (staying, work("m", ffma=1)), 64: (staying, work("m", ffma=most))}
        assert (find_window(cases, loose) is not None) is told
    for other in (Algorithm(None), Algorithm("gemm", role="reduction"), Algorithm("elementwise")):
        seen = replace(staying, algorithm=other)
        assert find_window(cases, {16: (seen,), 64: (seen,)}) is None
    assert find_window(cases, {64: (staying,)}) is None
    twice = find_window(cases, {16: (staying, staying), 64: (work("k", ffma=10_000),)})
    assert twice is not None, "launches with several grids are added up"


def test_a_row_of_the_wrong_window_says_whose_count_it_has() -> None:
    seen = case(16, work(ffma=5000), counted=10_000).with_batch(40)
    said = wrong_window(RuleInput(seen, by_place(seen)))
    assert said is not None
    assert (said.factor, describe_cause(said)) == (
        2.5,
        (
            "fc forward at batch 16 has the executed FLOPs of a batch of 40, 2.50 times the "
            "estimate, at every batch size."
        ),
    )
    for other in (
        case(16, work(ffma=5000)),
        case(16, work(ffma=5000)).with_batch(16),
        case(16).with_batch(40),
        case(16, work(other=5)).with_batch(40),
    ):
        assert wrong_window(RuleInput(other, by_place(other))) is None


def test_additions_alone_outside_of_layers_name_the_multiply_adds_that_are_not_there() -> None:
    cases = by_place(case(16), case(64), case(64, direction="grad_weight"))
    loose = {
        16: (work("small", fadd=160),),
        64: (work("other", fadd=9, ffma=9), work("large", fadd=640), work("none", fmul=999)),
    }
    (said,) = unattributed_fadds(cases, loose)
    assert describe_cause(said) == (
        "The profiler collected only FADD: 640 in large. FADD omits the multiply-adds, which are "
        "FFMA instructions. One output of fc needs 100 multiply-adds, so FFMA should be 64,000."
    )
    assert (said.rule, said.kernels) == ("FADD alone", ("large",))
    (unfit,) = unattributed_fadds(cases, {64: (work("odd", fadd=645),)})
    assert describe_cause(unfit).endswith("which are FFMA instructions.")
    (conv,) = unattributed_fadds(cases, {64: (work("conv", CONV, fadd=640),)})
    assert describe_cause(conv).endswith("which are FFMA instructions.")
    assert unattributed_fadds(cases, {64: (work("whole", fadd=5, ffma=5),)}) == []
    assert unattributed_fadds(by_place(case(16, work(ffma=5))), loose) == []
