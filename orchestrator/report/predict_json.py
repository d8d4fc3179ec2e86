"""A prediction as one JSON document. Seconds, bytes, US dollars, kWh; spans are {value, low, high}.

What is null or empty has its reason under ``gaps``, by its name.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.cost import Rental, Span
from perfctl.orchestrator.analyse.question import Answer, AnswerPoint
from perfctl.orchestrator.analyse.training import Room
from perfctl.orchestrator.report import prices_text

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.cost_frontier import Frontier


def as_json(found: Answer, best: Frontier | None) -> dict[str, Any]:
    """Everything, every offer and every layer."""
    question, machine = found.question, found.device.machine
    return {
        "model": found.subject.model,
        "mode": "train" if found.subject.training else "infer",
        "optimizer": found.subject.optimizer or None,
        "precision": question.precision,
        "parameters": found.subject.parameters,
        "dataset_size": question.samples,
        "epochs": question.epochs,
        "gpus": question.gpus,
        "device": {
            **asdict(machine),
            "flops_per_second": dict(machine.flops_per_second),
            "source": found.device.source,
        },
        "prices": found.prices.where,
        "notes": list(found.notes),
        "batches": [_point(point) for point in found.points],
        "frontier": _frontier(best) if best is not None else None,
    }


def _point(point: AnswerPoint) -> dict[str, Any]:
    step, training = point.step, point.training
    return {
        "batch": step.case.batch,
        "step_s": _span(training.step),
        "step_one_gpu_s": _span(training.alone),
        "samples_per_s": _span(training.samples_per_second),
        "steps_per_epoch": training.steps,
        "epoch_s": _span(training.epoch),
        "training_s": _span(training.whole),
        "way": step.way,
        "source": step.source,
        "coverage": step.coverage,
        "why_not_better": [why for why in step.why_not if why],
        "beyond_the_data": list(step.outside),
        "roofline_s": step.floor,
        "phases_s": dict(step.phases),
        "memory": _room(training.room),
        "parallel": asdict(training.parallel) if training.parallel is not None else None,
        "offers": [_rental(rental) for rental in training.rentals],
        "energy": asdict(training.energy) if training.energy is not None else None,
        "layers": [asdict(share) for share in step.shares],
        "drivers": dict(step.drivers),
        "gaps": _gaps(point),
    }


def _gaps(point: AnswerPoint) -> dict[str, str]:
    """Name of a field that is null or empty -> why."""
    step, training = point.step, point.training
    job = training.job
    found = {
        "steps_per_epoch": "no --dataset-size" if job.samples is None else None,
        "epoch_s": "no --dataset-size" if job.samples is None else None,
        "training_s": "no --epochs" if job.epochs is None else None,
        "coverage": "no fit on this device: the range is that of the source" if step.coverage is None else None,
        "phases_s": "only measured and fitted steps know their phases" if not step.phases else None,
        "drivers": "only fits know them" if not step.drivers else None,
        "memory": "no lines of memory for this model: see notes" if training.room is None else None,
        "parallel": "one GPU" if training.parallel is None else None,
    }
    if training.room is not None and training.room.limit is None:
        found["memory.limit_bytes"] = "how much the device has is not known"
    if not training.rentals:
        found["offers"] = (
            "no --dataset-size" if training.billed is None else "no offer of this device in the price table"
        )
    if training.energy is None:
        found["energy"] = "no --dataset-size" if training.billed is None else "no power is known: --power"
    elif training.energy.cost is None:
        found["energy.cost"] = "no --tariff"
    return {name: why for name, why in found.items() if why is not None}


def _span(span: Span | None) -> dict[str, float] | None:
    return asdict(span) if span is not None else None


def _room(room: Room | None) -> dict[str, Any] | None:
    if room is None:
        return None
    return {
        "needed_bytes": room.needed,
        "limit_bytes": room.limit,
        "fits": room.fits,
        "lacking_bytes": room.lacking,
        "largest_batch": room.largest,
    }


def _rental(rental: Rental) -> dict[str, Any]:
    return {
        **prices_text.as_json(rental.price),
        "instances": rental.instances,
        "idle_gpus": rental.idle,
        "on_demand_usd": _span(rental.on_demand),
        "spot_usd": _span(rental.spot),
    }


def _frontier(best: Frontier) -> dict[str, Any]:
    return {
        "compared": best.compared,
        "too_large": best.too_large,
        "unknown": best.unknown,
        "choices": [
            {
                **prices_text.as_json(choice.price),
                "board": choice.board,
                "batch": choice.batch,
                "training_s": _span(choice.seconds),
                "on_demand_usd": _span(choice.dollars),
                "spot_usd": _span(choice.spot),
            }
            for choice in best.choices
        ],
    }
