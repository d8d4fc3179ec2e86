"""Place the runs of a sweep: inside an image, on a GPU or cores; and the facts about that for a run's record."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.launch.images import run
from perfctl.orchestrator.launch.machine import devices
from perfctl.orchestrator.launch.machine.devices import Place
from perfctl.orchestrator.launch.profilers.base import Command, RunRequest
from perfctl.orchestrator.launch.sampling.sampler import Sampling

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.sweep.request import SweepRequest


def commands(request: SweepRequest, asked: RunRequest) -> tuple[Command, ...]:
    """The commands of one run, inside the sweep's image, with the environment of its place if there is only one."""
    made = request.profiler.commands(asked)
    if (place := single_place(request)) is not None and place.environment:
        made = tuple(replace(one, environment={**one.environment, **place.environment}) for one in made)
    image = request.image
    if image is None:
        return made
    seen = folders(request)
    return tuple(image.wrap(command, seen, Path.cwd()) for command in made)


def folders(request: SweepRequest) -> list[Path]:
    """Folders that a run inside an image needs besides the working directory."""
    script = request.program.script if request.program else None
    return [request.folder, *([request.scratch] if request.scratch else []), *([script.parent] if script else [])]


def facts(request: SweepRequest) -> dict[str, str]:
    """Facts for a run's record: its container and its place."""
    runs_in = request.image or run.inside()
    found = runs_in.facts() if runs_in and request.origin == "measured" else {}
    place = single_place(request)
    return found | place.facts() if place else found


def sampling(request: SweepRequest, asked: RunRequest, command: Command) -> Sampling | None:
    """What to sample during a run; None when sampling is off or the run is a replay."""
    if request.sample_s is None or request.origin != "measured":
        return None
    visible = command.environment.get(devices.VISIBLE, os.environ.get(devices.VISIBLE))
    return Sampling(request.sample_s, asked.paths.part, asked.device == "cuda", visible)


def single_place(request: SweepRequest) -> Place | None:
    """The request's only place; None when it has several or none."""
    return request.places[0] if len(request.places) == 1 else None


def reserved(request: SweepRequest) -> tuple[Place, ...]:
    """The places to lock during the sweep: those requested, or the GPU that programs use by default."""
    if request.places or request.device != "cuda" or request.origin != "measured":
        return request.places
    first = devices.first_gpu()
    return (first,) if first else ()
