"""The first sentence of a finding is at most 140 characters, whatever the names, and nothing of the
text is lost."""

import random
import re

import pytest

from perfctl.orchestrator.report.page.records import LONGEST, LONGEST_NOTE, Finding, split_long_note

PIECES = (
    "The runs at batch 16 failed",
    "model.layers." + "very_long_block_name." * 8 + "q_proj",
    "out of memory (on every device; three of them)",
    "gemm<float, 128> takes 80.0% of the kernel time",
    "conv2",
    "the tool gave up",
)


def letters(text):
    return "".join(re.findall(r"\w+", text.lower()))


@pytest.mark.parametrize("seed", range(200))
def test_a_first_sentence_has_at_most_140_characters(seed):
    rng = random.Random(seed)
    pieces = rng.choices(PIECES, k=rng.randint(1, 9))
    text = "".join(f"{piece}{rng.choice(['. ', '; ', ': ', ', ', ' (', ' '])}" for piece in pieces)
    item = Finding(f"{text}end.", "runs")
    assert len(item.first) <= LONGEST
    assert item.first.endswith((".", "…"))
    assert letters(item.first + item.details) == letters(item.text)


def test_a_long_sentence_ends_after_a_clause_and_never_inside_of_brackets():
    head = (
        "The runs at batch 16 failed (out of memory, on every device that was tried; three of them)"
    )
    item = Finding(f"{head}: {'the driver said so, ' * 8}and stopped. More follows.", "runs")
    assert item.first.startswith(head) and item.first.count("(") == item.first.count(")")
    assert len(item.first) <= LONGEST and item.details.endswith("and stopped. More follows.")
    assert Finding("x" * 500, "runs").first == "x" * (LONGEST - 2) + " …"
    short = "Two sentences. They fit."
    assert (Finding(short, "runs").first, Finding(short, "runs").details) == (short, "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(
            "Short. " * 9 + "End.", "Short. " * 9 + "End.", id="two lines are not divided"
        ),
        pytest.param(
            "Ten words. " * 40 + "End.", "Ten words. " * 26 + "Ten words.", id="sentences"
        ),
        pytest.param("n" * 200 + "; " + "m" * 200 + ".", "n" * 200 + ".", id="one long sentence"),
    ],
)
def test_a_note_shows_the_sentences_that_fit_and_folds_the_others(text, shown):
    first, folded = split_long_note(text)
    assert first == shown and len(first) <= LONGEST_NOTE
    assert letters(first + folded) == letters(text)


def test_a_shortened_kernel_name_is_not_broken_at_its_comma():
    name = "optimizer: multi_tensor_apply_kernel<…3>, PointwiseOpScalarFunctor<float, 3, 3, 0…"
    text = f"{name} is gone at batch 64, 256, 16: in A only, 27.0 µs per step at batch 64."
    assert Finding(text, "kernels").first == f"{name} is gone at batch 64, 256, 16."
