"""The command line of a workload, which the orchestrator checks without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfctl.workloads.run.options import parse_workload_arguments
from perfctl.workloads.spec import SpecError, WorkloadOptions
from tests.workloads.started import start


def test_defaults_are_those_of_options():
    options, own = parse_workload_arguments("mnist_cnn", ["--batch", "64"])
    assert options == WorkloadOptions(
        batch_size=64,
        mode="train",
        device="cpu",
        precision="fp32",
        seed=0,
        steps=10,
        warmup=3,
        epochs=0,
        annotate="none",
        window="none",
    )
    assert own.conv2 == (32, 64, 3, 1)


def test_every_option_arrives_where_it_belongs():
    line = (
        "--batch 16 --mode train --device cuda --precision bf16 --seed 7 --steps 4 --warmup 2 "
        "--epochs 3 --threads 1 --data mnist --data-dir d --download --record r.json --annotate "
        "nvtx --window torch --trace t.json.gz --conv2 32,64,25,1"
    )
    options, own = parse_workload_arguments("mnist_cnn", line.split())
    assert options == WorkloadOptions(
        batch_size=16,
        device="cuda",
        precision="bf16",
        seed=7,
        steps=4,
        warmup=2,
        epochs=3,
        threads=1,
        data="mnist",
        data_dir=Path("d"),
        download=True,
        record=Path("r.json"),
        annotate="nvtx",
        window="torch",
        trace=Path("t.json.gz"),
    )
    assert vars(own) == {"conv2": (32, 64, 25, 1)}, "the widest kernel that leaves one pooled pixel"


@pytest.mark.parametrize(
    ("workload", "line", "problem"),
    [
        ("nope", "", "known: mnist_cnn"),
        ("mnist_cnn", "--steps 1", "--batch"),
        ("mnist_cnn", "--batch 0", "--batch: '0' is not a whole number of at least 1"),
        ("mnist_cnn", "--batch 1.5", "'1.5' is not a whole number"),
        ("mnist_cnn", "--warmup 0", "--warmup"),
        ("mnist_cnn", "--seed -1", "--seed"),
        ("mnist_cnn", "--precision fp8", "fp8"),
        ("mnist_cnn", "--colour red", "--colour"),
        ("mnist_cnn", "--prec fp32", "--prec"),
        ("mnist_cnn", "--mode infer --epochs 1", "`epochs` trains"),
        ("mnist_cnn", "--data mnist", "needs `data_dir`"),
        ("mnist_cnn", "--data csv --data-dir x", "needs digits"),
        ("mnist_cnn", "--download", "Set `data` to mnist"),
        ("mnist_cnn", "--window torch", "needs `trace`"),
        ("mnist_cnn", "--trace t.json", "when `window` is torch"),
        ("mnist_cnn", "--window torch --trace t.txt", ".json.gz"),
        ("mnist_cnn", "--precision tf32", "needs `device` cuda"),
        ("mnist_cnn", "--conv2 32,64,3", "IN,OUT,KERNEL,STRIDE"),
        ("mnist_cnn", "--conv2 32,64,3,x", "IN,OUT,KERNEL,STRIDE"),
        ("mnist_cnn", "--conv2 32,64,0,1", "IN,OUT,KERNEL,STRIDE"),
        ("mnist_cnn", "--conv2 16,64,3,1", "must begin with 32"),
        ("mnist_cnn", "--conv2 32,64,26,1", "does not fit"),
        ("mnist_cnn", "--conv2 32,64,99,1", "does not fit"),
        ("unet", "--image-size 40", "not a multiple of 16"),
        ("unet", "--data csv --data-dir x", "needs masks"),
        ("unet", "--classes 2", "synthetic masks must be at least 3"),
        ("lstm", "--data folder --data-dir x", "needs texts"),
        ("lstm", "--classes 5", "must be even"),
        ("lstm", "--data csv", "needs `data_dir`"),
        ("lstm", "--warmup 2 --compile", "`warmup` of at least 3"),
        ("families", "--model vgg:kernel=4", "got 4: an even width"),
        ("families", "--within soon", "'soon' is not a number of seconds above 0"),
        ("families", "--within 0", "is not a number of seconds above 0"),
        ("families", "--layer-steps 0", "is not a whole number of at least 1"),
        ("families", "--layer-steps 2 --compile", "`layer_steps` cannot time the layers of a comp"),
        ("torchvision_infer", "", "`model` is missing"),
        ("torchvision_infer", "--model x --mode train", "does not train"),
        ("torchvision_infer", "--model x --data mnist --data-dir .", "`data` must be imagenet"),
        ("torchvision_infer", "--model x --data imagenet", "needs `data_dir`"),
        ("torchvision_infer", "--model x --images 7", "must fill a batch of 8"),
        ("torchvision_infer", "--model x --images 16 --steps 2", "determine each other"),
        ("torchvision_infer", "--model x --classes 3", "needs `weights` none"),
        ("torchvision_infer", "--model x --epochs 1", "`epochs` trains"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_clear_line(workload, line, problem):
    batch = "" if "--batch" in line or "--steps 1" in line else "--batch 8"
    with pytest.raises(SpecError) as caught:
        parse_workload_arguments(workload, f"{batch} {line}".split())
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arguments_are_checked_without_torch():
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None\n"
        "from perfctl.workloads.models import WORKLOADS\n"
        "from perfctl.workloads.run.options import format_workload_help, parse_workload_arguments\n"
        "print(sorted(WORKLOADS), parse_workload_arguments('mnist_cnn', ['--batch', "
        "'4'])[0].batch_size)\n"
        "print(len(format_workload_help('mnist_cnn')) > 100)\n"
    )
    done = start(None, sys.executable, "-c", program)
    assert done.stderr == ""
    assert done.stdout.startswith("['families', 'lstm', 'mnist_cnn'")
    assert done.stdout.endswith("4\nTrue\n")
