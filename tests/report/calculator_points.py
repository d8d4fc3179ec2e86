"""Random choices of the calculator's page, and what the page and Python make of one, in the
same words."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from perfctl.orchestrator.predict.cost import Span, TrainingCost
from perfctl.orchestrator.predict.predict import StepTime

IN_PAGE = """choices => choices.map(one => {
  const page = perfctlCalculator, choice = { ...page.firstChoice(), ...one }, a = page.answerOf(choice);
  if (a.impossible || !a.time) return { refused: a.impossible ?? a.reason };
  const span = (s) => s ? [s.value, s.low, s.high] : null, { time, room, parallel } = a;
  return {
    way: time.way, source: time.source, why_not: time.whyNot, outside: time.outside.toSorted(), coverage: time.coverage,
    alone: [time.value, time.low, time.high], step: span(a.step), steps: a.steps, epoch: span(a.epoch),
    training: span(a.training), memory: room ? [room.needed, room.limit, room.largest, room.fits, room.lacking] : null,
    efficiency: parallel ? parallel.efficiency : null,
    offers: Object.fromEntries(a.rentals.map(r => [`${r.price.provider} ${r.price.instance ?? ""} ${r.price.region ?? ""}`,
      [r.instances, r.idle, span(r.on_demand), span(r.spot)]])),
    energy: a.energy ? [a.energy.watts, a.energy.source, span(a.energy.kwh), span(a.energy.cost)] : null,
  };
})"""
"""JavaScript: a list of choices to a list of :func:`said_of`'s records, or ``{refused: why}``."""


def said_of(step: StepTime, found: TrainingCost) -> dict[str, Any]:
    """The record of one choice, from what Python predicts."""
    room, power = found.room, found.energy
    return {
        "way": step.way,
        "source": step.source,
        "why_not": list(step.why_not),
        "outside": sorted(step.outside),
        "coverage": step.coverage,
        "alone": [step.seconds, step.low, step.high],
        "step": span(found.step),
        "steps": found.steps,
        "epoch": span(found.epoch),
        "training": span(found.total),
        "memory": [room.needed, room.limit, room.largest, room.fits, room.lacking]
        if room
        else None,
        "efficiency": found.parallel.efficiency if found.parallel else None,
        "offers": {
            f"{one.price.provider} {one.price.instance or ''} {one.price.region or ''}": [
                one.instances,
                one.idle_gpus,
                span(one.on_demand),
                span(one.spot),
            ]
            for one in found.rentals
        },
        "energy": [power.watts, power.source, span(power.kwh), span(power.cost)] if power else None,
    }


def span(one: Span | None) -> list[float] | None:
    return [one.value, one.low, one.high] if one is not None else None


def error(page: Any, python: Any) -> tuple[float, str]:
    """(the largest relative error of a number, where it is); infinite where anything
    else differs."""
    mine, theirs = dict(leaves(page)), dict(leaves(python))
    if mine.keys() != theirs.keys():
        return float("inf"), f"{mine.keys() ^ theirs.keys()} in the page or in Python only"
    errors = [(0.0, "")]
    for path, expected in theirs.items():
        found, off = mine[path], float("inf")
        if found == expected:
            off = 0.0
        elif all(
            isinstance(one, (int, float)) and not isinstance(one, bool) for one in (found, expected)
        ):
            off = abs(found - expected) / abs(expected) if expected else abs(found)
        errors.append((off, f"{path}: {found!r} in the page, {expected!r} in Python"))
    return max(errors)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(where, what) of everything that holds nothing else."""
    if not isinstance(value, (dict, list)) or not value:
        yield path, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(inner, f"{path}.{key}")


def random_choice(
    rng: random.Random, models: Sequence[str], devices: Sequence[str]
) -> dict[str, Any]:
    """Everything that can be picked, at random, at batch sizes of which few are knots of
    the grid."""
    gpus = rng.choice([1, 1, 1, 2, 4, 8, 16])
    return {
        "model": rng.choice(models),
        "device": rng.choice(devices),
        "batch": rng.choice([1, round(2 ** rng.uniform(0, 16)), round(2 ** rng.uniform(0, 10))]),
        "samples": rng.randint(1, 2_000_000),
        "epochs": rng.randint(1, 300),
        "precision": rng.choice(["fp32", "fp32", "tf32", "bf16", "fp16"]),
        "optimizer": rng.choice(["sgd", "momentum", "adam"]),
        "gpus": gpus,
        "overlap": rng.choice([0, 0.5, 1]) if gpus > 1 else 0,
        "efficiency": rng.choice([0, 0, 0.9]) if gpus > 1 else 0,
        "tariff": rng.choice([0, 0.31]),
    }
