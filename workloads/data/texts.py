"""Texts with classes: synthetic ones whose class depends on the order of letters, or texts from
CSV files."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from perfctl.workloads.spec import WorkloadError

TEST_SHARE = 5
"""Every fifth row is a test row when there is no test.csv."""


def generate_synthetic_texts(count: int, length: int, classes: int, seed: int) -> TensorDataset:
    """``count`` texts of lower-case letters, each with a pair of capitals; the classes are AB, BA,
    CD, DC, ...

    A model that ignores the order of letters can identify the pair only, so at most half of its
    answers are correct. The same ``seed`` gives the same texts.
    """
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(ord("a"), ord("z") + 1, (count, length), generator=generator)
    labels = torch.arange(count) % classes
    labels = labels[torch.randperm(count, generator=generator)]
    places = (
        torch.stack([torch.randperm(length, generator=generator)[:2] for _ in range(count)])
        .sort(dim=1)
        .values
    )
    first, rows = ord("A") + labels // 2 * 2, torch.arange(count)
    turned = labels % 2
    codes[rows, places[:, 0]], codes[rows, places[:, 1]] = first + turned, first + 1 - turned
    return TensorDataset(codes, labels)


def read_texts(path: Path, length: int, classes: int) -> tuple[TensorDataset, TensorDataset]:
    """Return (train, test) from train.csv and test.csv in a folder, or from one file, of which
    every fifth row is a test row.

    Needs columns "text" and "label". Labels are numbers 0, 1, ..., or words, numbered in the
    alphabetical order of the training labels. Raises WorkloadError naming file and row.
    """
    train_file = path / "train.csv" if path.is_dir() else path
    rows = _read_label_text_rows(train_file)
    test_file = path / "test.csv"
    if test_file.is_file():
        test = _read_label_text_rows(test_file)
    else:
        test, rows = (
            rows[::TEST_SHARE],
            [row for index, row in enumerate(rows) if index % TEST_SHARE],
        )
    if not rows or not test:
        raise WorkloadError(
            f"{train_file} has too few rows to train and test: it needs at least {TEST_SHARE}"
        )
    numbers = _assign_label_numbers([label for _, label in rows], classes, train_file)
    return _encode_rows(rows, length, numbers, train_file), _encode_rows(
        test, length, numbers, test_file
    )


def _read_label_text_rows(file: Path) -> list[tuple[str, str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened)
            if not {"text", "label"} <= set(reader.fieldnames or ()):
                raise WorkloadError(
                    f"{file} needs columns 'text' and 'label'; it has {reader.fieldnames or 'none'}"
                )
            rows = [(row["text"], row["label"]) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise WorkloadError(
            f"{file} cannot be read ({error}). Set `data_dir` to a folder with train.csv"
        ) from error
    for number, (text, label) in enumerate(rows, 2):
        if not text or not label:
            raise WorkloadError(
                f"{file}: record {number} has no {'label' if text else 'text'}. Complete or "
                "remove it"
            )
    return rows


def _assign_label_numbers(labels: list[str], classes: int, file: Path) -> dict[str, int]:
    names = sorted(set(labels))
    counted = all(name.isdecimal() for name in names)
    numbers = {name: int(name) if counted else index for index, name in enumerate(names)}
    most = max(numbers.values())
    if most >= classes:
        few = f"the model has only {classes} outputs; set `classes` to {most + 1}"
        raise WorkloadError(f"{file} has class {most}, but {few}")
    return numbers


def _encode_rows(
    rows: list[tuple[str, str]], length: int, numbers: dict[str, int], file: Path
) -> TensorDataset:
    unknown = sorted({label for _, label in rows} - set(numbers))
    if unknown:
        raise WorkloadError(
            f"{file} has labels that are missing from the training rows: {', '.join(unknown[:3])}"
        )
    codes = torch.stack([encode_characters(text, length) for text, _ in rows])
    return TensorDataset(codes, torch.tensor([numbers[label] for _, label in rows]))


def encode_characters(text: str, length: int) -> Tensor:
    """``length`` codes 0..127: the text, cut or padded with 0; non-ASCII characters become 127."""
    codes = [min(ord(letter), 127) for letter in text[:length]]
    return torch.tensor(codes + [0] * (length - len(codes)), dtype=torch.int64)
