"""Names of ranges that perfctl writes are read back; other people's names say nothing."""

from __future__ import annotations

import pytest

from perfctl.records.ranges import DIRECTIONS, RangeName, read_range_name


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_layer_and_its_direction_are_parted_at_the_last_colon(direction: str) -> None:
    assert read_range_name(f"conv2:{direction}") == RangeName(layer="conv2", direction=direction)
    assert read_range_name(f"block:0:{direction}") == RangeName(
        layer="block:0", direction=direction
    )


@pytest.mark.parametrize(
    ("name", "step", "phase"),
    [
        ("perfctl:step:0", 0, None),
        ("perfctl:step:3", 3, None),
        (f"perfctl:step:{'9' * 18}", 10**18 - 1, None),
        ("perfctl:phase:forward", None, "forward"),
        ("perfctl:phase:a:b", None, "a:b"),
    ],
)
def test_ranges_of_the_loop_say_a_step_or_a_phase(
    name: str, step: int | None, phase: str | None
) -> None:
    assert read_range_name(name) == RangeName(step=step, phase=phase)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "conv2",
        "forward",
        ":forward",
        "conv2:",
        "conv2:sideways",
        "Conv2d::forward",
        "conv2:Forward",
        "perfctl:window",
        "perfctl:step:",
        "perfctl:step:-1",
        "perfctl:step:x",
        f"perfctl:step:{'9' * 19}",
        "perfctl:phase:",
        "perfctl:conv2:forward",
        "perfctl:",
    ],
)
def test_all_other_names_say_nothing(name: str) -> None:
    assert read_range_name(name) == RangeName()
