"""Parts of a product on a GPU: whole tiles, whole waves, and what Winograd saves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfctl.orchestrator.predict.operations import Operation
from scripts.proof.accuracy import accuracy_ops_model as ops
from scripts.proof.accuracy.accuracy_ops_model import (
    LAUNCH,
    Chip,
    Parts,
    Rows,
    Shared,
    _all,
    _matrix,
    learn,
    seconds,
    sustained_rate,
)
from tests.make import steps
from tests.make.steps import linear

BIG = ops.Chip("big", 14e12, 900e9, 80, 250, 12)
SMALL = ops.Chip("small", 8e12, 300e9, 40, 70, 12)
NEWER = ops.Chip("newer", 20e12, 1500e9, 108, 250, 7)


def conv(
    side: int = 14, inputs: int = 64, outputs: int = 96, kernel: int = 3, stride: int = 1
) -> Operation:
    return steps.conv("", inputs, outputs, side, kernel)._replace(stride=stride)


works = st.one_of(
    st.builds(
        conv,
        st.integers(1, 60),
        st.integers(1, 600),
        st.integers(1, 600),
        st.sampled_from([1, 3, 5]),
    ),
    st.builds(linear, st.just(""), st.integers(1, 9000), st.integers(1, 9000)),
)


def test_only_three_by_three_without_stride_can_run_as_winograd() -> None:
    assert ops.winograd(conv())
    assert not ops.winograd(conv(kernel=1))
    assert not ops.winograd(conv(stride=2))
    assert not ops.winograd(conv()._replace(kind="grouped_conv"))


def test_the_floor_knows_that_winograd_needs_a_fourth() -> None:
    work = conv(inputs=512, outputs=512)
    assert ops.floor(work, 64, BIG) == pytest.approx(2 * 64 * work.macs / 4 / 14e12)
    assert ops.floor(work._replace(stride=2), 64, BIG) == pytest.approx(2 * 64 * work.macs / 14e12)


@given(works, st.integers(1, 200), st.integers(1, 50))
def test_growing_features_never_fall_with_batch_and_fixed_ones_never_move(
    work: Operation, batch: int, more: int
) -> None:
    count, fixed = len(ops.GROWING), len(ops.GROWING) + len(ops.FIXED)
    before, after = ops.features(work, batch, BIG), ops.features(work, batch + more, BIG)
    assert all(b >= a for a, b in zip(before[:count], after[:count], strict=True))
    assert before[count:fixed] == after[count:fixed]


@given(works, st.integers(1, 200), st.integers(1, 50), st.sampled_from([BIG, SMALL, NEWER]))
def test_seconds_from_shared_coefficients_never_fall_with_batch(
    work: Operation, batch: int, more: int, chip: ops.Chip
) -> None:
    first, then = (ops.parts(work, size, chip) for size in (batch, batch + more))
    shared = Shared(5.0, 1.0, (0.3,) * len(first.products))
    assert seconds(shared, then, 1e13) >= seconds(shared, first, 1e13) > 0


def test_coefficients_are_found_again_from_times_made_with_them() -> None:
    pytest.importorskip("scipy")
    truth = Shared(6.0, 1.5, (0.2, 0.7))
    parts = [
        ops.parts(linear("", inputs, outputs), batch, BIG)
        for inputs in (64, 700, 5000)
        for outputs in (10, 900, 4000)
        for batch in (8, 100, 3000)
    ]
    found = learn([Rows(parts, [seconds(truth, part, 1e13) for part in parts], 1e13)])
    for part in parts:
        assert seconds(found, part, 1e13) == pytest.approx(seconds(truth, part, 1e13), rel=0.05)
    assert found.drift == 0.0


def test_a_measuring_program_that_slows_down_is_told_apart() -> None:
    pytest.importorskip("scipy")
    truth = Shared(6.0, 1.5, (0.2, 0.7))
    parts = [ops.parts(linear("", 64 + place % 7 * 100, 100), 64, BIG) for place in range(300)]
    taken = [seconds(truth, part, 1e13) + place * 1e-7 for place, part in enumerate(parts)]
    found = learn([Rows(parts, taken, 1e13, [float(place) for place in range(300)])])
    assert found.drift == pytest.approx(1e-7, rel=0.1)


TINY = ops.Chip("tiny", 80.0, 10.0, 4, 1, 1)
"""20 FLOP/s of each of 4 SMs, 10 B/s."""


def of_names(work: Operation, batch: int) -> dict[str, float]:
    return dict(
        zip((*ops.GROWING, *ops.FIXED, *ops.UNEVEN), ops.features(work, batch, TINY), strict=True)
    )


def test_every_figure_of_a_winograd_convolution() -> None:
    # 7 to 40 channels on 10 x 10, 17 images: 1700 x 40 x 63; tiles of F(4x4): 3 x 3 on each of 2 x
    # 16 images.
    work, macs, moved = conv(10, 7, 40), 17 * 100 * 40 * 63, 4 * (17 * (700 + 4000) + 63 * 40)
    found = ops.parts(work, 17, TINY)
    four = 2 * 45 * 64 * 64 * 7 / 20  # 36 products of 5 x 1 blocks: 45 waves
    two = 2 * 17 * 32 * 32 * 16 * 7 / 20  # 17 x 2 x 2 x 1 blocks: 17 waves
    implicit = 2 * 4 * 128 * 64 * 64 / 20  # 14 blocks: 4 waves; the depth of 63 is padded to 64
    assert found == ops.Parts((four, two, implicit), 2 * macs / 2, moved / 10)
    share = 1700 * 40 / 4
    assert of_names(work, 17) == pytest.approx(
        {
            "batch": 17,
            "rows": 1700,
            "macs": macs,
            "outputs": 68000,
            "inputs": 11900,
            "bytes": moved,
            "intensity": macs / moved,
            "tiles": 288,
            "waves 128x64": 4,
            "waves 64x64": 7,
            "part 0": four,
            "part 1": two,
            "part 2": implicit,
            "work 128x128": 4 * 128 * 128 * 63,
            "work 128x32": 7 * 128 * 32 * 63,
            "work 32x128": 14 * 32 * 128 * 63,
            "work 64x64": 7 * 64 * 64 * 63,
            "winograd 128x128": 27 * 128 * 128 * 7,
            "winograd 64x64": 45 * 64 * 64 * 7,
            "winograd 32x128": 81 * 32 * 128 * 7,
            "columns": 40,
            "depth": 63,
            "weights": 2520,
            "side": 10,
            "columns by 4": 0,
            "columns by 32": 8,
            "depth by 4": 3,
            "depth by 32": 7,
            "side by 4": 2,
            "last wave 128x128": 4 * 128 * 128 / share,
            "last wave 128x64": 4 * 128 * 64 / share,
            "last wave 64x64": 7 * 64 * 64 / share,
            "last of two 128x64": 2 * 2 * 128 * 64 / share,
            "last of four 128x64": 4 * 128 * 64 / share,
            "last of four 64x64": 4 * 2 * 64 * 64 / share,
            "shape": 42.5,
        }
    )


def test_the_parts_of_a_linear() -> None:
    work, macs, moved = linear("", 101, 70), 130 * 101 * 70, 4 * (130 * 171 + 7070)
    # 2 x 2 blocks; 5 x 3 blocks, 4 waves
    first, second = 2 * 128 * 64 * 101 / 20, 2 * 4 * 32 * 32 * 101 / 20
    assert ops.parts(work, 130, TINY) == ops.Parts((first, second), 2 * macs, moved / 10)


def test_a_strided_convolution_has_one_part_and_products_of_several_groups_fill_more_blocks() -> (
    None
):
    strided = conv(10, 7, 40, stride=2)
    assert ops.parts(strided, 17, TINY) == ops.Parts(
        (0.0, 0.0, 2 * 4 * 128 * 64 * 64 / 20), 2 * 17 * strided.macs, 32968.0
    )
    assert of_names(strided, 17)["tiles"] == 0
    grouped = linear("", 101, 70)._replace(groups=3)
    assert ops.parts(grouped, 130, TINY).products == pytest.approx(
        (2 * 3 * 128 * 64 * 101 / 20, 2 * 12 * 32 * 32 * 101 / 20)
    )


def test_the_floor_is_what_memory_takes_where_that_is_more() -> None:
    work = linear("", 101, 70)
    slow, fast = replace(TINY, bandwidth=1.0), replace(TINY, bandwidth=1e9)
    assert ops.floor(work, 130, slow) == 4 * (130 * 171 + 7070)
    assert ops.floor(work, 130, fast) == 2 * 130 * 7070 / 80


def test_what_coefficients_are_learned_from_is_seconds_memory_place_and_what_power_caps() -> None:
    pytest.importorskip("numpy")
    import numpy as np

    parts = [ops.Parts((4.0, 8.0), 30.0, 0.5), ops.Parts((1.0, 2.0), 60.0, 2.0)]
    assert _matrix(Rows(parts, [7.0, 9.0], 10.0, [5.0, 6.0]), np.array([1])).tolist() == [
        [9.0, 2.0, 6.0, 6.0, 1.0, 2.0]
    ]
    matrix = _matrix(Rows(parts, [7.0, 9.0], 10.0), np.array([1, 0]))
    assert matrix.tolist() == [[9.0, 2.0, 0.0, 6.0, 1.0, 2.0], [7.0, 0.5, 0.0, 3.0, 4.0, 8.0]]
    # Launch, memory and drift, and the fourth root of 4^4 + 3^4.
    given = np.array([[7.0, 0.5, 1e6, 3.0, 4.0, 8.0]])
    assert _all(np.array([2e5, 3.0, 7.0, 0.5, 0.25]), given) == pytest.approx(
        [2.0 + 1.5 + 0.7 + 337**0.25]
    )


def test_what_no_row_says_stays_where_it_began() -> None:
    pytest.importorskip("scipy")
    nothing = ops.Parts((0.0, 0.0), 0.0, 0.0)
    found = learn([Rows([nothing] * 40, [6e-5] * 40, 1e13, [0.0] * 40)])
    assert (found.launch, found.memory) == pytest.approx((6.0, 1.0), rel=1e-3)
    assert found.products == pytest.approx((0.3, 0.3)) and found.drift == pytest.approx(0.8e-7)


def test_no_more_rows_of_a_gpu_are_learned_from_than_the_limit() -> None:
    pytest.importorskip("scipy")
    nothing = ops.Parts((0.0, 0.0), 0.0, 0.0)
    rows = Rows([nothing] * 2, [6e-5, 6e-4], 1e13)
    one, both = (learn([rows], limit=limit).launch for limit in (1, 2))
    assert min(abs(one / 6 - 1), abs(one / 60 - 1)) < 0.02
    assert 7 < both < 50


def test_a_transferred_product_adds_launch_memory_and_the_fourth_root_of_both_limits() -> None:
    shared = Shared(launch=2.0, memory=3.0, products=(0.5, 0.25), drift=9.0)
    parts = Parts((4.0, 8.0), 30.0, 0.1)  # 0.5 x 4 + 0.25 x 8 = 4 s of products; 30 FLOP
    assert seconds(shared, parts, 10.0) == pytest.approx(2 * LAUNCH + 0.3 + (4**4 + 3**4) ** 0.25)
    assert seconds(shared, Parts((4.0, 8.0), 0.0, 0.0), 10.0) == pytest.approx(2 * LAUNCH + 4)


def test_a_rate_that_power_allows_is_the_smaller_of_the_best_share_and_the_flops_a_joule() -> None:
    def chip(flops: float, watts: float, process: int) -> Chip:
        return Chip("a GPU", flops, 1e9, 10, watts, process)

    new = chip(100.0, 50.0, 7)
    # 0.8 of its peak
    assert sustained_rate(new, {chip(10.0, 10.0, 16): 8.0, chip(10.0, 10.0, 12): 6.0}) == 80.0
    assert sustained_rate(new, {chip(10.0, 10.0, 7): 8.0}) == 40.0  # 0.8 FLOP a joule
    assert sustained_rate(new, {chip(10.0, 2.0, 7): 8.0}) == 80.0
    assert sustained_rate(
        new, {chip(10.0, 10.0, 7): 8.0, chip(10.0, 8.0, 7): 7.2}
    ) == pytest.approx(45.0)
