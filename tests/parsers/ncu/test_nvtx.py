"""What the ranges around an ncu launch say: every direction, its step, and the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import parse
from perfctl.parsers.ncu.facts import (
    add_steps,
    place_in_name,
    place_of,
    range_names,
)
from perfctl.records.ranges import DIRECTIONS
from perfctl.records.report import Kernel

NONE = ":none:none:none:none:none:none"


def cell(*names: str) -> str:
    """As ncu 2022.3 prints it: thread, then domain, name and six fields of each range,
    outermost first."""
    return "97844  " + "  ".join(f'"<default domain>:{name}{NONE}"' for name in names)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_direction_comes_out_with_its_layer_and_step(direction: str) -> None:
    outer = ("perfctl:step:12", "model:forward", "perfctl:phase:backward")
    names = range_names(cell(*outer, f"model.layer2.0.conv1:{direction}", "cudnnConvolution"))
    found = place_of(names)
    assert tuple(found) == ("model.layer2.0.conv1", direction, 12)


def steps(*launches: tuple[int | None, str | None]) -> list[int | None]:
    """(step, direction) of each launch in -> steps out."""
    kernels = [
        Kernel(n, "k", step=step, direction=direction)
        for n, (step, direction) in enumerate(launches)
    ]
    add_steps(kernels)
    return [kernel.step for kernel in kernels]


FORWARD, BACKWARD, LOSS = "forward", "grad_weight", None


def test_backward_from_autograds_own_thread_is_in_the_step_it_ran_in() -> None:
    """Forward and optimizer know their step; gradients and the loss's kernels in between do not."""
    one = [(4, FORWARD), (None, LOSS), (None, BACKWARD), (4, "optimizer")]
    two = [(5, FORWARD), (None, LOSS), (None, BACKWARD), (5, "optimizer")]
    assert steps(*one, *two) == [4, 4, 4, 4, 5, 5, 5, 5]


def test_gradients_that_end_a_step_are_in_it_and_other_work_between_two_steps_is_in_none() -> None:
    between = [(None, LOSS), (None, FORWARD)]
    assert steps((4, FORWARD), (None, BACKWARD), *between, (5, FORWARD), (None, BACKWARD)) == [
        4,
        4,
        None,
        None,
        5,
        5,
    ]


def test_what_comes_before_any_step_is_in_none() -> None:
    assert steps((None, BACKWARD), (None, LOSS), (0, FORWARD)) == [None, None, 0]
    assert (steps((None, BACKWARD), (None, LOSS)), steps()) == ([None, None], [])


LONG = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block '
    'Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"\n'
)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("conv2:forward", ("conv2", "forward", None)),
        (
            "perfctl:step:3/perfctl:phase:backward/layer1.0.conv2:backward",
            ("layer1.0.conv2", "backward", 3),
        ),
        ("perfctl:step:3/perfctl:phase:optimizer", (None, "optimizer", 3)),
    ],
)
def test_a_range_in_the_place_of_the_kernel_s_name_gives_the_layer_and_a_gap(
    tmp_path: Path, name: str, place: tuple[str | None, str | None, int | None]
) -> None:
    row = (
        '"{}","42","app","127.0.0.1","{}","1","7","(32, 1, 1)","(4, 1, '
        '1)","0","8.0","S","a__b.sum","inst","5"\n'
    )
    path = tmp_path / "renamed.csv"
    path.write_text(LONG + row.format(0, name) + row.format(1, "void ns::gemm:forward<int>(int)"))
    report = parse(path)
    first, second = report.kernels
    assert (first.layer, first.direction, first.step) == place
    assert first.layer_source == ("range" if place[0] else None)
    assert (second.layer, second.direction) == (None, None)
    (gap,) = [gap for gap in report.gaps if gap.quantity == "kernel.name"]
    assert "1 of 2 launches" in gap.reason
    assert "--print-nvtx-rename" in gap.reason


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (f"<default domain>:conv2:forward{NONE}", "conv2:forward"),
        (f"cuBLAS:gemm{NONE}", "gemm"),
        (f"cuBLAS:a:b{NONE}", "a:b"),
        ("<default domain>:a:1:2:3:4:5:6", "a"),
        ("<default domain>:a:1:2:3:4:5", "a:1:2:3:4:5"),  # five fields are none of ncu's
        ("<default domain>:plain", "plain"),
        ("cuBLAS", ""),
        ("<default domain>:", ""),
        ("<default domain>:a:b:none:none:ARGB:1:ASCII:a:b", "a:b"),  # its name is its message too
        ("<default domain>:a:b:none:none:ARGB:1:ASCII:a:c", "a:b:none"),
        ("<default domain>:a:b:none:ARGB:1:ASCII:a:b", "a:b"),
    ],
)
def test_a_range_s_name_is_what_stands_between_its_domain_and_its_six_fields(
    part: str, name: str
) -> None:
    assert range_names(f'7  "{part}"') == (name,)
    assert range_names(f'7  "{part}"  "<default domain>:inner{NONE}" ') == (name, "inner")


def test_a_name_that_is_repeated_as_its_message_is_looked_for_in_1999_characters() -> None:
    middle = ":none:none:ARGB:1:ASCII:"
    for length, is_found in ((1999, True), (2000, False)):
        name = "a" * ((length - len(middle)) // 2 - 2) + ":b"
        rest = name + middle + name
        rest = rest.replace("ARGB", "ARGB" + "B" * (length - len(rest)))
        assert len(rest) == length
        assert range_names(f'"<default domain>:{rest}"') == (name if is_found else f"{name}:none",)


@pytest.mark.parametrize(
    ("push_pop", "start_end", "place"),
    [
        (("perfctl:step:3",), ("fc1:backward", "epoch"), ("fc1", "backward", 3)),
        # what nests goes before what does not
        (("conv1:forward",), ("fc1:backward",), ("conv1", "forward", None)),
        ((), ("fc1:backward", "fc2:backward"), (None, None, None)),
        ((), ("fc1:backward", "fc1:forward"), (None, None, None)),
        ((), ("fc1:forward", "fc1:forward"), ("fc1", "forward", None)),
        ((), ("perfctl:step:3",), (None, None, None)),
        ((), (), (None, None, None)),
        (
            ("perfctl:step:3", "perfctl:phase:optimizer", "Optimizer.step#Adam.step"),
            (),
            (None, "optimizer", 3),
        ),
        (("perfctl:step:3", "perfctl:phase:backward"), (), (None, None, 3)),
        (("conv2:grad_weight",), (), ("conv2", "grad_weight", None)),
        (("a:forward", "b:forward"), (), ("b", "forward", None)),
        (("perfctl:step:3", "perfctl:step:4"), (), (None, None, 4)),
        (("perfctl:phase:optimizer", "fc1:forward"), (), ("fc1", "forward", None)),
        (("perfctl:phase:optimizer", "perfctl:phase:forward"), (), (None, None, None)),
    ],
)
def test_the_innermost_range_counts_and_ranges_that_do_not_nest_only_where_they_agree(
    push_pop: tuple[str, ...],
    start_end: tuple[str, ...],
    place: tuple[str | None, str | None, int | None],
) -> None:
    assert tuple(place_of(push_pop, start_end)) == place


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("fc1:forward", ("fc1", "forward", None)),
        ("perfctl:step:3", (None, None, 3)),
        ("epoch/fc1:backward", ("fc1", "backward", None)),
        ("perfctl:other", (None, None, None)),
        ("gemm", None),
        ("a/b", None),
        ("fc1:forward(int)", None),
        ("fc1:forward<int>", None),
        ("ns::gemm", None),
        ("", None),
    ],
)
def test_a_kernel_s_name_is_no_range(
    name: str, place: tuple[str | None, str | None, int | None] | None
) -> None:
    found = place_in_name(name)
    assert (None if found is None else tuple(found)) == place
