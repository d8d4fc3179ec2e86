"""The command line of a workload, which the orchestrator checks without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfctl.workloads.run.options import describe, parse_arguments
from perfctl.workloads.spec import SpecError
from tests.workloads.started import start


def test_defaults_are_those_of_options() -> None:
    options, own = parse_arguments("mnist_cnn", ["--batch", "64"])
    assert (options.batch_size, options.mode, options.device, options.precision) == (
        64,
        "train",
        "cpu",
        "fp32",
    )
    assert (options.steps, options.warmup, options.epochs, options.seed, options.threads) == (
        10,
        3,
        0,
        0,
        None,
    )
    assert (options.annotate, options.window, options.trace, options.record) == (
        "none",
        "none",
        None,
        None,
    )
    assert own.conv2 == (32, 64, 3, 1)


def test_every_option_arrives_where_it_belongs() -> None:
    line = (
        "--batch 16 --mode train --device cuda --precision bf16 --seed 7 --steps 4 --warmup 2 "
        "--epochs 3 --threads 1 --data mnist --data-dir d --download --record r.json --annotate "
        "nvtx --window torch --trace t.json.gz --conv2 32,64,25,1"
    )
    options, own = parse_arguments("mnist_cnn", line.split())
    assert (options.batch_size, options.device, options.precision, options.seed) == (
        16,
        "cuda",
        "bf16",
        7,
    )
    assert (options.steps, options.warmup, options.epochs, options.threads) == (4, 2, 3, 1)
    assert (options.data, options.data_dir, options.download) == ("mnist", Path("d"), True)
    assert (options.record, options.trace) == (Path("r.json"), Path("t.json.gz"))
    assert (options.annotate, options.window) == ("nvtx", "torch")
    assert vars(own) == {"conv2": (32, 64, 25, 1)}, "the widest kernel that leaves one pooled pixel"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "--batch"),
        ("--batch 0", "--batch: '0' is not a whole number of at least 1"),
        ("--batch 1.5", "'1.5' is not a whole number"),
        ("--batch 8 --warmup 0", "--warmup"),
        ("--batch 8 --seed -1", "--seed"),
        ("--batch 8 --precision fp8", "fp8"),
        ("--batch 8 --colour red", "--colour"),
        ("--batch 8 --prec fp32", "--prec"),
        ("--batch 8 --mode infer --epochs 1", "`epochs` trains"),
        ("--batch 8 --data mnist", "needs `data_dir`"),
        ("--batch 8 --download", "Set `data` to mnist"),
        ("--batch 8 --window torch", "needs `trace`"),
        ("--batch 8 --trace t.json", "when `window` is torch"),
        ("--batch 8 --window torch --trace t.txt", ".json.gz"),
        ("--batch 8 --precision tf32", "needs `device` cuda"),
        ("--batch 8 --conv2 32,64,3", "IN,OUT,KERNEL,STRIDE"),
        ("--batch 8 --conv2 32,64,3,x", "IN,OUT,KERNEL,STRIDE"),
        ("--batch 8 --conv2 32,64,0,1", "IN,OUT,KERNEL,STRIDE"),
        ("--batch 8 --conv2 16,64,3,1", "must begin with 32"),
        ("--batch 8 --conv2 32,64,26,1", "does not fit"),
        ("--batch 8 --conv2 32,64,99,1", "does not fit"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_clear_line(line: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_arguments("mnist_cnn", line.split())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_workload_names_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"nope.*mnist_cnn"):
        parse_arguments("nope", [])


def test_the_help_names_every_option() -> None:
    text = describe("mnist_cnn")
    for option in (
        "--batch",
        "--record",
        "--annotate",
        "--window",
        "--trace",
        "--mode",
        "--precision",
        "--conv2",
    ):
        assert option in text


def test_arguments_are_checked_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None\n"
        "from perfctl.workloads.models import WORKLOADS\n"
        "from perfctl.workloads.run.options import describe, parse_arguments\n"
        "print(sorted(WORKLOADS), parse_arguments('mnist_cnn', ['--batch', "
        "'4'])[0].batch_size)\n"
        "print(len(describe('mnist_cnn')) > 100)\n"
    )
    done = start(None, sys.executable, "-c", program)
    assert done.stderr == ""
    assert done.stdout.startswith("['families', 'lstm', 'mnist_cnn'")
    assert done.stdout.endswith("4\nTrue\n")
