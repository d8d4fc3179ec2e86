"""Which tensors live at each moment of a step of small plans, worked out by hand.

test_precision compares the lines of all families with traces of the built networks.
"""

from __future__ import annotations

from perfctl.orchestrator.estimate.memory import MemoryLine, compute_batch_peak_bytes
from perfctl.orchestrator.estimate.plan_memory import (
    compute_inference_memory_envelope,
    compute_training_memory_envelope,
)
from perfctl.orchestrator.predict.operations import Operation, list_plan_forward_operations
from perfctl.records.paper import Plan, PlanLayer


def plan_of(*layers, classes, activation="relu"):
    settings: dict[str, int | str] = {
        "classes": classes,
        "activation": activation,
        "optimizer": "sgd",
    }
    return Plan("made up", "mlp", settings, layers)


FC = PlanLayer("fc", "linear", (-1,), (10, 1, 1), (4, 1, 1), bias=True)
ONE = plan_of(FC, classes=4)
"""44 parameters; 10 values in, 4 out."""
TWO = plan_of(
    PlanLayer("fc1", "linear", (-1,), (10, 1, 1), (6, 1, 1), bias=True),
    PlanLayer("act1", "activation", (0,), (6, 1, 1), (6, 1, 1)),
    PlanLayer("fc2", "linear", (1,), (6, 1, 1), (4, 1, 1), bias=True),
    classes=4,
)
"""66 + 28 parameters."""


def test_one_linear_layer_holds_parameters_input_output_and_the_losss_tensors():
    # Input 10 values and the class's place; output 4; loss 4 + 8 bytes; logarithms, theirs and the
    # answers' gradient.
    fixed, answers = 4 * 44, 4 * 4
    sample = 4 * 10 + 8 + answers
    at_loss = MemoryLine(fixed + 8, sample + 3 * answers)
    at_gradient = MemoryLine(fixed + 8 + 4 * 44, sample + answers)
    assert compute_training_memory_envelope(ONE, "sgd") == (at_loss, at_gradient)
    assert compute_batch_peak_bytes(compute_training_memory_envelope(ONE, "sgd"), 1) == max(
        184 + 112, 360 + 80
    )


def test_optimizers_keep_their_state_and_some_take_copies_of_all_parameters_for_their_update():
    plain = compute_training_memory_envelope(ONE, "sgd")
    assert compute_training_memory_envelope(ONE, "momentum") == tuple(
        MemoryLine(line.fixed + 176, line.per_sample) for line in plain
    )
    loss, gradient = (MemoryLine(line.fixed + 352, line.per_sample) for line in plain)
    # The step comes last, when the loss, its gradient and the answers are gone: the square roots of
    # all 44.
    assert compute_training_memory_envelope(ONE, "adam") == (
        loss,
        gradient,
        MemoryLine(gradient.fixed - 8 + 4 * 44, 4 * 10 + 8),
    )
    assert compute_training_memory_envelope(ONE, "adamw") == compute_training_memory_envelope(
        ONE, "adam"
    )
    fullest = [
        max(line.fixed for line in compute_training_memory_envelope(ONE, name)) - plain[-1].fixed
        for name in ("adadelta", "rmsprop")
    ]
    # state and copies, without the loss
    assert fullest == [(2 + 2) * 4 * 44 - 8, (1 + 1) * 4 * 44 - 8]


def test_inference_lets_go_of_what_has_been_read():
    parameters = 4 * (66 + 28)
    # The input stays the caller's; fc1's 6 values live until act1 is done, whose 6 until fc2 is.
    assert compute_inference_memory_envelope(TWO) == (
        MemoryLine(parameters, 4 * 10 + 8 + 4 * (6 + 6)),
    )
    assert compute_inference_memory_envelope(ONE) == (MemoryLine(176, 48 + 16),)


def test_an_activation_keeps_its_output_or_its_input_for_backward():
    parameters, inputs = 4 * 94, 4 * 10 + 8
    # relu reads its output, fc2 its input: the same 6 values; the answers
    keeps_one = inputs + 4 * 6 + 4 * 4
    # The loss takes three more of the answers; fc2's gradients and its input's are no more than
    # what comes next. act1 makes its input's gradient of 6 beside its output's, and its output is
    # still kept.
    act = MemoryLine(parameters + 8 + 4 * 28, keeps_one + 24 + 24)
    # fc1 makes its parameters' gradients of 66; what act1 kept is gone.
    last = MemoryLine(parameters + 8 + 4 * (28 + 66), inputs + 4 * 4 + 24)
    relu = compute_training_memory_envelope(TWO, "sgd")
    assert relu == (act, last)
    gelu = compute_training_memory_envelope(
        plan_of(*TWO.layers, classes=4, activation="gelu"), "sgd"
    )
    # fc1's output and act1's are both kept, so that the loss is the fullest; fc2 is done with
    # act1's before act1's turn.
    assert gelu == (
        MemoryLine(parameters + 8, keeps_one + 24 + 3 * 16),
        MemoryLine(parameters + 8 + 4 * 28, keeps_one + 24 + 16 + 24),
        last,
    )


CONV = PlanLayer("conv", "conv", (-1,), (3, 6, 6), (5, 6, 6), kernel=3, padding=1)
CNN = plan_of(
    CONV,
    PlanLayer("norm", "norm", (0,), (5, 6, 6), (5, 6, 6)),
    PlanLayer("act", "activation", (1,), (5, 6, 6), (5, 6, 6)),
    PlanLayer("pool", "max_pool", (2,), (5, 6, 6), (5, 3, 3), kernel=2, stride=2),
    PlanLayer("add", "add", (3, 3), (5, 3, 3), (5, 3, 3)),
    PlanLayer("cat", "concat", (4, 3), (5, 3, 3), (10, 3, 3)),
    PlanLayer("flat", "flatten", (5,), (10, 3, 3), (90, 1, 1)),
    PlanLayer("fc", "linear", (6,), (90, 1, 1), (4, 1, 1), bias=True),
    classes=4,
)


def test_inference_of_a_network_with_branches_frees_each_storage_after_its_last_reader():
    # running statistics of 5 channels, and the counter of batches
    parameters = 4 * (135 + 10 + 364) + (2 * 4 * 5 + 8)
    inputs = 4 * 108 + 8
    image, small = 4 * 180, 4 * 45
    # conv + norm; norm + act; act + pool with its places; pool + add; pool + add + cat; cat + fc.
    fullest = max(2 * image, image + small + 8 * 45, small + small + 2 * small, 4 * 90 + 16)
    # with a norm's statistics
    assert compute_inference_memory_envelope(CNN) == (
        MemoryLine(parameters + 2 * 4 * 5, inputs + fullest),
    )
    wide = plan_of(
        CONV,
        PlanLayer("pool", "max_pool", (0,), (5, 6, 6), (5, 6, 6), kernel=3, padding=1),
        classes=4,
    )
    assert compute_inference_memory_envelope(wide) == (
        MemoryLine(4 * 135, inputs + image + image + 8 * 180),
    )


def test_works_of_a_plan_are_its_layers_with_a_softmax_and_a_loss_at_the_end():
    assert list_plan_forward_operations(CNN) == (
        Operation("conv", "conv", 1, 180 * 27, 108, 180, 135, 36, 5, 27, kernel=9, first=True),
        Operation("norm", "norm", 1, 0, 180, 180, 10, 0, 0, 0),
        Operation("act", "activation", 1, 0, 180, 180, 0, 0, 0, 0),
        Operation("pool", "pool", 1, 0, 180, 90, 0, 0, 0, 0, kernel=4, stride=2),
        Operation("add", "elementwise", 1, 0, 90, 45, 0, 0, 0, 0),
        Operation("cat", "memory", 1, 0, 90, 90, 0, 0, 0, 0),
        Operation("fc", "linear", 1, 360, 90, 4, 364, 1, 4, 90),
        Operation("", "softmax", 1, 0, 4, 4, 0, 0, 0, 0),
        Operation("", "loss", 1, 0, 5, 1, 0, 0, 0, 0),
    )
    assert [work.first for work in list_plan_forward_operations(TWO)] == [
        True,
        False,
        False,
        False,
        False,
    ]


def test_a_mean_over_a_window_is_elementwise_work_without_a_window_of_its_own():
    plan = plan_of(
        PlanLayer("mean", "mean_pool", (-1,), (5, 6, 6), (5, 3, 3), kernel=2, stride=2),
        PlanLayer("conv", "conv", (0,), (5, 3, 3), (2, 1, 1), kernel=3, stride=2, bias=True),
        classes=2,
    )
    assert list_plan_forward_operations(plan)[:2] == (
        Operation("mean", "elementwise", 1, 0, 180, 45, 0, 0, 0, 0, stride=2),
        Operation("conv", "conv", 1, 2 * 45, 45, 2, 92, 1, 2, 45, kernel=9, stride=2, first=True),
    )
