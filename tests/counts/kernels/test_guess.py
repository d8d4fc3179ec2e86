"""Guessed layers against a truth that is known: synthetic launches whose grids are worked out
from dimensions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.orchestrator.counts.kernels.layers import (
    AGAIN,
    LATE,
    LEAVE,
    MOST,
    SKIP,
    align_launches_to_layers,
    guess_kernel_layers,
)
from perfctl.records.report import Kernel
from tests.make.known_network import RELU, blocks, calls, launches, mnist, step
from tests.make.tables import table


def found(kernels):
    return [(kernel.layer, kernel.direction) for kernel in kernels]


def places(truth):
    return [place for _, place in truth]


@table("weights_first", [False, True])
@table("layers", {"mnist16": mnist(16), "mnist256": mnist(256), "alike": blocks(32, 6)})
def test_every_launch_of_a_known_network_gets_its_true_layer(layers, weights_first):
    truth = step(layers, weights_first=weights_first) * 4
    made = guess_kernel_layers(launches(truth), calls(layers))
    assert found(made.kernels) == places(truth)
    assert {k.layer_source for k in made.kernels if k.layer} == {"guessed"}
    assert [k.step for k in made.kernels] == [n for n in range(4) for _ in range(len(truth) // 4)]
    (gap,) = made.gaps
    assert (gap.quantity, gap.state) == ("kernel.layer", "ambiguous")
    assert f"{made.guessed} of {len(truth)} launches" in gap.reason and "guessed" in gap.reason


def test_a_report_that_begins_and_ends_within_a_step_counts_its_whole_steps():
    layers = mnist(64)
    whole = step(layers)
    truth = [*whole[5:], *whole * 2, *whole[:4]]
    made = guess_kernel_layers(launches(truth), calls(layers))
    assert found(made.kernels) == places(truth)
    numbers = [None] * (len(whole) - 5) + [0] * len(whole) + [1] * len(whole) + [None] * 4
    assert [k.step for k in made.kernels] == numbers
    assert (
        "and 2 steps (2 truncated steps are in no value per step), from the order"
        in made.gaps[0].reason
    )


def test_launches_are_taken_in_order_of_time():
    truth = step(mnist(32)) * 3
    kernels = launches(truth)
    shuffled = kernels[::2] + kernels[1::2]
    made = guess_kernel_layers(shuffled, calls(mnist(32)))
    by_launch = {k.launch: (k.layer, k.direction) for k in made.kernels}
    assert [by_launch[n] for n in range(len(truth))] == places(truth)


SEEN, *OTHERS = launches(step(mnist(64)) * 3)
SEEN = SEEN._replace(layer="conv1", direction="forward", layer_source="range")


@table(
    "kernels network reason",
    {
        "another network": (launches(step(blocks(32, 9)) * 3), mnist(64), ""),
        "another batch size": (launches(step(blocks(64, 4)) * 3), blocks(2, 4), ""),
        "a layer that was seen": ([SEEN, *OTHERS], mnist(64), "does not mix"),
        "no kernel": ([], mnist(64), "no kernel"),
        "no kernel that multiplies": ([Kernel(0, RELU)], mnist(64), "no kernel"),
    },
)
def test_what_cannot_be_guessed_stays_as_it_is_and_says_why(kernels, network, reason):
    made = guess_kernel_layers(kernels, calls(network))
    assert (made.kernels, made.guessed) == (tuple(kernels), 0)
    assert made.gaps[0].reason.startswith("perfctl guessed no layers: ")
    assert reason in made.gaps[0].reason
    assert made.gaps[0].state == "not_available"


def brute(fits):
    """Best score by trying every step of every path."""
    count = len(fits[0])

    def best(number, last):
        if number == len(fits):
            return 0.0
        options = [best(number + 1, last) - LEAVE]
        for item in range(count):
            lost = SKIP * (count - 1 - last + item)
            if item > last:
                lost = min(lost, SKIP * (item - last - 1))
            elif item == last:
                lost = min(lost, AGAIN)
            if not number:
                lost = min(LATE * item, MOST)
            options.append(best(number + 1, item) + fits[number][item] - lost)
        return max(options)

    return max(best(0, first) for first in range(count))


@settings(max_examples=50)
@given(
    st.integers(1, 3).flatmap(
        lambda n: st.lists(
            st.lists(st.sampled_from([-4.0, 1.0, 3.0]), min_size=n, max_size=n),
            min_size=1,
            max_size=5,
        )
    )
)
def test_the_path_is_the_best_there_is(fits):
    score, path = align_launches_to_layers(fits)
    assert score == pytest.approx(brute(fits))
    assert len(path) == len(fits)


def test_what_is_not_guessed_names_its_reason_and_numbers():
    conv = calls(mnist(64))
    relu_only = [one._replace(macs=0) for one in conv]
    lacking = guess_kernel_layers(launches(step(mnist(64))), relu_only)
    assert lacking.gaps[0].reason == "perfctl guessed no layers: there is no layer that multiplies"
    many = guess_kernel_layers(
        [Kernel(n, "volta_sgemm_128x64_tn") for n in range(100_001)], [conv[0]._replace(calls=600)]
    )
    assert (
        many.gaps[0].reason
        == "perfctl guessed no layers: 100001 launches on 600 layers are too many to align"
    )
    assert (many.guessed, many.gaps[0].state) == (0, "not_available")


def test_transforms_go_with_the_product_that_they_serve():
    """Of a Winograd convolution in parts: what comes in goes with the next product, what goes out
    with the last."""
    layers = blocks(32, 3)
    into, out = (
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)",
        "void cudnn::winograd_nonfused::winogradForwardOutput4x4<float, float>(int)",
    )
    truth = []
    for kernel, place in step(layers, train=False):
        if place[0] is not None and place[0].startswith("layer1"):
            truth += [((into, 4, 1), place), (kernel, place), ((out, 4, 1), place)]
        else:
            truth.append((kernel, place))
    made = guess_kernel_layers(launches(truth * 3), calls(layers, train=False))
    assert found(made.kernels) == places(truth) * 3
    assert {kernel.step for kernel in made.kernels} == {0, 1, 2}
