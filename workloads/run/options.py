"""Parse and check the command line of a workload, without torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from perfctl.workloads import spec
from perfctl.workloads.interface import Workload
from perfctl.workloads.spec import SpecError, UnknownOptionsError, WorkloadOptions

_FOLDERS = {
    "mnist": ", the folder of MNIST/raw, which `download` can fill",
    "imagenet": ", a folder of class folders (perfctl prepare creates one)",
}
_NO_DOWNLOADS = {
    "imagenet": (
        "cannot download ImageNet. Get the archive yourself, then run perfctl prepare imagenet-val"
    ),
    "synthetic": "downloads nothing if `data` is synthetic. Set `data` to mnist",
}


def replace_fields_by_flags(text: str) -> str:
    """``text`` with each field in backquotes as its option: `` `data_dir` `` becomes
    ``--data-dir``."""
    return re.sub("`([a-z_]+)`", lambda match: "--" + match[1].replace("_", "-"), text)


def find_workload(name: str) -> Workload:
    """Return the workload of that name. Raises SpecError with the known names."""
    from perfctl.workloads.models import WORKLOADS

    if name not in WORKLOADS:
        raise SpecError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def parse_workload_arguments(name: str, arguments: Sequence[str]) -> tuple[WorkloadOptions, Any]:
    """Return (common options, the workload's own), checked without torch. Raises SpecError with
    one line.

    ``arguments``: the command line after the workload's name:
    ``["--batch", "64", "--conv2", "32,128,5,1"]``.
    """
    workload = find_workload(name)
    namespace, unknown = _make_workload_parser(workload).parse_known_args(list(arguments))
    if unknown:
        raise UnknownOptionsError(name, unknown)
    values = vars(namespace)
    options = WorkloadOptions(
        **{field.name: values.pop(field.name) for field in fields(WorkloadOptions)}
    )
    model_options = workload.Own(**values)
    _raise_if_options_conflict(options)
    return workload.check(options, model_options), model_options


def format_workload_help(name: str) -> str:
    """Return what ``python -m perfctl.workloads NAME --help`` prints. Raises SpecError for an
    unknown name."""
    return _make_workload_parser(find_workload(name)).format_help()


def _make_workload_parser(workload: Workload) -> spec.RaisingArgumentParser:
    name, about = f"python -m perfctl.workloads {workload.NAME}", workload.ABOUT
    parser = spec.RaisingArgumentParser(
        prog=name, description=about, add_help=False, allow_abbrev=False
    )
    spec.add_declared_options(parser, WorkloadOptions)
    spec.add_declared_options(parser, workload.Own)
    parser.set_defaults(**getattr(workload, "DEFAULTS", {}))
    return parser


def _raise_if_options_conflict(options: WorkloadOptions) -> None:
    if options.mode == "infer" and options.epochs:
        raise SpecError("`epochs` trains the model: omit it when `mode` is infer")
    if options.precision == "tf32" and options.device == "cpu":
        raise SpecError(
            "`precision` tf32 needs `device` cuda: a CPU has no TF32 and would compute in fp32"
        )
    if options.data != "synthetic" and options.data_dir is None:
        raise SpecError(f"`data` {options.data} needs `data_dir`{_FOLDERS.get(options.data, '')}")
    if options.download and options.data != "mnist":
        advice = f"cannot fetch your own data: omit it when `data` is {options.data}"
        raise SpecError(f"`download` {_NO_DOWNLOADS.get(options.data, advice)}")
    if options.compile and options.layer_steps is not None:
        raise SpecError(
            "`layer_steps` cannot time the layers of a compiled model: omit it or `compile`"
        )
    if options.compile and options.warmup < 3:
        raise SpecError(
            "`compile` needs a `warmup` of at least 3: one step records shapes, the others compile"
        )
    spec.raise_if_trace_option_invalid(options.window, options.trace)
