"""From the options of a sweep to its request, checked; nothing is started here but an interpreter that is asked."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from perfctl import __version__
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.here import NOWHERE, Here, program_words
from perfctl.orchestrator.cli.here import check as check_here
from perfctl.orchestrator.cli.here import device as device_of
from perfctl.orchestrator.cli.sweep_command import Asked
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch import check_tools, in_image, interpreter, sampler, where
from perfctl.orchestrator.launch.container import PYTHON, Image, image
from perfctl.orchestrator.launch.devices import places
from perfctl.orchestrator.launch.paths import file_name
from perfctl.orchestrator.launch.profiler import Profiler
from perfctl.orchestrator.launch.program import Program, read_program, utf8
from perfctl.orchestrator.launch.sweep import check_batches
from perfctl.orchestrator.launch.sweep_records import SweepRequest

DEFAULT_WORKLOAD = "mnist_cnn"
OWN = ("--batch", "--device", "--record", "--annotate", "--window", "--trace")
"""Options of the workload that perfctl sets for each run."""

_ALWAYS = ("steps", "warmup")
_BUILT_IN = ("mode", "precision")
_PROGRAM = ("batch_env", "step_marker")
_MARKERS = ("auto", "optimizer", "forward", "backward")
_MARKERS_OF_A_CLASS = ("optimizer", "forward")


def sweep_request(
    profiler: Profiler,
    asked: Asked,
    rest: tuple[str, ...],
    command: tuple[str, ...] | None,
    origin: str = "measured",
    here: Here = NOWHERE,
) -> SweepRequest:
    """Raises UsageError for whatever makes no sense, in one line."""
    batches = options.batch_list(asked.batches)
    check_batches(batches)
    check_here(here, alongside=asked.no_store)
    program = None if origin == "recorded" else _program(asked, rest, command, batches, here)
    if program is None and asked.workload is not None and command:
        rest = (*rest, *command)
    device = device_of(asked.device, here)
    workload = program.name if program else asked.workload or DEFAULT_WORKLOAD
    arguments = (*_arguments(asked, device, program), *rest)
    if origin == "measured" and program is None:
        _check_not_own(rest)
        _check_workload(workload, arguments)
    return SweepRequest(
        profiler=profiler,
        workload=workload,
        workload_arguments=arguments,
        batches=batches,
        device=device,
        out=asked.out,
        command_line=utf8(shlex.join(["perfctl", *sys.argv[1:]])),
        host=platform.node(),
        origin=origin,
        timeout_s=asked.timeout,
        again=asked.again,
        repeat=asked.repeat,
        program=program,
        alongside=asked.no_store,
        given_name=_sweep_name(asked.sweep_name),
        scratch=asked.scratch,
        grace_s=asked.grace,
        sample_s=sampler.interval(asked.sample),
        image=image(here.image, here.bind or (), here.container_runtime, gpu=device == "cuda") if here.image else None,
        places=places(here.devices) if here.devices else (),
    )


def check_ready(request: SweepRequest) -> SweepRequest:
    """The request, ready to run. Raises ToolMissing when the profiler, or what the program's own interpreter must have,
    is not on this machine, or not in the image."""
    if request.image is not None:
        return _ready_inside(request, request.image)
    elsewhere = request.program is not None and request.program.python != sys.executable
    check_tools(request.profiler, request.device, but=("torch",) if elsewhere else ())
    if request.program is not None:
        interpreter.check(request.program, __version__)
    return request


def _ready_inside(request: SweepRequest, image: Image) -> SweepRequest:
    answer = in_image.check(image, request.profiler, request.device, __version__)
    if request.program is not None:
        prefix = image.prefix(where.folders(request)[1:], Path.cwd())
        interpreter.check(request.program, __version__, prefix)
    return replace(request, profiler=in_image.use_image_tools(request.profiler, answer), given_name=request.name)


def _program(
    asked: Asked, rest: tuple[str, ...], command: tuple[str, ...] | None, batches: tuple[int, ...], here: Here
) -> Program | None:
    """The program after ``--``; None where a built-in workload is meant."""
    if command is None or (asked.workload is not None and command[:1] and command[0].startswith("--")):
        for name in _PROGRAM:
            if getattr(asked, name) is not None:
                raise UsageError(
                    f"{_option(name)} is for a program of your own", "Put it behind --: -- python train.py"
                )
        return None
    if asked.workload is not None:
        raise UsageError(
            f"two programs are named: --workload {asked.workload}, and '{shlex.join(command)}' after --",
            "Leave one of them out",
        )
    for name in _BUILT_IN:
        if getattr(asked, name) is not None:
            raise UsageError(
                f"{_option(name)} is an option of built-in workloads; a program of your own sets it itself",
                "Put it among the program's arguments, or leave it out",
            )
    if rest:
        raise UsageError(
            f"'{shlex.join(rest)}' stands before --, and perfctl has no such option",
            "Options of your program follow its name after --",
        )
    _check_marker(asked.step_marker)
    if here.image is not None:
        python, words = program_words(command)
        inside = read_program((sys.executable, *words) if python else command, asked.batch_env, batches)
        return replace(inside, python=python or PYTHON)
    typed = read_program(command, asked.batch_env, batches)
    program = interpreter.choose_interpreter(typed, command[0])
    if program.python != typed.python:
        console.note(f"{typed.python} has no perfctl: {program.name} runs under perfctl's own, {program.python}")
    return program


def _sweep_name(name: str | None) -> str | None:
    if name is not None and (name != file_name(name) or not name):
        raise UsageError(f"--sweep-name: '{name}' is no name of a folder", "Use letters, digits and ._- of ASCII")
    return name


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _check_marker(marker: str | None) -> None:
    kind, colon, name = (marker or "auto").partition(":")
    if kind in _MARKERS and (not colon or (name and kind in _MARKERS_OF_A_CLASS)):
        return
    raise UsageError(
        f"--step-marker: '{marker}' is not known",
        f"Say {', '.join(_MARKERS)}, optimizer:CLASS or forward:MODULECLASS",
    )


def _arguments(asked: Asked, device: str, program: Program | None) -> tuple[str, ...]:
    """What goes to python -m perfctl.workloads beside batch size, record, annotation and window."""
    words = ["--device", device]
    for name in (*_ALWAYS, *(_PROGRAM if program else _BUILT_IN)):
        value = getattr(asked, name)
        if value is not None:
            words += [_option(name), str(value)]
    if program and program.variant:
        words.append(f"--variant={program.variant}")  # one word, for it may begin with a dash
    return tuple(words)


def _check_not_own(rest: tuple[str, ...]) -> None:
    """Raises UsageError for an option that would contradict what perfctl itself says to the workload."""
    for word in rest:
        name = word.partition("=")[0]
        if name in OWN:
            instead = "Batch sizes are given with --batches" if name == "--batch" else "perfctl sets it for each run"
            raise UsageError(f"{name} cannot be passed on to the workload", instead)


def _check_workload(name: str, arguments: tuple[str, ...]) -> None:
    """Ask the workload whether it knows these options, without loading torch."""
    from perfctl.workloads.spec import SpecError, UnknownWords, parse_arguments

    try:
        parse_arguments(name, ["--batch", "1", *arguments])
    except UnknownWords as error:
        raise unknown(name, error.words) from error
    except SpecError as error:
        raise UsageError(str(error)) from error


def unknown(workload: str, words: Sequence[str]) -> UsageError:
    """Words of a sweep's command line that neither perfctl nor the workload knows."""
    from difflib import get_close_matches

    from perfctl.workloads.spec import describe

    said = f"'{shlex.join(words)}' is known neither to perfctl nor to its workload {workload}"
    if not words[0].startswith("-"):
        return UsageError(said, "A program of your own goes behind --: -- python train.py --batch-size {batch}")
    own = re.findall(r"--[a-z][a-z-]*", describe(workload))
    known = [*own, *(_option(field.name.removeprefix("as_")) for kind in (Asked, Here) for field in fields(kind))]
    near = get_close_matches(words[0].partition("=")[0], known, 1, cutoff=0.75)
    meant = f"Did you mean {near[0]}? " if near else ""
    return UsageError(
        said,
        f"{meant}--help lists perfctl's options, 'python -m perfctl.workloads {workload} --help' those of the workload",
    )
