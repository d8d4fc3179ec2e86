"""Batch sizes that reports' names say: which, when somebody is asked, and what is listed before
anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import perfctl
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.ingest.context import UserHints
from perfctl.orchestrator.ingest.find import batch_in_name, batches_in_names, list_batches
from perfctl.orchestrator.ingest.ingest import ingest
from tests.cli.test_ingest import NCU


def sizes(*names: str, pattern: str | None = None) -> list[int | None]:
    files = [Path("runs", name) for name in names]
    chosen = batches_in_names(files, pattern)
    return [chosen.get(file) for file in files]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("ncu_b16.csv", 16),
        ("forward_batch_size_128.json", 128),
        ("trace bs=32.json", 32),
        ("batch=8/r.csv", 8),
        ("batchsize-64.csv", 64),
        ("BS_4.csv", 4),
        ("resnet_5_batch.csv", 5),
        ("b2/report.pt.trace.json.gz", 2),
        ("lib64.csv", None),
        ("gemm_bf16.csv", None),
        ("b200_trace.json", None),
        ("b0.csv", None),
        ("batch.csv", None),
        ("ncu-bs128.csv", 128),
        ("b32/report.csv", 32),
        ("conv2d_result.csv", None),
        ("web2.csv", None),
        ("b200_bf16_b1_ctx32k.ncu.csv", 1),
    ],
)
def test_a_name_says_its_batch_size_in_the_usual_forms(name: str, size: int | None) -> None:
    assert sizes(name) == [size]
    assert batch_in_name(Path("runs", name)) == size


def test_the_name_of_a_gpu_is_a_batch_size_only_beside_other_batch_sizes() -> None:
    assert sizes("ncu_b100.csv", "ncu_b200.csv") == [None, None]
    assert sizes("ncu_b50.csv", "ncu_b100.csv", "ncu_b200.csv", "nsys_b200.csv") == [
        50,
        100,
        200,
        None,
    ]


def test_a_pattern_of_ones_own_takes_the_place_of_the_usual_forms() -> None:
    assert sizes("run16_b7.csv", "run32_b7.csv", pattern=r"run(\d+)") == [16, 32]
    assert sizes("n=12/x.csv", pattern=r"n=(?P<batch>\d+)") == [12], (
        "the folder's name, where the file's has none"
    )
    assert sizes("a16.csv", "x.csv", pattern=r"(\d+)") == [16, None]


@pytest.mark.parametrize(
    ("pattern", "said"), [("b(", "invalid regular expression"), (r"b\d+", "has no group")]
)
def test_a_pattern_that_is_none_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sizes("b16.csv", pattern=pattern)


def test_of_several_numbers_in_a_name_somebody_decides_and_nobody_guesses() -> None:
    path = Path("b16_vs_b32.csv")
    assert batch_in_name(path) is None
    with pytest.raises(
        UsageError,
        match=r"b16_vs_b32.csv: the name may contain the batch size 16 or 32.*`batch_pattern`",
    ):
        batches_in_names([path])
    with pytest.raises(UsageError, match="the name may contain the batch size 1 or 16"):
        sizes("run1_b16.csv", "run2_b16.csv", pattern=r"(\d+)")
    asked: list[tuple[Path, list[int]]] = []

    def ask(file: Path, among: Sequence[int]) -> int:
        asked.append((file, list(among)))
        return among[-1]

    assert batches_in_names([path, Path("b8.csv"), Path("b4_b4.csv")], ask=ask) == {
        path: 32,
        Path("b8.csv"): 8,
        Path("b4_b4.csv"): 4,
    }
    assert asked == [(path, [16, 32])], "one number twice is one"


def test_each_file_is_listed_and_many_are_counted() -> None:
    few = {Path(f"r_b{size}.csv"): size for size in (16, 32)}
    assert list_batches(few) == [
        f"batch size {size}, from the name: r_b{size}.csv" for size in (16, 32)
    ]
    many = {Path(f"r{number}_b{8 << number % 2}.csv"): 8 << number % 2 for number in range(20)}
    lines = list_batches(many)
    assert (len(lines), lines[-1]) == (13, "and 8 more files, batch size (files): 8 (4), 16 (4)")


def test_a_pattern_for_paths_takes_each_file_in_with_the_batch_size_of_its_name(
    tmp_path: Path,
) -> None:
    for size in (16, 128):
        (tmp_path / f"forward_batch_size_{size}.csv").write_text(NCU.format(count=size))
    (tmp_path / "other_b1_b2.csv").write_text(NCU.format(count=3))
    done = perfctl.ingest(tmp_path / "forward_*.csv", tmp_path / "s.db")
    assert [
        (run.batch_size, path.name)
        for run, (path, _) in zip(perfctl.runs(tmp_path / "s.db"), done.taken, strict=True)
    ] == [
        (128, "forward_batch_size_128.csv"),
        (16, "forward_batch_size_16.csv"),
    ]
    with pytest.raises(UsageError, match=r"other_b1_b2\.csv"):
        perfctl.ingest(tmp_path, tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists(), "nothing was read"
    said = UserHints(batch=9)
    assert len(ingest(tmp_path / "other_b1_b2.csv", tmp_path / "s.db", hints=said).taken) == 1
