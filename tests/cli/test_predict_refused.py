"""What perfctl predict cannot answer: one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NET = "vgg:depth=6,stages=3,width=16,image=32,hidden=64"
SPEC = (
    "name=X1,fp32_tflops=8.1408,bandwidth_gbs=320,memory_gb=16,tensor_fp16_tflops=65,sms=40,"
    "clock_mhz=1590"
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--batch", 64, "--device", "A10H"),
            "'A10H' is not in the table of devices. Similar names: A10,",
        ),
        (("--batch", 64, "--device", "A10H"), "--device-spec name=...,fp32_tflops=..."),
        (("--batch", 64), "no device. Use --device A100"),
        (
            ("--batch", 64, "--device", "T4", "--device-spec", SPEC),
            "--device and --device-spec exclude each other",
        ),
        (
            ("--batch", 64, "--device-spec", "name=X1"),
            "fp32_tflops, bandwidth_gbs, memory_gb missing",
        ),
        (("--batch", 64, "--device", "cuda"), "'cuda' matches several GPU models"),
        (
            ("--batch", 64, "--device", "V100", "--precision", "bf16"),
            "V100 SXM2 16 GB has no fast bf16",
        ),
        (
            ("--batch", 64, "--device", "T4", "--precision", "tf32"),
            "T4 has no TF32 (matrix multiplications would run in fp32, no faster). Available precisions: fp32, fp16",
        ),
        (("--batch", 64, "--device", "P40", "--precision", "fp16"), "P40 has no fast fp16"),
        (("--batch", 64, "--device", "cpu", "--precision", "tf32"), "a CPU has no TF32"),
        (
            ("--batch", 64, "--device", "T4", "--precision", "fp8"),
            "--precision must be one of fp32, tf32, bf16, fp16, got 'fp8'",
        ),
        (("--device", "T4"), "no batch size"),
        (("--batch", 0, "--device", "T4"), "--batch must be at least 1"),
        (("--batches", "4,x", "--device", "T4"), "invalid value 'x' for --batch"),
        (("--batch", 4, "--device", "T4", "--epochs", 2), "--epochs needs --dataset-size"),
        (
            ("--batch", 4, "--device", "T4", "--dataset-size", 0),
            "--dataset-size must be at least 1, got 0",
        ),
        (
            ("--batch", 4, "--device", "T4", "--optimizer", "lion"),
            "invalid value 'lion' for --optimizer",
        ),
        (
            ("--batch", 4, "--device", "T4", "--overlap", 2),
            "--overlap must be between 0 and 1, got 2.0",
        ),
        (
            ("--batch", 4, "--device", "T4", "--tariff", "nan"),
            "--tariff must be a number above 0, got nan",
        ),
        (
            ("--batch", 4, "--device", "T4", "--mode", "infer", "--gpus", 2),
            "--gpus is not available with --mode infer",
        ),
        (("--batch", 4, "--device", "T4", "--frontier"), "--frontier needs --dataset-size"),
        (("--batch", 4, "--device", "T4", "--store", "no.db"), "--store: no.db not found"),
        (
            ("--batch", 4, "--device-spec", SPEC, "--gpus", 2),
            "the bandwidth between the GPUs is unknown",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_one_line_that_says_what_to_do(
    perfctl: Callable[..., Any], words: tuple[object, ...], said: str
) -> None:
    found = perfctl("predict", NET, *words)
    assert found.code == 2
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert said in found.err


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("resnet:depth=51", "MODEL: resnet:depth=51: depth=51 is impossible"),
        ("vgg:deep=3", "vgg has no parameter 'deep'"),
        ("nosuch", "unknown model 'nosuch'"),
        ("nosuch.py:net", "file nosuch.py does not exist"),
    ],
)
def test_a_model_that_is_not_there_or_cannot_be_is_named(
    perfctl: Callable[..., Any], model: str, said: str
) -> None:
    found = perfctl("predict", model, "--batch", 4, "--device", "T4")
    assert found.code == 2
    assert found.err.count("\n") == 1
    assert said in found.err


def test_a_file_that_is_no_store_is_refused(perfctl: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("no database at all, but long enough to look like one" * 50)
    found = perfctl("predict", NET, "--batch", 4, "--device", "T4", "--store", "x.db")
    assert found.code == 1
    assert "x.db" in found.err
    assert found.err.count("\n") == 1
