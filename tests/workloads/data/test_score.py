"""Top-1, top-5 and loss against the slow and obvious way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.workloads.data.images import Score
from tests.workloads.imagenet_shaped import slow


@settings(max_examples=60)
@given(st.data())
def test_top1_top5_and_loss_are_those_of_sorted_answers(data: st.DataObject) -> None:
    classes, images = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 12))
    value = st.integers(-4, 4).map(float)  # few values, so that equal answers come up
    answers = data.draw(
        st.lists(
            st.lists(value, min_size=classes, max_size=classes), min_size=images, max_size=images
        )
    )
    targets = data.draw(st.lists(st.integers(0, classes - 1), min_size=images, max_size=images))
    score = Score()
    given, labels = np.array(answers, dtype=np.float32), np.array(targets, dtype=np.int64)
    for part in (slice(0, images // 2), slice(images // 2, None)):
        score.add(given[part], labels[part])
    first, among, loss = slow(answers, targets)
    assert (score.images, score.first, score.among) == (images, first, among)
    assert score.loss == pytest.approx(loss)


def test_images_that_were_not_read_do_not_count() -> None:
    score = Score()
    answers = np.eye(3, dtype=np.float32)
    assert score.add(answers, np.array([0, -2, 0])) == (pytest.approx(score.loss / 2), 0.5)
    assert (score.images, score.first) == (2, 1)
    assert score.add(answers[:1], np.array([-1])) == (None, None)


def test_an_answer_of_nan_is_wrong_and_not_in_the_loss() -> None:
    score = Score()
    answers = np.array([[np.nan, 1.0], [0.0, np.inf], [0.0, 0.0]], dtype=np.float32)
    loss, top1 = score.add(answers, np.array([0, 1, 0]))
    assert (score.unclear, score.first, top1) == (2, 1, 1 / 3)
    assert loss == pytest.approx(math.log(2))
    loss, _ = score.add(np.array([[1e4, 0.0]], dtype=np.float32), np.array([1]))
    assert loss == pytest.approx(1e4), "large answers do not overflow"
