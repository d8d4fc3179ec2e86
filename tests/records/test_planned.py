"""Multiply-adds, parameters and elements of layers on paper, each from its dimensions. 1
multiply-add is 2 FLOPs."""

from __future__ import annotations

import pytest

from perfctl.records.paper import Plan, PlanLayer

CONV = PlanLayer(
    "conv1", "conv", (-1,), (3, 32, 30), (16, 15, 14), kernel=5, stride=2, padding=1, bias=True
)
NORM = PlanLayer("bn1", "norm", (0,), (16, 15, 14), (16, 15, 14))
FULL = PlanLayer("fc", "linear", (1,), (3360, 1, 1), (10, 1, 1))


def layer(kind, of, given, gives):
    return PlanLayer(kind, kind, of, given, gives)


def test_a_convolution_multiplies_its_window_over_all_input_channels_for_each_output():
    assert CONV.output_elements == 16 * 15 * 14
    assert CONV.all_input_elements == 3 * 32 * 30
    assert CONV.forward_macs_per_sample == (16 * 15 * 14) * (3 * 5 * 5)
    assert CONV.parameters == 16 * (3 * 5 * 5 + 1)
    assert CONV._replace(bias=False).parameters == 16 * 3 * 5 * 5


def test_a_full_layer_is_a_window_of_one_pixel():
    assert FULL.forward_macs_per_sample == 3360 * 10
    assert FULL.parameters == 3360 * 10
    assert FULL._replace(bias=True).parameters == 3360 * 10 + 10


def test_a_norm_learns_a_scale_and_a_shift_for_each_channel_and_multiplies_no_matrix():
    assert (NORM.forward_macs_per_sample, NORM.parameters) == (0, 2 * 16)


@pytest.mark.parametrize(
    "kind", ["activation", "max_pool", "mean_pool", "add", "concat", "flatten"]
)
def test_other_layers_multiply_no_matrix_and_learn_nothing(kind):
    one = layer(kind, (0,), (4, 6, 8), (4, 6, 8))
    assert (one.forward_macs_per_sample, one.parameters, one.output_elements) == (0, 0, 4 * 6 * 8)


def test_an_addition_reads_all_its_inputs_and_a_concatenation_what_it_gives():
    assert layer("add", (0, 1, 2), (4, 6, 8), (4, 6, 8)).all_input_elements == 3 * 4 * 6 * 8
    assert layer("concat", (0, 1), (4, 6, 8), (9, 6, 8)).all_input_elements == 9 * 6 * 8


def test_a_plan_adds_up_its_layers_and_takes_square_images():
    settings: dict[str, int | str] = {
        "channels": 3,
        "image": "32",
        "classes": "10",
        "optimizer": "adam",
    }
    plan = Plan("vgg", "vgg", settings, (CONV, NORM, FULL))
    assert plan.forward_macs_per_sample == 16 * 15 * 14 * 75 + 3360 * 10
    assert plan.parameters == 16 * 76 + 32 + 33_600
    assert (plan.input_shape, plan.classes, plan.optimizer) == ((3, 32, 32), 10, "adam")


def test_a_layer_of_which_nobody_said_so_has_a_window_of_one_pixel_without_padding_or_bias():
    assert (NORM.kernel, NORM.stride, NORM.padding, NORM.bias) == (1, 1, 0, False)
    assert layer("conv", (0,), (4, 6, 8), (5, 6, 8)).forward_macs_per_sample == (5 * 6 * 8) * 4
    assert layer("linear", (0,), (3, 2, 1), (5, 1, 1)).all_input_elements == 3 * 2 * 1
    empty = Plan("mlp", "mlp", {}, ())
    assert (empty.forward_macs_per_sample, empty.parameters) == (0, 0)
