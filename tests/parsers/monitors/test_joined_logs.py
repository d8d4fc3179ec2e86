"""Several logs of nvidia-smi in one file, with a program's output between them or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import reports

HEADER = "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
OTHER = "timestamp, index, memory.used [MiB], power.draw [W]\n"
DMON = "# gpu    sm    fb\n# Idx     %    MB\n"


def row(minute: int, second: int, *cells: str) -> str:
    return ", ".join((f"2024/03/05 10:{minute:02d}:{second:02d}.250", *cells)) + "\n"


def log(minute: int, gpus: int = 2, rounds: int = 3) -> str:
    rows = [
        row(minute, second, str(gpu), "40 %", f"{minute} MiB")
        for second in range(rounds)
        for gpu in range(gpus)
    ]
    return HEADER + "".join(rows)


def counts(tmp_path: Path, text: str) -> list[int]:
    path = tmp_path / "job.log"
    path.write_text(text)
    return [len(list(part.report.samples)) for part in reports(path) if part.report is not None]


@pytest.mark.parametrize(
    "between",
    ["epoch 1, loss 0.5\n", "$ nvidia-smi --query-gpu=index --format=csv -l 1\n", "^C\n\ndone\n"],
)
def test_a_header_below_other_output_begins_a_run(tmp_path: Path, between: str) -> None:
    assert counts(tmp_path, log(1) + between + log(2, gpus=3) + between + log(3)) == [6, 9, 6]


def test_a_header_of_other_columns_begins_a_run(tmp_path: Path) -> None:
    other = OTHER + "".join(row(9, second, "0", "5 MiB", "70.5 W") for second in range(4))
    assert counts(tmp_path, log(1) + other) == [6, 4]


def test_one_header_for_each_reading_is_one_run_whatever_stands_between(tmp_path: Path) -> None:
    """A training that starts nvidia-smi once an epoch."""
    assert counts(
        tmp_path, "".join(f"epoch {minute}\n{log(minute, rounds=1)}" for minute in range(1, 6))
    ) == [10]


def test_dmon_that_was_started_again_is_a_run_and_its_own_headers_are_none(tmp_path: Path) -> None:
    full, last = DMON + "    0    40   100\n" * 10, DMON + "    0    41   101\n" * 4
    assert counts(tmp_path, full + full + last) == [24]
    assert counts(tmp_path, full + last + "training done\n" + full + last) == [14, 14]
    assert counts(tmp_path, full + "loss 0.5\n" + full + last) == [24], (
        "a program that prints between is one run"
    )
