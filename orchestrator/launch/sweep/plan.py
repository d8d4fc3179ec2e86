"""From the options of a sweep to its request, checked. Nothing is started here but an interpreter
that is queried."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.events import SILENT, Events
from perfctl.orchestrator.launch import interpreter
from perfctl.orchestrator.launch.images.run import PYTHON, open_container_image
from perfctl.orchestrator.launch.machine import devices
from perfctl.orchestrator.launch.machine.devices import parse_placements
from perfctl.orchestrator.launch.profilers.ncu import STEPS, Ncu
from perfctl.orchestrator.launch.profilers.outcome import ToolProfiler
from perfctl.orchestrator.launch.profilers.replay import RECORDERS, Replay
from perfctl.orchestrator.launch.program import UserProgram, parse_user_program
from perfctl.orchestrator.launch.sampling import sampler
from perfctl.orchestrator.launch.sweep.folders import make_safe_file_name
from perfctl.orchestrator.launch.sweep.options import (
    DEFAULT_BATCHES,
    StoredSweepOptions,
    SweepOptions,
    choose_cpu_or_cuda,
    list_sweep_settings,
    parse_sweep_parameters,
)
from perfctl.orchestrator.launch.sweep.request import Profiler, SweepRequest, format_option_words
from perfctl.orchestrator.options import (
    extract_base_class_fields,
    list_declared_options,
    parse_batch_sizes,
    raise_if_invalid_batch_sizes,
)
from perfctl.workloads.models import WORKLOADS
from perfctl.workloads.run.options import format_workload_help, parse_workload_arguments
from perfctl.workloads.spec import (
    MARKERS,
    SpecError,
    UnknownOptionsError,
    WorkloadError,
    escape_non_utf8,
    is_python_interpreter,
    is_valid_step_marker,
)

DEFAULT_WORKLOAD = "mnist_cnn"
INFERENCE = "torchvision_infer"
"""Workload of the sweeps that ``perfctl infer`` runs."""
OWN = ("--batch", "--device", "--record", "--annotate", "--window", "--trace")
"""Options of the workload that perfctl sets for each run."""

ANY_PROGRAM = ("nsys", "ncu")
"""Profilers that need nothing inside the program."""

_ALWAYS = ("steps", "warmup")
_BUILT_IN = ("mode", "precision")
_PROGRAM = ("batch_env", "step_marker")
_OF_PROGRAMS = (*_PROGRAM, "to_end", "as_is", "sweep_env")
"""Options that a built-in workload does without."""


def plan_sweep(
    profiler: Profiler,
    options: SweepOptions,
    arguments_typed: Sequence[str] = (),
    command: Sequence[str] | None = None,
    *,
    origin: str = "measured",
    events: Events = SILENT,
) -> SweepRequest:
    """Return the request, checked. Raises UsageError for whatever makes no sense, in one line.

    ``arguments_typed`` are words for the workload, ``command`` is a program of the user's (None for
    a built-in workload), ``origin`` is measured or recorded."""
    parameters = parse_sweep_parameters(options)
    if typed := parameters.pop("batch", None):
        batches = parse_batch_sizes(",".join(typed), "sweep")
        other_sweeps = tuple(text for text in options.sweep if not text.startswith("batch="))
        options = replace(options, batches=batches, sweep=other_sweeps)
    if options.batches:
        raise_if_invalid_batch_sizes(options.batches, "batches", requires_distinct=True)
    if options.steps is None and isinstance(profiler, Ncu):
        options = replace(options, steps=STEPS)
    _raise_if_sweep_options_conflict(options)
    sampler.parse_sampling_interval(options.sample)
    program = None
    if origin == "measured":
        program = _parse_user_program_if_any(profiler, options, arguments_typed, command, events)
    if program is None and options.workload is not None and command:
        arguments_typed = (*arguments_typed, *command)
    is_batched = program is None or program.passes_parameter("batch")
    if not options.batches and is_batched and origin == "measured":
        options = replace(options, batches=DEFAULT_BATCHES)
    list_sweep_settings(options)
    device = _choose_device(options)
    workload = program.name if program else options.workload or DEFAULT_WORKLOAD
    arguments = (*_build_workload_arguments(options, device, program), *arguments_typed)
    if origin == "measured" and program is None:
        _raise_if_workload_rejects_options(workload, arguments, arguments_typed, parameters)
    checked = {
        "workload": workload,
        "device": device,
        "command_line": escape_non_utf8(options.command_line),
    }
    return SweepRequest(
        **{**asdict(extract_base_class_fields(options, SweepOptions)), **checked},
        profiler=profiler,
        workload_arguments=arguments,
        host=platform.node(),
        origin=origin,
        program=program,
        container=open_container_image(
            options.image, options.bind, options.container_runtime, gpu=device == "cuda"
        )
        if options.image
        else None,
        places=parse_placements(options.devices) if options.devices else (),
    )


def plan_replay(folder: Path, stored: StoredSweepOptions, batches: tuple[int, ...]) -> SweepRequest:
    """Return the request that replays a recorded sweep at these batch sizes, or, without any, at
    all that were recorded. Raises UsageError if the folder is not a recorded sweep."""
    recorded = Replay(folder)
    settings = recorded.list_recorded_settings(batches)
    options = SweepOptions(
        repeat=recorded.find_smallest_repeat_count(settings),
        workload=recorded.read_recorded_workload_name(),
        device=recorded.read_recorded_device(),
        **asdict(extract_base_class_fields(stored, StoredSweepOptions)),
    )
    return replace(plan_sweep(recorded, options, origin="recorded"), chosen=settings)


def _parse_user_program_if_any(
    profiler: Profiler,
    sweep_options: SweepOptions,
    arguments_typed: Sequence[str],
    command: Sequence[str] | None,
    events: Events,
) -> UserProgram | None:
    """Return the user's program; None if a built-in workload is meant."""
    if command is None or (
        sweep_options.workload is not None and command[:1] and command[0].startswith("--")
    ):
        for name in _OF_PROGRAMS:
            if getattr(sweep_options, name) not in (None, ()):
                remedy = "Put the program after --: -- python train.py"
                raise UsageError(f"`{name}` works only with your own script", remedy)
        return None
    if sweep_options.workload is not None:
        problem = (
            f"two programs are named: `workload` {sweep_options.workload}, and "
            f"'{shlex.join(command)}' after --"
        )
        raise UsageError(problem, "Omit one of them")
    for name in _BUILT_IN:
        if getattr(sweep_options, name) is not None:
            problem = f"`{name}` works only with built-in workloads; your own script sets it itself"
            raise UsageError(problem, "Put it among the arguments of your script, or omit it")
    if arguments_typed:
        problem = f"unknown option '{shlex.join(arguments_typed)}' before --"
        remedy = "--help lists the options. Put those of your script after its name"
        raise UsageError(problem, remedy)
    if not is_valid_step_marker(sweep_options.step_marker or "auto"):
        remedy = f"Choose {', '.join(MARKERS)}, optimizer:CLASS or forward:MODULECLASS"
        raise UsageError(f"invalid value '{sweep_options.step_marker}' for `step_marker`", remedy)
    python, arguments = (
        split_image_interpreter(tuple(command)) if sweep_options.image else (None, ())
    )
    typed = parse_user_program(
        (sys.executable, *arguments) if python else command,
        sweep_options.batch_env,
        {name: len(values) for name, values in parse_sweep_parameters(sweep_options).items()}
        | ({"batch": len(sweep_options.batches)} if sweep_options.batches else {}),
        sweep_env=sweep_options.sweep_env,
        runs_unannotated=_is_run_unannotated(profiler, sweep_options),
        is_local_program=sweep_options.image is None,
    )
    if typed.python is None:
        if sweep_options.step_marker is not None or sweep_options.to_end is not None:
            problem = f"{typed.name} has no steps that perfctl could mark or end after"
            raise UsageError(problem, "Omit `step_marker` and `to_end`")
        return typed
    if sweep_options.image is not None:
        return replace(typed, python=python or PYTHON)
    program = interpreter.replace_python_without_torch(typed, command[0])
    if program.python != typed.python:
        events.note(
            f"{typed.python} has no torch, so {program.name} runs with perfctl's interpreter, "
            f"{program.python}"
        )
    return program


def _is_run_unannotated(profiler: Profiler, options: SweepOptions) -> bool | None:
    """Return whether the program runs as it is; None if that depends on the program. Raises
    UsageError."""
    is_timed = getattr(profiler, "duration", None)
    if profiler.name in ANY_PROGRAM:
        return True if is_timed else options.as_is
    if is_timed:
        return options.as_is
    if options.as_is:
        raise UsageError(
            f"`as_is` does not work with {profiler.name}, which sees only PyTorch",
            "Use perfctl nsys or perfctl ncu",
        )
    return False


def _make_workload_flag(field: str) -> str:
    """Return the option of ``python -m perfctl.workloads`` for a field."""
    return f"--{field.replace('_', '-')}"


def _build_workload_arguments(
    options: SweepOptions, device: str, program: UserProgram | None
) -> tuple[str, ...]:
    names = (*_ALWAYS, *(_PROGRAM if program else _BUILT_IN))
    arguments = format_option_words(
        {
            "--device": device,
            **{_make_workload_flag(name): getattr(options, name) for name in names},
        }
    )
    if program and program.variant:
        arguments += (f"--variant={program.variant}",)  # one word, for it may begin with a dash
    return arguments


def _raise_if_workload_rejects_options(
    name: str,
    arguments: Sequence[str],
    arguments_typed: Sequence[str],
    parameters: Mapping[str, Sequence[str]],
) -> None:
    """Ask the workload whether it knows these options, and its ``parameters`` with each value;
    those that perfctl sets for each run cannot be among ``arguments_typed``."""
    swept = list(map(_make_workload_flag, parameters))
    for option in (option.partition("=")[0] for option in (*arguments_typed, *swept)):
        if option in OWN:
            remedy = (
                "Set batch sizes with `batches`"
                if option == "--batch"
                else "perfctl sets it for each run"
            )
            raise UsageError(f"perfctl does not pass {option} to the workload", remedy)
    with raise_workload_errors_as_usage(name):
        parse_workload_arguments(name, ["--batch", "1", *arguments])
        for parameter, flag in zip(parameters, swept, strict=True):
            if flag in arguments:
                raise UsageError(f"`sweep`: {parameter} has a value already", f"Omit {flag}")
            for value in parameters[parameter]:
                parse_workload_arguments(name, ["--batch", "1", *arguments, flag, value])


@contextmanager
def raise_workload_errors_as_usage(name: str) -> Iterator[None]:
    """What a workload refuses becomes a UsageError."""
    try:
        yield
    except UnknownOptionsError as error:
        raise _make_unknown_option_error(name, error.words) from error
    except (SpecError, WorkloadError) as error:
        raise UsageError(str(error)) from error


def _make_unknown_option_error(workload: str, arguments: Sequence[str]) -> UsageError:
    problem_text = (
        f"unknown option '{shlex.join(arguments)}' of perfctl and its workload {workload}"
    )
    if arguments[0].partition(":")[0] in WORKLOADS:
        problem = f"'{arguments[0]}' is a built-in workload, not an option"
        return UsageError(problem, f"Use `workload` {arguments[0]}")
    if not arguments[0].startswith("-"):
        return UsageError(
            problem_text, "Put your own script after --: -- python train.py --batch-size {batch}"
        )
    workload_options = re.findall(r"--[a-z][a-z-]*", format_workload_help(workload))
    options = {
        _make_workload_flag(option.name): f"`{option.name}`"
        for option in list_declared_options(SweepOptions)
    }
    options |= {option_name: option_name for option_name in workload_options}
    near = [
        options[name]
        for name in get_close_matches(arguments[0].partition("=")[0], options, 1, cutoff=0.75)
    ]
    meant = f"Did you mean {near[0]}? " if near else ""
    lists = (
        f"--help lists perfctl's options, 'python -m perfctl.workloads {workload} --help' those of "
        "the workload"
    )
    return UsageError(problem_text, meant + lists)


def _choose_device(options: SweepOptions) -> str:
    if options.devices is None:
        return choose_cpu_or_cuda(options.device)
    kind = devices.parse_kind_of_device_list(options.devices)
    if options.device not in ("auto", kind):
        kinds = "sets of cores" if kind == "cpu" else "GPUs"
        problem = (
            f"`device` {options.device} and `devices` {options.devices} ({kinds}) do not agree"
        )
        raise UsageError(problem, "Omit one of them")
    return kind


def _raise_if_sweep_options_conflict(options: SweepOptions) -> None:
    if options.image is None and (options.bind or options.container_runtime):
        raise UsageError(
            "`bind` and `container_runtime` need an image", "Set the image with `image`"
        )
    if options.devices is not None and options.no_store:
        raise UsageError(
            "`devices` and `no_store` exclude each other, because a task has one device",
            "Omit one of them",
        )
    name = options.sweep_name
    if name is not None and (name != make_safe_file_name(name) or not name):
        raise UsageError(
            f"`sweep_name`: invalid folder name '{name}'",
            "Use ASCII letters, digits, '.', '_' and '-'",
        )


def split_image_interpreter(command: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Return (interpreter inside the image, the rest) if a command begins with one; else (None,
    the command).

    ``python`` means the image's python3; a path, or a name with a version, is used as it is.
    """
    if not command or not is_python_interpreter(command[0]):
        return None, command
    return PYTHON if command[0] == "python" else command[0], command[1:]


def plan_torchvision_inference_sweeps(
    models: Sequence[str],
    profiler: str,
    options: SweepOptions,
    *,
    arguments: Sequence[str] = (),
    skips_torchvision_lookup: bool = False,
    events: Events = SILENT,
) -> dict[str, SweepRequest]:
    """Return model of torchvision -> its sweep, everything checked before anything runs.

    ``arguments`` are words for the workload torchvision_infer. ``skips_torchvision_lookup``: do not
    ask torchvision for the models. Raises UsageError.
    """
    if not models:
        raise UsageError("`models` is empty", "For example resnet18,densenet201")
    if len(set(models)) < len(models):
        raise UsageError(f"a model is repeated in {','.join(models)}", "Name each once")
    recorder = make_profiler_by_name(profiler, ("none", "nsys", "torch", "dlprof"))
    sweep_options = replace(options, workload=INFERENCE)
    requests = {
        model: plan_sweep(recorder, sweep_options, ("--model", model, *arguments), events=events)
        for model in models
    }
    with raise_workload_errors_as_usage(INFERENCE):
        for batch in next(iter(requests.values())).batches:
            argv = ["--batch", str(batch), "--model", models[0], *arguments]
            of_every, workload_options = parse_workload_arguments(INFERENCE, argv)
            if sweep_options.image is None:  # inside an image only the workload itself can look
                weights, data_dir = workload_options.weights, of_every.data_dir
                if weights not in ("default", "none") and not Path(weights).is_file():
                    raise UsageError(
                        f"`weights` {weights}: file not found; use default, none, or a checkpoint"
                    )
                if data_dir is not None and not data_dir.is_dir():
                    raise UsageError(f"`data_dir` {data_dir}: folder not found")
        if sweep_options.image is None and not skips_torchvision_lookup:
            from perfctl.workloads.models.torchvision import find_torchvision_family

            for model in models:
                find_torchvision_family(model)
    return requests


def make_profiler_by_name(
    name: str, choices: Sequence[str] = ("nsys", "ncu", "torch", "dlprof", "none")
) -> ToolProfiler:
    """Return a profiler by its name, which is one of ``choices``. Raises UsageError for another."""
    if name not in choices:
        raise UsageError(f"invalid value '{name}' for `profiler`", f"Choose {', '.join(choices)}")
    return RECORDERS[name]()
