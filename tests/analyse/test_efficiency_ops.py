"""Parts of a product on a GPU: whole tiles, whole waves, and what Winograd saves."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.orchestrator.analyse import efficiency_ops as ops
from perfctl.orchestrator.analyse.efficiency_transfer import Rows, Shared, learn, seconds, sustained_rate
from perfctl.orchestrator.analyse.work import Work

BIG = ops.Chip("big", 14e12, 900e9, 80, 250, 12)
SMALL = ops.Chip("small", 8e12, 300e9, 40, 70, 12)
NEWER = ops.Chip("newer", 20e12, 1500e9, 108, 250, 7)


def conv(side: int = 14, inputs: int = 64, outputs: int = 96, kernel: int = 3, stride: int = 1) -> Work:
    rows, depth = side**2, inputs * kernel**2
    return Work("", "conv", 1, rows * depth * outputs, inputs * rows, outputs * rows, depth * outputs, rows, outputs,
                depth, 1, kernel**2, stride)  # fmt: skip


def linear(inputs: int = 512, outputs: int = 1000) -> Work:
    return Work("", "linear", 1, inputs * outputs, inputs, outputs, inputs * outputs, 1, outputs, inputs)


def test_a_product_fills_whole_tiles_and_whole_waves() -> None:
    blocks = ceil(1000 / 128) * ceil(300 / 64)
    assert blocks == 40
    assert ops.tiled(1000, 300, (128, 64), 40) == 128 * 64
    assert ops.tiled(1000, 300, (128, 64), 39) == 2 * 128 * 64


def test_the_parts_of_a_linear_are_its_padded_work_over_the_rate_of_an_sm() -> None:
    first, second = ops.parts(linear(), 256, BIG).products
    rate = 14e12 / 80
    assert first == pytest.approx(2 * ceil(2 * 16 / 80) * 128 * 64 * 512 / rate)
    assert second == pytest.approx(2 * ceil(8 * 32 / 80) * 32 * 32 * 512 / rate)


def test_only_three_by_three_without_stride_can_run_as_winograd() -> None:
    assert ops.winograd(conv())
    assert not ops.winograd(conv(kernel=1))
    assert not ops.winograd(conv(stride=2))
    assert not ops.winograd(replace(conv(), kind="grouped_conv"))


def test_the_floor_knows_that_winograd_needs_a_fourth() -> None:
    work = conv(inputs=512, outputs=512)
    assert ops.floor(work, 64, BIG) == pytest.approx(2 * 64 * work.macs / 4 / 14e12)
    assert ops.floor(replace(work, stride=2), 64, BIG) == pytest.approx(2 * 64 * work.macs / 14e12)


def test_there_is_a_figure_for_every_feature() -> None:
    wanted = len(ops.GROWING) + len(ops.FIXED) + len(ops.UNEVEN)
    assert len(ops.features(conv(), 3, BIG)) == len(ops.features(linear(), 3, BIG)) == wanted


works = st.one_of(
    st.builds(conv, st.integers(1, 60), st.integers(1, 600), st.integers(1, 600), st.sampled_from([1, 3, 5])),
    st.builds(linear, st.integers(1, 9000), st.integers(1, 9000)),
)


@settings(deadline=None)
@given(works, st.integers(1, 200), st.integers(1, 50))
def test_growing_features_never_fall_with_batch_and_fixed_ones_never_move(work: Work, batch: int, more: int) -> None:
    count, fixed = len(ops.GROWING), len(ops.GROWING) + len(ops.FIXED)
    before, after = ops.features(work, batch, BIG), ops.features(work, batch + more, BIG)
    assert all(b >= a for a, b in zip(before[:count], after[:count], strict=True))
    assert before[count:fixed] == after[count:fixed]


@settings(deadline=None)
@given(works, st.integers(1, 200), st.integers(1, 50), st.sampled_from([BIG, SMALL, NEWER]))
def test_seconds_from_shared_coefficients_never_fall_with_batch(
    work: Work, batch: int, more: int, chip: ops.Chip
) -> None:
    first, then = (ops.parts(work, size, chip) for size in (batch, batch + more))
    shared = Shared(5.0, 1.0, (0.3,) * len(first.products))
    assert seconds(shared, then, 1e13) >= seconds(shared, first, 1e13) > 0


def test_power_limits_a_small_board_by_what_a_large_one_of_its_process_spends() -> None:
    assert sustained_rate(SMALL, {BIG: 12.5e12}) == pytest.approx(12.5e12 / 250 * 70)


def test_without_a_board_of_its_process_only_the_part_of_the_peak_is_taken_over() -> None:
    assert sustained_rate(NEWER, {BIG: 12.6e12, SMALL: 3.4e12}) == pytest.approx(12.6 / 14 * 20e12)


def test_coefficients_are_found_again_from_times_made_with_them() -> None:
    pytest.importorskip("scipy")
    truth = Shared(6.0, 1.5, (0.2, 0.7))
    parts = [ops.parts(linear(inputs, outputs), batch, BIG)
             for inputs in (64, 700, 5000) for outputs in (10, 900, 4000) for batch in (8, 100, 3000)]  # fmt: skip
    found = learn([Rows(parts, [seconds(truth, part, 1e13) for part in parts], 1e13)])
    for part in parts:
        assert seconds(found, part, 1e13) == pytest.approx(seconds(truth, part, 1e13), rel=0.05)
    assert found.drift == 0.0


def test_a_measuring_program_that_slows_down_is_told_apart() -> None:
    pytest.importorskip("scipy")
    truth = Shared(6.0, 1.5, (0.2, 0.7))
    parts = [ops.parts(linear(64 + place % 7 * 100, 100), 64, BIG) for place in range(300)]
    taken = [seconds(truth, part, 1e13) + place * 1e-7 for place, part in enumerate(parts)]
    found = learn([Rows(parts, taken, 1e13, [float(place) for place in range(300)])])
    assert found.drift == pytest.approx(1e-7, rel=0.1)
