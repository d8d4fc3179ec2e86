"""Parse and check the command line of a workload, without torch."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from perfctl.workloads.spec import (
    ANNOTATIONS,
    DATA,
    DEVICES,
    LEAST_STEPS,
    MODES,
    PRECISIONS,
    WINDOWS,
    Options,
    Parser,
    SpecError,
    UnknownWords,
    Workload,
    at_least,
)

_DEFAULTS = Options(batch_size=1)
"""An instance, because a slotted class does not keep its defaults."""


def as_flags(text: str) -> str:
    """``text`` with each field in backquotes as its option: `` `data_dir` `` becomes ``--data-dir``."""
    return re.sub("`([a-z_]+)`", lambda found: "--" + found[1].replace("_", "-"), text)


def find(name: str) -> Workload:
    """The workload of that name. Raises SpecError with the known names."""
    from perfctl.workloads import WORKLOADS

    if name not in WORKLOADS:
        raise SpecError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def parse_arguments(name: str, arguments: Sequence[str]) -> tuple[Options, argparse.Namespace]:
    """(common options, the workload's own arguments), checked without torch. Raises SpecError with one line.

    ``arguments``: the command line after the workload's name: ``["--batch", "64", "--conv2", "32,128,5,1"]``.
    """
    workload = find(name)
    found, unknown = _parser(workload).parse_known_args(list(arguments))
    if unknown:
        raise UnknownWords(name, unknown)
    namespace = vars(found)
    common = {field.name: namespace.pop(field.name) for field in fields(Options)}
    options, own = Options(**common), argparse.Namespace(**namespace)
    _check(options)
    return workload.check(options, own), own


def describe(name: str) -> str:
    """What ``python -m perfctl.workloads NAME --help`` prints. Raises SpecError for an unknown name."""
    return _parser(find(name)).format_help()


def _parser(workload: Workload) -> Parser:
    parser = Parser(
        prog=f"python -m perfctl.workloads {workload.NAME}",
        description=workload.ABOUT,
        add_help=False,
        allow_abbrev=False,
    )
    _add_run_options(parser.add_argument_group("the run"))
    _add_data_options(parser.add_argument_group("data"))
    _add_profiling_options(parser.add_argument_group("profiling"))
    workload.add_options(parser)
    return parser


def _add_run_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--batch", dest="batch_size", type=at_least(1), required=True, metavar="N", help="images or sequences per step")
    add("--mode", choices=MODES, default=_DEFAULTS.mode, help="training or inference (default: %(default)s)")
    add("--device", choices=DEVICES, default=_DEFAULTS.device, help="default: %(default)s")
    add(
        "--precision", choices=PRECISIONS, default=_DEFAULTS.precision, help="fp32 disables TF32 (default: %(default)s)"
    )
    add("--seed", type=at_least(0), default=_DEFAULTS.seed, metavar="N", help="default: %(default)s")
    add("--steps", type=at_least(1), default=_DEFAULTS.steps, metavar="N", help="measured steps (default: %(default)s)")
    add(
        "--warmup",
        type=at_least(1),
        default=_DEFAULTS.warmup,
        metavar="N",
        help="steps before the measured ones; the first records the layers' shapes (default: %(default)s)",
    )
    add(
        "--epochs",
        type=at_least(0),
        default=_DEFAULTS.epochs,
        metavar="N",
        help="whole epochs after the measured steps, with test accuracy (default: %(default)s)",
    )
    add("--threads", type=at_least(1), metavar="N", help="CPU threads (default: chosen by torch)")
    add(
        "--within",
        type=_seconds,
        metavar="SECONDS",
        help=f"time limit for the measured steps: run fewer, but at least {LEAST_STEPS}",
    )
    add(
        "--compile",
        action="store_true",
        help="compile the model with torch.compile, which needs a C++ compiler on a CPU",
    )


def _add_data_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--data", choices=DATA, default=_DEFAULTS.data, help="default: %(default)s")
    add(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="folder of the data set (mnist: it contains MNIST/raw; imagenet: the class folders; folder: images/ and masks/; "
        "csv: train.csv and test.csv, or give one CSV file)",
    )
    add("--download", action="store_true", help="download a missing data set into --data-dir")


def _add_profiling_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--record", type=Path, metavar="FILE", help="write the JSON record to FILE")
    add("--annotate", choices=ANNOTATIONS, default=_DEFAULTS.annotate, help="layer ranges (default: %(default)s)")
    add("--window", choices=WINDOWS, default=_DEFAULTS.window, help="profiler to notify of the measured steps")
    add(
        "--layer-steps",
        type=at_least(1),
        metavar="N",
        help="steps after the measured ones in which each layer is timed",
    )
    add("--trace", type=Path, metavar="FILE", help="trace file of --window torch (.json or .json.gz)")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _check(options: Options) -> None:
    """Check combinations of options. Raises SpecError."""
    if options.mode == "infer" and options.epochs:
        raise SpecError("`epochs` trains the model: omit it when `mode` is infer")
    if options.precision == "tf32" and options.device == "cpu":
        raise SpecError("`precision` tf32 needs `device` cuda: a CPU has no TF32 and would compute in fp32")
    if options.data == "mnist" and options.data_dir is None:
        raise SpecError("`data` mnist needs `data_dir`, the folder of MNIST/raw, which `download` can fill")
    if options.data == "imagenet" and options.data_dir is None:
        raise SpecError("`data` imagenet needs `data_dir`, a folder of class folders (perfctl prepare creates one)")
    if options.data in ("folder", "csv") and options.data_dir is None:
        raise SpecError(f"`data` {options.data} needs `data_dir`")
    if options.download and options.data in ("folder", "csv"):
        raise SpecError(f"`download` cannot fetch your own data: omit it when `data` is {options.data}")
    if options.download and options.data == "imagenet":
        raise SpecError(
            "`download` cannot fetch ImageNet: get the archive yourself, then run perfctl prepare imagenet-val"
        )
    if options.download and options.data == "synthetic":
        raise SpecError("`download` has nothing to fetch when `data` is synthetic: set `data` to mnist")
    if options.compile and options.layer_steps is not None:
        raise SpecError("`layer_steps` cannot time the layers of a compiled model: omit it or `compile`")
    if options.compile and options.warmup < 3:
        raise SpecError("`compile` needs a `warmup` of at least 3: one step records shapes, the others compile")
    if options.window == "torch" and options.trace is None:
        raise SpecError("`window` torch needs `trace`, the file for its trace")
    if options.trace is not None and options.window != "torch":
        raise SpecError("`trace` is written only when `window` is torch: set that, or omit `trace`")
    if options.trace is not None and not options.trace.name.endswith((".json", ".json.gz")):
        raise SpecError(f"`trace` must end in .json or .json.gz, got {options.trace}")
