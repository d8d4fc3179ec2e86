"""The command line of a workload, declared and checked without torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from perfctl.workloads.spec import (
    ANNOTATIONS,
    DATA,
    DEVICES,
    LEAST_STEPS,
    MODES,
    PRECISIONS,
    WINDOWS,
    Options,
    SpecError,
    UnknownWords,
    Workload,
)

_DEFAULTS = Options(batch_size=1)
"""With slots, a field's default can only be read from an instance."""


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise SpecError(message)


def find(name: str) -> Workload:
    """The workload of that name. Raises SpecError with the known names."""
    from perfctl.workloads import WORKLOADS

    if name not in WORKLOADS:
        raise SpecError(f"there is no workload {name!r}; known: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def parse(name: str, arguments: Sequence[str]) -> tuple[Options, argparse.Namespace]:
    """Options and own arguments of workload ``name``. Raises SpecError, one clear line."""
    workload = find(name)
    found, unknown = _parser(workload).parse_known_args(list(arguments))
    if unknown:
        raise UnknownWords(name, unknown)
    namespace = vars(found)
    common = {field.name: namespace.pop(field.name) for field in fields(Options)}
    options, own = Options(**common), argparse.Namespace(**namespace)
    _check(options)
    return workload.settle(options, own), own


def help_text(name: str) -> str:
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
    add("--batch", dest="batch_size", type=at_least(1), required=True, metavar="N", help="images (sequences) per step")
    add("--mode", choices=MODES, default=_DEFAULTS.mode, help="what a step is (default: %(default)s)")
    add("--device", choices=DEVICES, default=_DEFAULTS.device, help="default: %(default)s")
    add(
        "--precision",
        choices=PRECISIONS,
        default=_DEFAULTS.precision,
        help="fp32 turns TF32 off (default: %(default)s)",
    )
    add("--seed", type=at_least(0), default=_DEFAULTS.seed, metavar="N", help="default: %(default)s")
    add("--steps", type=at_least(1), default=_DEFAULTS.steps, metavar="N", help="measured steps (default: %(default)s)")
    add(
        "--warmup",
        type=at_least(1),
        default=_DEFAULTS.warmup,
        metavar="N",
        help="steps before them; the first records the layers' shapes (default: %(default)s)",
    )
    add(
        "--epochs",
        type=at_least(0),
        default=_DEFAULTS.epochs,
        metavar="N",
        help="whole epochs after the measured steps, with test accuracy (default: %(default)s)",
    )
    add("--threads", type=at_least(1), metavar="N", help="CPU threads (default: torch's own choice)")
    add(
        "--within",
        type=_seconds,
        metavar="SECONDS",
        help=f"fewer measured steps where they would take longer than this, but {LEAST_STEPS} at least",
    )
    add("--compile", action="store_true", help="put the model through torch.compile; on a CPU it needs a C++ compiler")


def _add_data_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--data", choices=DATA, default=_DEFAULTS.data, help="default: %(default)s")
    add(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="where the data set lies (mnist: the folder that holds MNIST/raw; imagenet: the one of the class folders; "
        "folder: that of images/ and masks/; csv: that of train.csv and test.csv, or one file)",
    )
    add("--download", action="store_true", help="fetch a missing data set into --data-dir")


def _add_profiling_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--record", type=Path, metavar="FILE", help="write the JSON record here")
    add("--annotate", choices=ANNOTATIONS, default=_DEFAULTS.annotate, help="layer ranges (default: %(default)s)")
    add("--window", choices=WINDOWS, default=_DEFAULTS.window, help="who learns which steps are measured")
    add("--layer-steps", type=at_least(1), metavar="N", help="steps after the measured ones that time each layer")
    add("--trace", type=Path, metavar="FILE", help="--window torch writes its trace here (.json or .json.gz)")


def at_least(least: int) -> Callable[[str], int]:
    """For argparse: a whole number of ``least`` or more."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return value

    return number


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def _check(options: Options) -> None:
    """What no single option can know. Raises SpecError."""
    if options.mode == "infer" and options.epochs:
        raise SpecError("--epochs trains the model: leave it out with --mode infer")
    if options.precision == "tf32" and options.device == "cpu":
        raise SpecError("--precision tf32 needs --device cuda: a CPU has no TF32 and would compute in fp32")
    if options.data == "mnist" and options.data_dir is None:
        raise SpecError("--data mnist needs --data-dir DIR, the folder that holds (or with --download gets) MNIST/raw")
    if options.data == "imagenet" and options.data_dir is None:
        raise SpecError("--data imagenet needs --data-dir DIR, a folder of class folders (perfctl prepare makes one)")
    if options.data in ("folder", "csv") and options.data_dir is None:
        raise SpecError(f"--data {options.data} needs --data-dir")
    if options.download and options.data in ("folder", "csv"):
        raise SpecError(f"--download cannot fetch your own data: leave it out with --data {options.data}")
    if options.download and options.data == "imagenet":
        raise SpecError("--download cannot fetch ImageNet: get the archive yourself, then perfctl prepare imagenet-val")
    if options.download and options.data == "synthetic":
        raise SpecError("--download has nothing to fetch for synthetic data: add --data mnist")
    if options.compile and options.layer_steps is not None:
        raise SpecError("--layer-steps sees no layer of a compiled model: leave it or --compile out")
    if options.compile and options.warmup < 3:
        raise SpecError("--compile needs --warmup 3 or more: one step records shapes, the others compile")
    if options.window == "torch" and options.trace is None:
        raise SpecError("--window torch needs --trace FILE to write its trace to")
    if options.trace is not None and options.window != "torch":
        raise SpecError("--trace is written by --window torch alone: add it, or leave --trace out")
    if options.trace is not None and not options.trace.name.endswith((".json", ".json.gz")):
        raise SpecError(f"--trace {options.trace} must end in .json or .json.gz")
