"""Texts and their classes: made up so that only the order of letters tells classes apart, or read from CSV."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from perfctl.workloads.spec import WorkloadError

_FILLED = 0
"""Code after the end of a text that is shorter than the others."""
_LAST = 127
TEST_SHARE = 5
"""Every fifth row is kept for the test where there is no test.csv."""


def write_texts(count: int, length: int, classes: int, seed: int) -> TensorDataset:
    """``count`` texts of small letters, each with a pair of capitals somewhere: AB, BA, CD, DC, ... are the classes.

    Who sees only which letters occur can tell the pair and not the order: half of the answers at most are right.
    The same ``seed`` gives the same texts.
    """
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(ord("a"), ord("z") + 1, (count, length), generator=generator)
    labels = torch.arange(count) % classes
    labels = labels[torch.randperm(count, generator=generator)]
    places = torch.stack([torch.randperm(length, generator=generator)[:2] for _ in range(count)]).sort(dim=1).values
    first, rows = ord("A") + labels // 2 * 2, torch.arange(count)
    turned = labels % 2
    codes[rows, places[:, 0]] = first + turned
    codes[rows, places[:, 1]] = first + 1 - turned
    return TensorDataset(codes, labels)


def read_texts(place: Path, length: int, classes: int) -> tuple[TensorDataset, TensorDataset]:
    """(train, test) from DIR/train.csv and DIR/test.csv, or one file of which every fifth row is kept for the test.

    Columns "text" and "label" by name. Labels are numbers 0, 1, ...; any other words are numbered in their own
    alphabetical order, those of the training rows. Raises WorkloadError naming file and row.
    """
    train_file = place / "train.csv" if place.is_dir() else place
    rows = _rows(train_file)
    test_file = place / "test.csv"
    if test_file.is_file():
        test = _rows(test_file)
    else:
        test, rows = rows[::TEST_SHARE], [row for at, row in enumerate(rows) if at % TEST_SHARE]
    if not rows or not test:
        raise WorkloadError(f"{train_file} has too few rows to train and to test on: give at least {TEST_SHARE}")
    numbers = _numbers([label for _, label in rows], classes, train_file)
    return _as_tensors(rows, length, numbers, train_file), _as_tensors(test, length, numbers, test_file)


def _rows(file: Path) -> list[tuple[str, str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened)
            if not {"text", "label"} <= set(reader.fieldnames or ()):
                raise WorkloadError(f"{file} needs columns 'text' and 'label'; it has {reader.fieldnames or 'none'}")
            found = [(row["text"], row["label"]) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise WorkloadError(f"{file} cannot be read ({error}). Point --data-dir at a folder with train.csv") from error
    for at, (text, label) in enumerate(found, 2):
        if not text or not label:
            raise WorkloadError(f"{file}: record {at} has no {'label' if text else 'text'}. Complete or remove it")
    return found


def _numbers(labels: list[str], classes: int, file: Path) -> dict[str, int]:
    words = set(labels)
    if all(word.isdecimal() for word in words):
        numbers = {word: int(word) for word in words}
    else:
        numbers = {word: at for at, word in enumerate(sorted(words))}
    most = max(numbers.values())
    if most >= classes:
        raise WorkloadError(f"{file} has classes up to {most}, the network answers {classes}: say --classes {most + 1}")
    return numbers


def _as_tensors(rows: list[tuple[str, str]], length: int, numbers: dict[str, int], file: Path) -> TensorDataset:
    unknown = sorted({label for _, label in rows} - set(numbers))
    if unknown:
        raise WorkloadError(f"{file} has labels that no training row has: {', '.join(unknown[:3])}")
    codes = torch.stack([encode(text, length) for text, _ in rows])
    return TensorDataset(codes, torch.tensor([numbers[label] for _, label in rows]))


def encode(text: str, length: int) -> Tensor:
    """``length`` codes 0..127: the text cut, or filled with 0; what is not ASCII becomes 127."""
    codes = [min(ord(letter), _LAST) for letter in text[:length]]
    return torch.tensor(codes + [_FILLED] * (length - len(codes)), dtype=torch.int64)
