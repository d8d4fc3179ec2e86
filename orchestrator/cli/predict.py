"""perfctl predict"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import UsageError


def predict(
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="torchvision:NAME, resnet:depth=26,..., mnist_cnn, file.py:factory."),
    ],
    batch: Annotated[int | None, typer.Option(help="Samples a step and GPU.")] = None,
    batches: Annotated[str | None, typer.Option("--batches", "-b", help="Several, for a table: 16,32,64.")] = None,
    device: Annotated[
        str | None, typer.Option(help="A100, V100 SXM2 32 GB, rtx3090, ...; cpu: this machine's.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Of --device cpu. Default: as many as torch takes.")] = None,
    device_spec: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Peaks by hand: name=X,fp32_tflops=20,bandwidth_gbs=900,memory_gb=24."),
    ] = None,
    dataset_size: Annotated[int | None, typer.Option(help="Samples of an epoch.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How often the data is gone through.")] = None,
    precision: Annotated[str, typer.Option(help="fp32 (TF32 off), tf32, bf16 or fp16.")] = "fp32",
    optimizer: Annotated[
        str | None, typer.Option(help="sgd, momentum, adam, adamw, ...; default: the model's own, else momentum.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="Data parallel over so many.")] = 1,
    interconnect: Annotated[
        float | None, typer.Option(metavar="GB/S", help="Between GPUs, one way. Default: the data sheet's link.")
    ] = None,
    overlap: Annotated[float, typer.Option(help="Share of the communication hidden behind backward, 0 to 1.")] = 0.0,
    efficiency: Annotated[
        float | None, typer.Option(help="Data-parallel efficiency, 0 to 1, instead of working it out.")
    ] = None,
    infer: Annotated[bool, typer.Option("--infer", help="Forward alone.")] = False,
    given: Annotated[
        list[str] | None, typer.Option("--input", help="Shape of one sample, where the model does not say: 3x224x224.")
    ] = None,
    tariff: Annotated[float | None, typer.Option(help="Price of a kWh, for the cost of energy.")] = None,
    power: Annotated[float | None, typer.Option(help="W of one GPU. Default: measured, else the data sheet's.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Which layers take the time, and what drives it.")] = False,
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Time against cost over all offers and batch sizes.")
    ] = False,
    store: Annotated[
        Path | None,
        typer.Option("--db", "--store", help="The store whose runs are used. Default: perfctl.db, where it is."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Predict step, epoch and training time, memory and cost of a model on a device, each with its interval."""
    from perfctl.orchestrator.analyse.question import Question
    from perfctl.prediction import answer

    question = Question(
        model, _batches(batch, batches), device, device_spec, dataset_size, epochs, precision, optimizer, gpus, infer,
        _store(store), tariff, power, interconnect, overlap, efficiency, tuple(given or ()), threads,
    )  # fmt: skip
    found, known = answer(question)
    best = None
    if frontier:
        from perfctl.orchestrator.cli.predict_frontier import frontier_of

        best = frontier_of(found, known)
    if as_json:
        from perfctl.orchestrator.report import predict_json

        console.as_json(predict_json.as_json(found, best))
        return
    from perfctl.orchestrator.report import predict_text

    for part in predict_text.terminal(found, best, explain):
        console.show(part)


def _batches(one: int | None, several: str | None) -> tuple[int, ...]:
    if (one is None) == (several is None):
        said = "no batch size" if one is None else "--batch and --batches together"
        raise UsageError(said, "Say --batch 64, or --batches 16,32,64 for a table")
    return (one,) if one is not None else options.batch_list(several or "")


def _store(named: Path | None) -> Path:
    """The default one need not be there."""
    if named is not None and not named.exists():
        raise UsageError(
            f"--db: there is no store {named}", "Leave it out to predict without runs, or run 'perfctl bench'"
        )
    return named or DEFAULT
