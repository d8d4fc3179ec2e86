"""Random choices of the calculator's page, and what the page and Python make of one, in the same words."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from perfctl.orchestrator.analyse.cost import Span
from perfctl.orchestrator.analyse.predict_records import StepTime
from perfctl.orchestrator.analyse.training import Training
from perfctl.orchestrator.report import amounts
from perfctl.workloads.plan import PARAMETERS, Number

IN_PAGE = """choices => choices.map(one => {
  const page = perfctlCalculator, a = page.answerOf({ ...page.firstChoice(), ...one });
  if (a.impossible || !a.time) return { refused: a.impossible ?? a.reason };
  const span = (s) => s ? [s.value, s.low, s.high] : null, { time, room, parallel } = a;
  return {
    model: a.model, way: time.way, source: time.source, why_not: time.why_not, outside: time.outside, coverage: time.coverage,
    floor: time.floor, alone: [time.seconds, time.low, time.high], step: span(a.step), steps: a.steps, epoch: span(a.epoch),
    training: span(a.training), memory: room ? [room.needed, room.limit, room.largest, room.fits, room.lacking] : null,
    efficiency: parallel ? parallel.efficiency : null,
    offers: a.rentals.map(r => [r.price.provider, r.price.instance, r.instances, r.idle, span(r.on_demand), span(r.spot)]),
    energy: a.energy ? [a.energy.watts, a.energy.source, span(a.energy.kwh), span(a.energy.cost)] : null,
    said: [page.duration(a.step), page.duration(a.epoch), page.duration(a.training), room ? page.gigabytes(room.needed) : "",
           ...a.rentals.filter(r => r.on_demand).map(r => page.dollars(r.on_demand))],
  };
})"""
"""JavaScript: a list of choices to a list of :func:`said_of`'s records, or ``{refused: why}``."""


def said_of(model: str, step: StepTime, found: Training) -> dict[str, Any]:
    """The record of one choice, from what Python predicts."""
    assert found.epoch is not None and found.whole is not None
    room, power = found.room, found.energy
    texts = [amounts.duration(one) for one in (found.step, found.epoch, found.whole)]
    return {
        "model": model, "way": step.way, "source": step.source, "why_not": list(step.why_not), "outside": list(step.outside),
        "coverage": step.coverage, "floor": step.floor, "alone": [step.seconds, step.low, step.high],
        "step": span(found.step), "steps": found.steps, "epoch": span(found.epoch), "training": span(found.whole),
        "memory": [room.needed, room.limit, room.largest, room.fits, room.lacking] if room else None,
        "efficiency": found.parallel.efficiency if found.parallel else None,
        "offers": [[one.price.provider, one.price.instance, one.instances, one.idle, span(one.on_demand), span(one.spot)]
                   for one in found.rentals],
        "energy": [power.watts, power.source, span(power.kwh), span(power.cost)] if power else None,
        "said": [*texts, amounts.gigabytes(room.needed) if room else "",
                 *(amounts.dollars(one.on_demand) for one in found.rentals if one.on_demand)],
    }  # fmt: skip


def span(one: Span | None) -> list[float] | None:
    return [one.value, one.low, one.high] if one is not None else None


def difference(page: Any, python: Any, path: str = "") -> str | None:
    """Where two records differ: numbers by more than 1e-12 of themselves, everything else at all. None: nowhere."""
    if isinstance(page, bool) or isinstance(python, bool) or not isinstance(python, (int, float, list, dict)):
        return None if page == python else f"{path}: {page!r} in the page, {python!r} in Python"
    if isinstance(python, (int, float)):
        near = isinstance(page, (int, float)) and abs(page - python) <= 1e-12 * abs(python)
        return None if near else f"{path}: {page!r} in the page, {python!r} in Python"
    if type(page) is not type(python) or len(page) != len(python):
        return f"{path}: {page!r} in the page, {python!r} in Python"
    pairs: Sequence[tuple[Any, Any, Any]]
    if isinstance(python, Mapping):
        pairs = [(key, page.get(key), value) for key, value in python.items()]
    else:
        pairs = [(place, one, other) for place, (one, other) in enumerate(zip(page, python, strict=True))]
    return next(filter(None, (difference(one, other, f"{path}.{key}") for key, one, other in pairs)), None)


def random_spec(rng: random.Random) -> str:
    """A specification of a family, of which about a third cannot be built."""
    family = rng.choice(list(PARAMETERS))
    words = []
    for name, parameter in PARAMETERS[family].items():
        if rng.random() < 0.5 or name == "optimizer":
            continue
        if isinstance(parameter, Number):
            value = rng.randint(parameter.least, min(parameter.most, 2 * parameter.default + 1))
            value += 1 - value % 2 if parameter.odd and rng.random() < 0.9 else 0
            value = max(parameter.multiple, value - value % parameter.multiple)
            words.append(f"{name}={value}")
        else:
            words.append(f"{name}={rng.choice(parameter.words)}")
    return f"{family}:{','.join(words)}" if words else family


def random_choice(rng: random.Random, models: Sequence[str], devices: Sequence[str]) -> dict[str, Any]:
    """Everything that can be picked, at random."""
    gpus = rng.choice([1, 1, 1, 2, 4, 8, 16])
    return {
        "model": rng.choice(models) if models and rng.random() < 0.4 else random_spec(rng),
        "device": rng.choice(devices),
        "batch": rng.choice([1, 7, 64, 300, 4096, rng.randint(1, 500)]),
        "samples": rng.randint(1, 2_000_000),
        "epochs": rng.randint(1, 300),
        "precision": rng.choice(["fp32", "fp32", "tf32", "bf16", "fp16"]),
        "optimizer": rng.choice(["sgd", "momentum", "adam"]),
        "gpus": gpus,
        "overlap": rng.choice([0, 0.5, 1]) if gpus > 1 else 0,
        "efficiency": rng.choice([0, 0, 0.9]) if gpus > 1 else 0,
        "tariff": rng.choice([0, 0.31]),
    }
