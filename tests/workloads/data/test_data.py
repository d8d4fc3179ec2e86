"""Drawn digits, and MNIST read from small files made here."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from perfctl.workloads.data import mnist
from perfctl.workloads.data.images import ClassificationScore
from perfctl.workloads.spec import WorkloadError, WorkloadOptions
from tests.workloads.imagenet_shaped import slow


def write_mnist(folder, train, test):
    """Tiny idx files of random pixels, laid out as MNIST is; returns the training pixels."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    first = torch.empty(0)
    for name, count in (("train", train), ("t10k", test)):
        pixels = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8)
        labels = torch.arange(count, dtype=torch.uint8) % 10
        (raw / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 0x803, count, 28, 28) + pixels.numpy().tobytes()
        )
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 0x801, count) + labels.numpy().tobytes()
        )
        first = pixels if name == "train" else first
    return first


def test_the_same_seed_draws_the_same_digits():
    one, two, other = (mnist.generate_synthetic_digits(40, seed).tensors for seed in (3, 3, 4))
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    assert not torch.equal(one[0], other[0])


def test_drawn_digits_have_the_form_of_mnist():
    images, labels = mnist.generate_synthetic_digits(200, 0).tensors
    assert images.shape == (200, 1, 28, 28)
    assert images.dtype == torch.float32
    assert labels.bincount(minlength=10).tolist() == [20] * 10
    darkest, brightest = (0 - 0.1307) / 0.3081, (1 - 0.1307) / 0.3081
    assert images.min().item() == pytest.approx(darkest)
    assert images.max().item() <= brightest + 1e-6


def test_train_and_test_digits_differ():
    train, test = mnist.load_digits(WorkloadOptions(batch_size=4))
    assert (mnist.count_samples(train), mnist.count_samples(test)) == (2048, 512)
    assert not torch.equal(
        mnist.collate_batch(train, torch.arange(9))[0],
        mnist.collate_batch(test, torch.arange(9))[0],
    )


def test_mnist_files_are_read_and_normalised(tmp_path):
    pixels = write_mnist(tmp_path, train=12, test=5)
    train, test = mnist.load_digits(WorkloadOptions(batch_size=4, data="mnist", data_dir=tmp_path))
    assert (mnist.count_samples(train), mnist.count_samples(test)) == (12, 5)
    images, labels = mnist.collate_batch(train, torch.tensor([11, 0]))
    expected = (pixels[[11, 0]].double() / 255 - 0.1307) / 0.3081
    assert torch.allclose(images[:, 0].double(), expected, atol=1e-6)
    assert labels.tolist() == [1, 0]


def test_missing_mnist_says_what_is_expected_where_and_nothing_is_fetched(tmp_path, monkeypatch):
    import torchvision

    def fetch(self):
        raise AssertionError("it went to the network")

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", fetch)
    with pytest.raises(WorkloadError) as caught:
        mnist.load_mnist(tmp_path, download=False)
    text = str(caught.value)
    for part in (
        str(tmp_path / "MNIST" / "raw"),
        "t10k-labels-idx1-ubyte",
        "`data_dir`",
        "`download`",
    ):
        assert part in text
    assert "\n" not in text


def test_a_cut_off_mnist_file_is_named_as_unreadable(tmp_path):
    write_mnist(tmp_path, train=12, test=5)
    images = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:100])
    with pytest.raises(WorkloadError, match="cannot be read"):
        mnist.load_mnist(tmp_path, download=False)


def test_batches_are_always_full_and_samples_repeat():
    numbers = TensorDataset(torch.arange(5), torch.arange(5))
    batches = mnist.make_fixed_batches(numbers, batch_size=8, max_batches=3)
    assert [inputs.tolist() for inputs, _ in batches] == [[0, 1, 2, 3, 4, 0, 1, 2]]
    batches = mnist.make_fixed_batches(numbers, batch_size=2, max_batches=10)
    assert [inputs.tolist() for inputs, _ in batches] == [[0, 1], [2, 3]], (
        "no more than the data fills"
    )


def test_a_data_set_without_tensors_is_put_together_sample_by_sample():
    class Squares(Dataset[tuple[torch.Tensor, int]]):
        def __getitem__(self, index):
            return torch.tensor([float(index)]), index * index

        def __len__(self):
            return 9

    inputs, labels = mnist.collate_batch(Squares(), torch.tensor([2, 3]))
    assert inputs.tolist() == [[2.0], [3.0]]
    assert labels.tolist() == [4, 9]


# Top-1, top-5 and loss against the slow and obvious way


@settings(max_examples=60)
@given(st.data())
def test_top1_top5_and_loss_are_those_of_sorted_answers(data):
    classes, images = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 12))
    value = st.integers(-4, 4).map(float)  # few values, so that equal answers come up
    answers = data.draw(
        st.lists(
            st.lists(value, min_size=classes, max_size=classes), min_size=images, max_size=images
        )
    )
    targets = data.draw(st.lists(st.integers(0, classes - 1), min_size=images, max_size=images))
    score = ClassificationScore()
    given, labels = np.array(answers, dtype=np.float32), np.array(targets, dtype=np.int64)
    for part in (slice(0, images // 2), slice(images // 2, None)):
        score.add_batch_returning_loss_top1(given[part], labels[part])
    first, among, loss = slow(answers, targets)
    assert (score.images, score.first, score.among) == (images, first, among)
    assert score.loss == pytest.approx(loss)


def test_images_that_were_not_read_do_not_count():
    score = ClassificationScore()
    answers = np.eye(3, dtype=np.float32)
    assert score.add_batch_returning_loss_top1(answers, np.array([0, -2, 0])) == (
        pytest.approx(score.loss / 2),
        0.5,
    )
    assert (score.images, score.first) == (2, 1)
    assert score.add_batch_returning_loss_top1(answers[:1], np.array([-1])) == (None, None)


def test_an_answer_of_nan_is_wrong_and_not_in_the_loss():
    score = ClassificationScore()
    answers = np.array([[np.nan, 1.0], [0.0, np.inf], [0.0, 0.0]], dtype=np.float32)
    loss, top1 = score.add_batch_returning_loss_top1(answers, np.array([0, 1, 0]))
    assert (score.unclear, score.first, top1) == (2, 1, 1 / 3)
    assert loss == pytest.approx(math.log(2))
    loss, _ = score.add_batch_returning_loss_top1(
        np.array([[1e4, 0.0]], dtype=np.float32), np.array([1])
    )
    assert loss == pytest.approx(1e4), "large answers do not overflow"
