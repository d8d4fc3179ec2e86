"""What ``perfctl predict`` refuses before anything is built, exactly at the edges of what
it takes."""

import math
from dataclasses import replace

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.predict.answer import (
    LIKE,
    OPTIMIZERS,
    Question,
    Subject,
)
from perfctl.orchestrator.predict.training import build_step_spec
from tests.make.steps import linear

ASKED = Question("mlp", batch=64)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch": (1,)},
        {"batch": (1, 2, 4096)},
        {"precision": "tf32"},
        {"dataset_size": 1, "epochs": 1},
        {"gpus": 1, "threads": 1, "mode": "infer"},
        {"tariff": 0.01, "power": 0.5, "interconnect": 0.1, "gpus": 2, "optimizer": "adam"},
        {"overlap": 0.0, "efficiency": 0.001, "dataset_size": 1000},
        {"overlap": 1.0, "efficiency": 1.0},
        {"compiled": True, "mode": "infer", "device": "T4"},
    ],
)
def test_what_can_be_answered_is_not_refused(changes):
    replace(ASKED, **changes).check()


@pytest.mark.parametrize(
    ("changes", "said", "remedy"),
    [
        ({"batch": ()}, "no batch size", "`batch` 64"),
        ({"batch": (64, 0)}, "`batch` must be at least 1", "(got 0)"),
        (
            {"precision": "fp64"},
            "`precision` must be one of fp32, tf32, bf16, fp16, got 'fp64'",
            "",
        ),
        *(
            ({"dataset_size": 5, name: value}, f"`{name}` must be at least 1, got {value}", "")
            for name, value in (
                ("dataset_size", 0),
                ("dataset_size", -5),
                ("epochs", 0),
                ("gpus", 0),
                ("threads", 0),
                ("threads", -1),
            )
        ),
        *(
            ({name: value}, f"`{name}` must be a number above 0, got {value}", "Omit it")
            for name, value in (
                ("tariff", math.inf),
                ("tariff", 0.0),
                ("power", -1.0),
                ("interconnect", math.inf),
                ("interconnect", math.nan),
            )
        ),
        *(
            (
                {"overlap": value},
                f"`overlap` must be between 0 and 1, got {value}",
                "0 hides no communication",
            )
            for value in (-0.01, 1.01)
        ),
        *(
            (
                {"efficiency": value},
                f"`efficiency` must be above 0 and at most 1, got {value}",
                "For example 0.9",
            )
            for value in (0.0, 1.01)
        ),
        (
            {"mode": "infer", "optimizer": "sgd"},
            "`optimizer` is not available with `mode` infer, because inference has no optimizer",
            "Omit one",
        ),
        (
            {"mode": "infer", "gpus": 2},
            "`gpus` is not available with `mode` infer, because GPUs exchange no",
            "Divide the dataset",
        ),
        (
            {"compiled": True},
            "`compiled` is not available in training: perfctl found no published times under torch.compile",
            "`mode` infer",
        ),
        (
            {"compiled": True, "mode": "infer", "device": "CPU", "precision": "bf16"},
            "`compiled` with `device` cpu in bf16: perfctl has no fit",
            "eager mode",
        ),
        ({"epochs": 3}, "`epochs` needs `dataset_size`", "`dataset_size` 1281167"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(changes, said, remedy):
    with pytest.raises(UsageError) as caught:
        replace(ASKED, **changes).check()
    assert said in str(caught.value)
    assert remedy in f"{caught.value} {getattr(caught.value, 'remedy', '')}"


def test_one_gpu_and_nothing_hidden_are_what_is_asked_for_unless_said():
    assert (ASKED.gpus, ASKED.overlap, ASKED.is_inference) == (1, 0.0, False)
    assert (ASKED.precision_or_default, ASKED.optimizer) == ("fp32", None)


@pytest.mark.parametrize(
    ("said", "taken"),
    [("adamw", "adam"), ("adadelta", "adam"), ("rmsprop", "momentum"), ("sgd", "sgd")],
)
def test_an_optimizer_is_predicted_as_the_one_that_keeps_as_many_values(said, taken):
    subject = Subject("mlp", "mlp", (linear("fc", 2, 3),), True, 9, said, None)
    case = build_step_spec(Question("mlp", batch=4, precision="tf32"), subject, 4)
    assert (case.batch, case.precision, case.optimizer, case.parameters, case.training) == (
        4,
        "tf32",
        taken,
        9,
        True,
    )
    assert case.forward_macs_of_batch == 4 * 6
    assert set(OPTIMIZERS) == {"sgd", "momentum", "adam", *LIKE}
