"""One question asked of several surfaces: what two of them print is the same value."""

from __future__ import annotations

import json
from itertools import product

import pytest

import perfctl
from perfctl.orchestrator.cli.main import run

GIB = 1024**3
DEVICE, LIMIT, CAPABILITY = "3090", "24GiB", "8.6"
QUESTIONS = tuple(
    product(
        ("mnist_cnn", "alexnet"), ((32, "sgd"), (116, "adam"), (512, "momentum")), ("fp32", "bf16")
    )
)


@pytest.mark.parametrize(("model", "step", "precision"), QUESTIONS)
def test_memory_and_largest_batch_are_the_same_wherever_they_are_printed(
    model: str, step: tuple[int, str], precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchvision")
    batch, optimizer = step

    def ask(*words: str) -> str:
        line = f"{model} --batch {batch} --optimizer {optimizer} --precision {precision}".split()
        assert run([words[0], *line, *words[1:]]) == 0
        return capsys.readouterr().out

    predicted = json.loads(ask("predict", "--device", DEVICE, "--json"))
    estimated = json.loads(ask("estimate", "--memory", LIMIT, "--gpu", CAPABILITY, "--json"))
    (answer,) = predicted["batches"]
    memory, own = answer["memory"], estimated["batches"][str(batch)]
    assert memory["needed_bytes"] == own["memory"]["allocated"]
    assert memory["largest_batch"] == estimated["largest_batch"]["batch"]
    assert memory["fits"] is (batch <= estimated["largest_batch"]["batch"])
    answered = perfctl.predict(
        model, batch=batch, device=DEVICE, optimizer=optimizer, precision=precision
    )
    room = answered.points[0].training.room
    assert room is not None
    assert (room.needed, room.largest) == (memory["needed_bytes"], memory["largest_batch"])
    assert predicted["parameters"] == own["parameters"]
    text = " ".join(ask("predict", "--device", DEVICE).split())
    needed = memory["needed_bytes"] + memory["reserve_bytes"]
    assert f"memory {digits(needed / GIB)} GiB of" in text
    assert f"largest batch {memory['largest_batch']:,}" in text


def digits(value: float) -> str:
    """Return a value with three digits, as the terminal prints it."""
    return f"{value:.3g}" if value >= 100 else f"{value:#.3g}"
