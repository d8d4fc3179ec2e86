"""Counts of kernels of our own (tests/data/sass) against the arithmetic of their source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from perfctl.orchestrator.analyse.derived.code import blocks, counts, turns
from perfctl.orchestrator.analyse.derived.code.records import Bound, CodeCounts
from perfctl.parsers.sass import nvdisasm

DATA = Path(__file__).parents[3] / "data" / "sass"
ARCHITECTURES = (80, 100)
NAMES = {"nested": "_Z6nestedPfi", "product": "_Z7productPKfS0_Pfiii", "calls": "_Z5callsPf", "choice": "_Z6choicePfi",
         "indirect": "_Z8indirectPfPFffE", "steps": "_Z5stepsPfi"}  # fmt: skip
ARGUMENTS = {80: 0x160, 100: 0x380}
"""Where arguments begin in constant bank 0."""
PRODUCT = {"m": 24, "n": 28, "k": 32}
"""Byte of an argument of ``product``, after three pointers."""


def code(kernel: str, arch: int, arguments: Mapping[int, int] | None = None, block: tuple[int, ...] = ()) -> CodeCounts:
    text = (DATA / f"sm_{arch}.txt").read_text(encoding="utf-8")
    known = {ARGUMENTS[arch] + offset: value for offset, value in (arguments or {}).items()}
    return blocks.summarise(nvdisasm.parse(text, NAMES[kernel]), turns.constant_bank(arch, block, (), known))


def of(found: CodeCounts, kind: str, **turns_of: int) -> Bound:
    return counts.count(found, turns_of)[0].get(kind, Bound(0, 0, 0, 0))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_loops_with_bounds_in_the_code_are_counted_exactly(arch: int) -> None:
    found = code("nested", arch)
    assert of(found, "FFMA") == Bound(*[12 * 7] * 4)
    assert of(found, "FADD") == Bound(*[12] * 4)
    loops = {one.name: (one.turns, one.parent) for one in found.functions[0].loops}
    assert loops == {"L0": (12, None), "L0.1": (7, "L0")}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("k", [1, 3, 4, 15, 16, 1000, 1003, 81920])
def test_a_product_has_one_multiply_add_for_each_element_of_the_sum(arch: int, k: int) -> None:
    found = code("product", arch, {PRODUCT["k"]: k})
    assert of(found, "FFMA").whole == k
    assert of(found, "FFMA").high == k
    assert of(found, "FFMA").low == 0  # the guard i < m, j < n may not hold


def test_loops_whose_turns_nobody_knows_count_once_and_are_open_above() -> None:
    found = code("product", 80)
    bound = of(found, "FFMA")
    assert bound.at_least
    assert bound.high is None
    per_turn = counts.count(found, {})[2]
    unrolled = sum(count for loop in per_turn.values() for kind, count in loop if kind == "FFMA")
    assert bound.whole >= unrolled  # each loop once, and what the compiler put between them
    assert bound.least == bound.stated == 1  # k = 1: a thread that does the work does so much at least
    assert bound.low == 0


def test_stated_turns_take_the_place_of_unknown_ones() -> None:
    found = code("product", 80)
    names = [one.name for one in found.functions[0].loops]
    once, twice = (dict.fromkeys(names, times) for times in (1, 2))
    per_turn = counts.count(found, once)[2]
    each = sum(count for loop in per_turn.values() for kind, count in loop if kind == "FFMA")
    assert of(found, "FFMA", **twice).whole - of(found, "FFMA", **once).whole == each
    assert not of(found, "FFMA", **twice).at_least


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_functions_that_are_called_count_each_time(arch: int) -> None:
    assert of(code("calls", arch), "FFMA") == Bound(*[2] * 4)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_of_the_arms_of_a_switch_one_is_taken(arch: int) -> None:
    found = code("choice", arch)
    assert (of(found, "FMUL").low, of(found, "FMUL").high) == (0, 1)
    assert (of(found, "FFMA").low, of(found, "FFMA").high) == (0, 1)
    assert (of(found, "FADD").low, of(found, "FADD").high) == (0, 1)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_call_through_a_register_is_said_and_not_guessed(arch: int) -> None:
    assert any("function in a register" in doubt for doubt in code("indirect", arch).doubts)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("n", "threads"), [(1, 128), (1000, 128), (100_000, 64), (2_000_000_000, 32)])
def test_steps_of_a_block_follow_from_its_threads(arch: int, n: int, threads: int) -> None:
    found = code("steps", arch, {8: n}, (threads, 1, 1))
    turns_of_loop = -(-n // threads)
    assert of(found, "FADD") == Bound(*[turns_of_loop] * 4)


def test_a_loop_that_cannot_be_entered_has_no_instruction() -> None:
    assert of(code("steps", 80, {8: 0}, (32, 1, 1)), "FADD") == Bound(0, 0, 0, 0)


def test_flops_of_arms_are_not_added_up() -> None:
    _, flops, _ = counts.count(code("choice", 80), {}, 1)
    assert flops is not None
    assert (flops.low, flops.least, flops.whole) == (0, 1, 2)  # one FADD, one FMUL, or one multiply-add = 2 FLOPs


def test_a_launch_is_its_threads_times_one() -> None:
    found = code("nested", 80)
    each, of_block, _ = counts.count(found, {}, 96)
    launch = {one.kind.name: one for one in counts.launch(found, each, (5, 2, 1), (96, 1, 1))}
    assert launch["FFMA"].launch == Bound(*[12 * 7 * 5 * 2 * 96] * 4)
    total, unknown = counts.flops(of_block, tuple(launch.values()), 5 * 2)
    assert total is not None
    assert total.whole == (2 * 12 * 7 + 12) * 5 * 2 * 96  # 1 multiply-add = 2 FLOPs
    assert unknown == ()
    rows = counts.rows(tuple(launch.values()), "nvdisasm 13.1")
    assert [(row[0], row[1]) for row in rows] == [("FFMA", 12 * 7 * 960), ("FADD", 12 * 960)]
    assert all("read from code" in row[2] and row[3] is None for row in rows)
