"""How far predictions of generated text, and of NeuSight's language models, are from published
times that they did not see.

    python scripts/proof/accuracy/engines/accuracy_engines.py [--shared ../shared] [--traces FILE]
    [--only-engines]

Rows of TensorRT-LLM in published.csv: each device left out once, then the chip that H100, H200 and
GH200 share. Rows that may not be learned from judge only. NeuSight's rows: each chip left out of
the fit of whole steps (publish.py). Beside each line stand the roofline alone, a line through GMACs
(fitted in logarithms to these very rows), and what NeuSight and Habitat predict.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from accuracy_lines import parser_for
from engine_rows import Row, rows
from publish_engines import LeftOut, all_left_out, chip, learn, product, spread_of, teaches

from perfctl.orchestrator.counts.hardware.machines import find_device
from perfctl.orchestrator.predict import generation
from perfctl.orchestrator.predict.cost import Span, compute_step_with_allreduce

FILE = "datasets/neusight/summary/summary.csv"
AIM = 0.15
"""Median that is wanted by left-out device."""

EAGER = (
    (
        "hf:llama",
        "A10G",
        1000,
        200,
        200 / 23.15,
        "fxmarty/accelerated-pytorch-transformers-generation, README.md, 2023",
    ),
    (
        (
            "hf:gemma:hidden_size=2048,num_hidden_layers=18,intermediate_size=16384,"
            "num_attention_heads=8,num_key_value_heads=1,head_dim=256,vocab_size=256000"
        ),
        "A10G",
        7,
        128,
        0.0207 + 127 * 0.01973,
        "hf-internal-testing/benchmark_results, 2024-09-04; the board is not stated, taken as A10G",
    ),
)
"""generate() of transformers in eager mode, 16 bits, batch 1: model, board, prompt, tokens,
seconds, source. Judges only."""


def errors(predicted: Sequence[float], measured: Sequence[float]) -> np.ndarray:
    return abs(np.array(predicted) / np.array(measured) - 1.0)


def gmacs(macs: Sequence[float], seconds: Sequence[float]) -> np.ndarray | None:
    """Errors of a line through GMACs; None for too few rows."""
    if len(macs) < 4 or len(set(macs)) < 3:
        return None
    one, other = np.log(macs), np.log(seconds)
    return abs(np.exp(np.polyval(np.polyfit(one, other, 1), one) - other) - 1.0)


def percent(found: np.ndarray | None) -> str:
    return (
        f"{100 * float(np.median(found)):7.1f} %"
        if found is not None and len(found)
        else f"{'':>9}"
    )


def line(
    name: str, predicted: Sequence[float], measured: Sequence[float], *others: np.ndarray | None
) -> str:
    found = errors(predicted, measured)
    ninth = f"{100 * float(np.quantile(found, 0.9)):7.1f} %"
    return f"{name:44}{len(measured):5}{percent(found)}{ninth}" + "".join(map(percent, others))


def engine_line(name: str, given: Sequence[Row], predicted: Mapping[str, float]) -> str:
    measured = [row.seconds for row in given]
    return line(
        name,
        [predicted[row.id] for row in given],
        measured,
        errors([row.floor() for row in given], measured),
        gmacs([row.macs for row in given], measured),
    )


def generated() -> bool:
    """Prints the lines of generated text; True when the aim is met."""
    every = [row for row in rows() if row.engine == "tensorrt-llm"]
    judges = [row for row in rows() if row.engine != "tensorrt-llm"]
    print(
        f"{'Generated text, TensorRT-LLM':44}{'rows':>5}{'median':>9}{'p90':>9}{'roofline':>9}"
        f"{'GMACs':>9}"
    )
    found = all_left_out(every)
    by_model, by_device, by_chip = found
    taught = [row for row in every if teaches(row)]
    print(engine_line("by left-out device", taught, by_device))
    for name in dict.fromkeys(map(product, taught)):
        mine = [row for row in taught if product(row) == name]
        print(
            engine_line(f"  {name}", mine, by_device)
            + f"   in 90 % range: {_inside(every, mine, found, name)}"
        )
    for kind, words in (
        ("run", "tokens/s of whole runs"),
        ("first", "time to the first token"),
        ("next", "time between tokens"),
    ):
        print(engine_line(f"  {words}", [row for row in taught if row.kind == kind], by_device))
    print(
        engine_line(
            "  H100, H200 and GH200 left out together",
            [row for row in taught if chip(row) == "GH100"],
            by_chip,
        )
    )
    print(engine_line("by left-out model", taught, by_model))
    costs = learn(taught)
    whole = {row.id: row.predicted(costs) for row in rows()}
    print(
        engine_line(
            "behind a server: first token, queue included",
            [row for row in every if row.behind_server],
            whole,
        )
    )
    for row in judges:
        print(
            f"  judge: {row.software}, {row.machine.name}, batch {row.batch}: {row.seconds:.3g} s, "
            f"predicted {whole[row.id]:.3g} s"
        )
    return (
        float(
            np.median(
                errors([by_device[row.id] for row in taught], [row.seconds for row in taught])
            )
        )
        < AIM
    )


def _inside(every: Sequence[Row], given: Sequence[Row], found: LeftOut, name: str) -> str:
    """Of a device left out: rows inside the range that the errors of the other devices give one
    that was not measured."""
    fit, predicted = generation.load_engine_fit(), found.device
    spread = spread_of([row for row in every if product(row) != name], found)
    rest = replace(fit, devices=tuple(one for one in fit.devices if one != name), spread=spread)
    held = 0
    for row in given:
        width = generation.compute_engine_interval_factor(rest, row.machine, row.kind == "first")
        held += row.seconds / width <= predicted[row.id] <= row.seconds * width
    return f"{held} of {len(given)}"


def whole_steps(shared: Path, traces: Path) -> bool:
    """Prints the lines of NeuSight's rows; True when the aim is met."""
    from publish import NO_SPREAD, as_published, teaches
    from publish import chip as chip_of
    from publish import learn as learn_steps
    from published_rows import rows as step_rows

    from perfctl.orchestrator.predict import published
    from perfctl.orchestrator.predict.step_parts import compute_step_floor_seconds

    every = step_rows(shared, traces)
    with (shared / FILE).open(encoding="utf-8", newline="") as file:
        theirs = list(csv.DictReader(file))
    mine = [row for row in every if row.source == "neusight"]
    taught, new, made = [row for row in every if teaches(row)], {}, {}
    for name in sorted({chip_of(row) for row in mine}):
        rest = [row for row in taught if chip_of(row) != name]
        fit = as_published(learn_steps(rest, made), rest, {}, NO_SPREAD)
        new |= {
            id(row): published.predict_device_step_seconds(fit, row.case, row.machine)
            for row in mine
            if chip_of(row) == name
        }
    habitat = {
        row["label_all_e2e_latency"]: float(row["habitat_all_e2e_latency"] or "nan") / 1e3
        for row in theirs
    }
    by_seconds = {float(key) / 1e3: value for key, value in habitat.items()}
    heads = ("median", "p90", "roofline", "GMACs", "NeuSight", "Habitat")
    print(
        f"\n{'NeuSight, fp32, by left-out GPU':44}{'rows':>5}"
        + "".join(f"{one:>9}" for one in heads)
    )

    def said(name: str, chosen: Callable[[object], bool]) -> np.ndarray:
        given = [row for row in mine if chosen(row)]
        measured = [row.seconds for row in given]
        others = (
            errors([compute_step_floor_seconds(row.case, row.machine) for row in given], measured),
            gmacs([row.case.forward_macs_of_batch for row in given], measured),
            errors([row.neusight or 0.0 for row in given], measured),
            _known(errors([by_seconds[row.seconds] for row in given], measured)),
        )
        predicted = [new[id(row)] for row in given]
        print(line(name, predicted, measured, *others))
        return errors(predicted, measured)

    whole = said("all", lambda row: True)
    for training, word in ((False, "inference"), (True, "training")):
        said(f"  {word}", lambda row, training=training: row.case.training == training)
    for name in sorted({chip_of(row) for row in mine}):
        said(f"  {name}", lambda row, name=name: chip_of(row) == name)
    _data_parallel(theirs, mine, new)
    left = Counter(_why(row) for row in theirs)
    print(
        f"{len(theirs)} rows; left out: "
        + "; ".join(f"{count} {why}" for why, count in left.items() if why)
    )
    return float(np.median(whole)) < AIM


def _data_parallel(
    theirs: Sequence[Mapping[str, str]], mine: Sequence[Any], new: Mapping[int, float]
) -> None:
    """Prints the line of four GPUs: a quarter of the batch on each, and the ring of the gradients
    in full, not hidden."""
    predicted, measured, neusight = [], [], []
    for row in theirs:
        machine = find_device("H100 SXM5" if "H100" in row["device"] else "A100 SXM4 40 GB")
        each = int(row["batch"]) // 4
        alike = [
            one
            for one in mine
            if one.module == row["model_name"]
            and one.case.training
            and one.case.batch == each
            and one.machine.name.split()[0] == machine.machine.name.split()[0]
        ]
        if row["option"] == "dp4" and alike and machine.board is not None:
            step, gpu = new[id(alike[0])], machine.board.gpu
            whole = compute_step_with_allreduce(
                Span(step, step, step), alike[0].case.parameters, 4, gpu.link_gbs, gpu.link
            )
            predicted.append(whole.step.value)
            measured.append(float(row["label_all_e2e_latency"]) / 1e3)
            neusight.append(float(row["neusight_all_e2e_latency"]) / 1e3)
    print(
        line(
            "  data parallel, 4 x H100 or A100",
            predicted,
            measured,
            None,
            None,
            errors(neusight, measured),
        )
    )


def trained(traces: Path) -> None:
    """Prints what the fit that ships, which is of eager mode, says of GPT-2's compiled training on
    15 boards."""
    from published_rows import Traces

    from perfctl.orchestrator.predict import published
    from perfctl.orchestrator.predict.operations import StepSpec

    kept, key = Traces(traces), "hf:gpt2 1024"
    kept.prepare([key])
    found = kept.of(key)
    assert found is not None
    facts, works = found
    ratios, names = [], []
    with (Path(__file__).resolve().parents[1] / "published.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        for row in csv.DictReader(file):
            if row["model"] == "hf:gpt2" and row["mode"] == "train":
                batch, machine = int(row["batch"]), find_device(row["device"]).machine
                case = StepSpec(
                    "hf:gpt2",
                    "llm",
                    works,
                    batch,
                    True,
                    row["precision"],
                    "adam",
                    facts["parameters"],
                )
                one, seconds = (
                    published.predict_step_by_published_fit(
                        published.load_shipped_fit("gpu"), case, machine
                    ),
                    1024 * batch / float(row["value"]),
                )
                ratios.append(one.seconds / seconds)
                names.append(row["device"])
    print(
        f"\nGPT-2 training on {len(set(names))} boards, compiled (judges only): eager mode is "
        f"predicted to take {np.median(ratios):.2f} times as long in the median ({min(ratios):.2f} "
        f"to {max(ratios):.2f}, {len(ratios)} rows)"
    )


def eager() -> None:
    """Prints the published runs of eager mode, whose licences are not stated."""
    from perfctl import predict_generation

    print("\nGenerated text, PyTorch in eager mode, batch 1 (judges only)")
    for model, board, prompt, tokens, seconds, source in EAGER:
        answer = predict_generation(model, prompt=prompt, generate=tokens, device=board)
        total = answer.points[0].total
        print(
            f"  {model.partition(':')[2].partition(':')[0]}, {board}, prompt {prompt}, {tokens} "
            f"tokens: {seconds:.2f} s, predicted {total.value:.2f} s ({total.low:.2f} to "
            f"{total.high:.2f}); {source}"
        )


def _known(found: np.ndarray) -> np.ndarray:
    return found[np.isfinite(found)]


def _why(row: Mapping[str, str]) -> str:
    """Why a row is left out; "" for one that is not."""
    if row["option"] == "fusion":
        return "compiled (this fit is of eager mode)"
    if row["option"]:
        return (
            ""
            if row["option"] == "dp4"
            else "tensor or pipeline parallel, which perfctl does not predict"
        )
    return (
        "of a mixture of experts whose configuration is not stated"
        if row["model_name"].startswith("switch")
        else ""
    )


def main() -> int:
    """Print the lines; return 1 when a median misses its aim."""
    from published_rows import KEPT

    parser = parser_for(__doc__, "datasets/neusight", KEPT)
    parser.add_argument(
        "--only-engines", action="store_true", help="generated text alone, which takes seconds"
    )
    given = parser.parse_args()
    good = generated()
    if not given.only_engines and (given.shared / FILE).is_file():
        good = whole_steps(given.shared, given.traces) and good
    if not given.only_engines:
        trained(given.traces)
        eager()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
