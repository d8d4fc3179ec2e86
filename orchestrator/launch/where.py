"""Where the runs of a sweep go: into which image, onto which GPU or cores, and what of that is worth remembering."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.launch import container, devices
from perfctl.orchestrator.launch.devices import Place
from perfctl.orchestrator.launch.profiler import Command, RunRequest
from perfctl.orchestrator.launch.sampler import Sampling

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.sweep_records import SweepRequest


def planned(request: SweepRequest, asked: RunRequest) -> tuple[Command, ...]:
    """The commands of one run as they are started: inside the image, and on its place where that is settled."""
    made = request.profiler.commands(asked)
    if (place := settled(request)) is not None and place.environment:
        made = tuple(replace(one, environment={**one.environment, **place.environment}) for one in made)
    image = request.image
    if image is None:
        return made
    seen = folders(request)
    return tuple(image.wrap(command, seen, Path.cwd()) for command in made)


def folders(request: SweepRequest) -> list[Path]:
    """What a run inside an image must see of this machine, beside the working folder."""
    script = request.program.script if request.program else None
    return [request.folder, *([request.scratch] if request.scratch else []), *([script.parent] if script else [])]


def surroundings(request: SweepRequest) -> dict[str, str]:
    """Facts for a run's environment: the container it ran in, and the place it was put on."""
    container_of_it = request.image or container.inside()
    facts = container_of_it.facts() if container_of_it and request.origin == "measured" else {}
    place = settled(request)
    return facts | place.facts() if place else facts


def sampling(request: SweepRequest, asked: RunRequest, command: Command) -> Sampling | None:
    """What to read beside a run; None where nothing was asked for, or where nothing runs but a recording."""
    if request.sample_s is None or request.origin != "measured":
        return None
    visible = command.environment.get(devices.VISIBLE, os.environ.get(devices.VISIBLE))
    return Sampling(request.sample_s, asked.paths.part, asked.device == "cuda", visible)


def settled(request: SweepRequest) -> Place | None:
    """The one place there is; None where several wait for runs, or none was named."""
    return request.places[0] if len(request.places) == 1 else None


def taken(request: SweepRequest) -> tuple[Place, ...]:
    """What nobody else may use meanwhile: the places, or the GPU that programs take by themselves."""
    if request.places or request.device != "cuda" or request.origin != "measured":
        return request.places
    first = devices.first_gpu()
    return (first,) if first else ()
