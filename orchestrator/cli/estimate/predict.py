"""perfctl predict"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, flags, options
from perfctl.orchestrator.errors import UsageError


def predict(
    model: Annotated[
        str,
        typer.Argument(
            help="As in 'perfctl estimate': torchvision:NAME, hf:NAME, resnet:depth=26, ..."
        ),
    ],
    batch: Annotated[int | None, typer.Option(help="Samples per step and GPU.")] = None,
    batches: Annotated[
        str | None,
        typer.Option("--batches", "-b", help="Several batch sizes, for a table: 16,32,64."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="A100, V100 SXM2 32 GB, rtx3090, ...; cpu: this machine's.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads, with --device cpu. Default: as many as torch uses."),
    ] = None,
    device_spec: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Peaks by hand: name=X,fp32_tflops=20,bandwidth_gbs=900,memory_gb=24.",
        ),
    ] = None,
    dataset_size: Annotated[int | None, typer.Option(help="Samples in an epoch.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the dataset.")] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help=(
                "fp32 (TF32 off), tf32, bf16, fp16; with --prompt also fp8. Default: fp32; with "
                "--prompt fp16."
            )
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="sgd, momentum, adam, adamw, ...; default: the model's own, else momentum."
        ),
    ] = None,
    gpus: Annotated[int, typer.Option(help="Number of GPUs, data parallel.")] = 1,
    interconnect: Annotated[
        float | None,
        typer.Option(metavar="GB/S", help="Between GPUs, one way. Default: the data sheet's link."),
    ] = None,
    overlap: Annotated[
        float, typer.Option(help="Share of the communication hidden behind backward, 0 to 1.")
    ] = 0.0,
    efficiency: Annotated[
        float | None,
        typer.Option(help="Data-parallel efficiency, 0 to 1, instead of working it out."),
    ] = None,
    mode: Annotated[str, typer.Option(help="train, or infer: forward only.")] = "train",
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="Shape of one sample, where the model does not say: 3x224x224."
        ),
    ] = None,
    seq: Annotated[
        int | None, typer.Option(help="Sequence length of a library's model: tokens, samples.")
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option(
            help="Generation of text: tokens that go in at once (prefill). --batch: sequences."
        ),
    ] = None,
    generate: Annotated[
        int | None, typer.Option(help="Generation: tokens that come out, the first from prefill.")
    ] = None,
    kv_cache: Annotated[
        str | None,
        typer.Option(
            help="Generation: type of the cache, fp16, bf16, fp8, int8. Default: as the weights."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help=(
                "Generation: eager (PyTorch; default) or tensorrt-llm (fused kernels, CUDA graphs)."
            )
        ),
    ] = None,
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="Images lie channels-last in memory (NHWC).")
    ] = False,
    compiled: Annotated[
        bool,
        typer.Option("--compile", help="Under torch.compile; inference on GPUs, in fp32 on CPUs."),
    ] = False,
    tariff: Annotated[
        float | None, typer.Option(help="Price of a kWh, for the cost of energy.")
    ] = None,
    power: Annotated[
        float | None, typer.Option(help="W of one GPU. Default: measured, else the data sheet's.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show which layers take the time, and what drives it.")
    ] = False,
    frontier: Annotated[
        bool,
        typer.Option("--frontier", help="Show time against cost over all offers and batch sizes."),
    ] = False,
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A price table (CSV); default: the one of 'perfctl prices'."
        ),
    ] = None,
    undated: Annotated[
        bool,
        typer.Option(
            "--undated", help="Use offers, too, whose price has no known date or is promotional."
        ),
    ] = False,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", help="The store whose runs are used. Default: perfctl.db, if it exists."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Predict step, epoch and training time, memory and cost of a model on a device, each with
    its interval.

    With --prompt: time to the first token and for each token after it, of a model that
    generates text.
    """
    if prompt is not None:
        refused = {
            "dataset_size": dataset_size,
            "epochs": epochs,
            "optimizer": optimizer,
            "gpus": gpus != 1,
            "overlap": overlap,
            "interconnect": interconnect,
            "efficiency": efficiency,
            "seq": seq,
            "tariff": tariff,
            "power": power,
            "threads": threads,
            "store": store,
            "inputs": inputs,
            "channels_last": channels_last,
            "explain": explain,
            "frontier": frontier,
            "compiled": compiled,
        }
        if unused := [name for name, value in refused.items() if value]:
            raise UsageError(f"`{unused[0]}` does not go with `prompt`", f"Leave `{unused[0]}` out")
        _generation(
            as_json,
            model=model,
            batches=_batches(batch, batches) if batch or batches else (1,),
            prompt=prompt,
            generate=1 if generate is None else generate,
            engine=engine or "eager",
            precision=precision or "fp16",
            kv_cache=kv_cache,
            device=device,
            device_spec=device_spec,
            prices=prices,
            undated=undated,
        )
        return
    for name, value in (("generate", generate), ("kv_cache", kv_cache), ("engine", engine)):
        if value is not None:
            raise UsageError(f"`{name}` needs `prompt`", "Say how long the prompt is: `prompt` 512")
    from perfctl.orchestrator.actions.predict.predict import answer
    from perfctl.orchestrator.predict.answer import Question
    from perfctl.orchestrator.predict.training import check_frontier, frontier_of

    question = Question(
        model=model,
        batches=_batches(batch, batches),
        device=device,
        device_spec=device_spec,
        samples=dataset_size,
        epochs=epochs,
        precision=precision or "fp32",
        optimizer=optimizer,
        gpus=gpus,
        infer=_infers(mode),
        store=_store(store),
        tariff=tariff,
        power=power,
        link_gbs=interconnect,
        overlap=overlap,
        efficiency=efficiency,
        inputs=tuple(inputs or ()),
        threads=threads,
        seq=seq,
        prices=prices,
        channels_last=channels_last,
        undated=undated,
        compiled=compiled,
    )
    if frontier:
        check_frontier(question)
    found = answer(question, console)
    best = frontier_of(found) if frontier else None
    if as_json:
        from perfctl.orchestrator.report import predict as report_predict

        console.as_json(report_predict.predict_output(found, best), "predict")
        return
    from perfctl.orchestrator.report import predict as report_predict

    found = replace(found, notes=tuple(map(flags.with_flags, found.notes)))
    for part in report_predict.terminal(found, best, explain):
        console.show(part)


def _generation(as_json: bool, **given: Any) -> None:
    """A language model that writes."""
    from perfctl.orchestrator.actions.predict.generation import answer
    from perfctl.orchestrator.predict.answer import Question
    from perfctl.orchestrator.report import predict_generation as view

    found = answer(Question(**given), console)
    if as_json:
        console.as_json(view.predict_generation_output(found), "predict-generation")
        return
    found = replace(found, notes=tuple(map(flags.with_flags, found.notes)))
    for part in view.terminal(found):
        console.show(part)


def _infers(mode: str) -> bool:
    if mode not in ("train", "infer"):
        raise UsageError(f"`mode`: '{mode}' is not known", "Use train or infer")
    return mode == "infer"


def _batches(one: int | None, several: str | None) -> tuple[int, ...]:
    if (one is None) == (several is None):
        said = "no batch size" if one is None else "--batch and --batches together"
        raise UsageError(said, "Use --batch 64, or --batches 16,32,64 for a table")
    return (one,) if one is not None else options.batch_list(several or "")


def _store(named: Path | None) -> Path:
    """The store to use; only the default one may be missing."""
    if named is not None and not named.exists():
        raise UsageError(
            f"--store: there is no store {named}",
            "Leave it out to predict without runs, or run 'perfctl bench'",
        )
    return named or DEFAULT
