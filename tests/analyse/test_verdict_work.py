"""Rules about a row's kernels, each with kernels made by hand: its numbers, and where it keeps silent."""

from __future__ import annotations

from typing import Any

import pytest

from perfctl.orchestrator.analyse.algorithms import Algorithm
from perfctl.orchestrator.analyse.case import Case
from perfctl.orchestrator.analyse.grids import GemmShape
from perfctl.orchestrator.analyse.verdict_scene import Scene
from perfctl.orchestrator.analyse.verdict_work import (
    layout_and_epilogue,
    recomputation,
    shared_kernel,
    split_k,
    tile_padding,
)
from tests.analyse.rows import by_place, call, case, work

PAPER = 64_000
"""FLOPs of 32 samples through 100 inputs and 10 outputs."""
PLAIN = Algorithm("gemm", "gemm")


def scene(one: Case, *others: Case) -> Scene:
    return Scene(one, by_place(one, *others))


def beside(name: str, role: str, fadd: float, family: str = "gemm") -> Any:
    return work(name, Algorithm(family, role=role), fadd=fadd)


def test_padding_is_said_with_what_was_counted_and_what_the_grid_predicts() -> None:
    tile = 128 * 64 * 100
    kernel = work("k", Algorithm("gemm", "gemm", tile=(128, 64, None)), (1, 1, 1), ffma=tile * 1.15)
    said = tile_padding(scene(case(32, kernel, counted=2 * tile * 1.15, forward=GemmShape(32, 10, 100))))
    assert said is not None
    assert said.factor == 2 * tile / PAPER == 25.6
    assert said.sentence.startswith(
        "fc forward at batch 32 executes 29.44 times the multiply-adds on paper, because its tiles"
    )
    assert said.sentence.endswith(f"= {tile:,} multiplies (paper 32,000), predicted 25.60.")
    assert tile_padding(scene(case(32, kernel, forward=GemmShape(32, 10, 100)))) is None, "nothing was counted"
    assert tile_padding(scene(case(32, kernel, counted=PAPER))) is None, "nothing is predicted"
    full = work("k", Algorithm("gemm", "gemm", tile=(32, 10, None)), (1, 1, 1), ffma=32_000)
    assert tile_padding(scene(case(32, full, counted=PAPER, forward=GemmShape(32, 10, 100)))) is None, (
        "its tile is filled"
    )


@pytest.mark.parametrize(
    ("grid", "slices"), [((1, 1, 4), " over 4 slices"), ((1, 1, 2), " over 2 slices"), ((4, 4, 1), ""), (None, "")]
)
def test_a_split_sum_says_its_slices_and_what_they_cost(grid: tuple[int, int, int] | None, slices: str) -> None:
    one = case(32, work("k", PLAIN, grid, ffma=32_000), beside("sum", "reduction", 640), counted=PAPER + 640)
    said = split_k(scene(one))
    assert said is not None
    assert (
        said.sentence
        == f"fc forward at batch 32 splits its sum{slices} and adds the slices up in sum: 640 FLOP more, 1 %."
    )
    assert (said.factor, said.explained, said.kernels) == (pytest.approx(1.01), pytest.approx(1), ("sum",))


@pytest.mark.parametrize("rule", [split_k, layout_and_epilogue])
def test_less_than_half_a_percent_is_not_worth_a_word(rule: Any) -> None:
    role = "reduction" if rule is split_k else "layout"
    for more, told in ((310, False), (330, True), (0, False)):
        works = (work("k", PLAIN, None, ffma=32_000), beside("other", role, more))
        assert (rule(scene(case(32, *works, counted=PAPER + more))) is not None) is told
        assert rule(scene(case(32, *works))) is None, "nothing was counted"


@pytest.mark.parametrize(
    ("others", "fadd", "who"),
    [
        ((), 1280, "bias, scaling or activation"),
        ((beside("nchw", "layout", 1280, "layout"),), 0, "layout transforms"),
        ((beside("o", "offsets", 1280),), 0, "offsets"),
        ((beside("e", "epilogue", 1280),), 0, "epilogues"),
        ((beside("nchw", "layout", 640, "layout"), beside("n2", "layout", 320, "layout")), 320,
         "layout transforms, bias, scaling or activation"),
    ],
)  # fmt: skip
def test_work_beside_the_products_says_what_does_it(others: tuple[Any, ...], fadd: float, who: str) -> None:
    said = layout_and_epilogue(scene(case(32, work("k", PLAIN, ffma=32_000, fadd=fadd), *others, counted=PAPER + 1280)))
    assert said is not None
    assert said.sentence == f"fc forward at batch 32 executes 1.28 kFLOP beside its products ({who}), 2 % more."
    assert said.factor == pytest.approx(1.02)


def test_a_forward_pass_under_a_range_of_its_own_has_an_amount_and_no_factor() -> None:
    said = recomputation(scene(case(32, work(ffma=32_000), direction="recompute", counted=PAPER)))
    assert said is not None
    assert (said.sentence, said.factor) == ("fc runs forward once more in backward at batch 32: 64 kFLOP.", None)
    assert recomputation(scene(case(32, work(ffma=32_000), direction="recompute"))) is None
    assert recomputation(scene(case(32, work(ffma=32_000), counted=PAPER))) is None


def row(layer: str, position: int, *works: Any, batch: int = 32) -> Case:
    return case(batch, *works, layer=layer, position=position, counted=1 if works else None)


@pytest.mark.parametrize(
    ("times", "served"),
    [
        (1.0, 0),
        (1.019, 0),
        (1.5, 0),
        (1.97, 1),
        (2.0, 1),
        (2.03, 1),
        (2.05, 0),
        (2.95, 2),
        (3.0, 2),
        (3.05, 2),
        (3.1, 0),
        (4.0, 0),
    ],
)
def test_a_kernel_serves_as_many_neighbours_as_its_count_has_room_for(times: float, served: int) -> None:
    a, b, c = row("a", 0, work("k", ffma=32_000 * times)), row("b", 1), row("c", 2)
    d, before = row("d", 3, work("other", ffma=32_000)), row("before", -1)
    rows = by_place(d, c, b, a, before, row("elsewhere", 1, batch=64))
    said = {one.row.layer: shared_kernel(Scene(one, rows)) for one in (a, b, c, d, before)}
    assert [layer for layer, one in said.items() if one is not None] == ["a", "b", "c"][: served + 1 if served else 0]
    if served:
        owner, first = said["a"], said["b"]
        assert owner is not None
        assert first is not None
        whose = ", ".join(f"{name} forward" for name in ("b", "c")[:served])
        assert owner.factor == served + 1
        assert (
            owner.sentence
            == f"a forward at batch 32 executes {served + 1}.00 times its own paper count: its kernel also does {whose}."
        )
        assert first.sentence == (
            "b forward at batch 32 has no kernel of its own: its 64 kFLOP are done in a kernel of a forward."
        )
        assert (first.kernels, first.factor) == (("k",), None)


def test_a_neighbour_with_a_kernel_of_its_own_is_served_by_nobody() -> None:
    a, b, c = row("a", 0, work("k", ffma=64_000)), row("b", 1, work("own", ffma=32_000)), row("c", 2)
    rows = by_place(a, b, c)
    assert [shared_kernel(Scene(one, rows)) for one in (a, b, c)] == [None, None, None]


def test_a_neighbour_of_half_the_size_makes_one_and_a_half() -> None:
    a = row("a", 0, work("k", ffma=48_000))
    b = case(32, layer="b", position=1, calls=(call(32, macs=500, layer="b"),))
    said = shared_kernel(Scene(a, by_place(a, b)))
    assert said is not None
    assert said.factor == 1.5
    assert "executes 1.500 times its own paper count" in said.sentence
