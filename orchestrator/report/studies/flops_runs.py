"""The networks that are compared; and what their runs recorded: memory by moment, the course of
training, machine and verdicts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfctl.orchestrator.ledger.hand_values import HandValue
from perfctl.orchestrator.ledger.network import LayerPoint, Network
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.report.charts.comparison import training_charts
from perfctl.orchestrator.report.findings import findings as page_findings
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from perfctl.orchestrator.report.numbers import full, percent, size
from perfctl.orchestrator.report.page.study import summaries
from perfctl.orchestrator.report.page.usage import readings_table, ways_table
from perfctl.orchestrator.report.studies.records import make_chapter
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    decimal_cell,
    nothing,
    share_cell,
    table,
    text_cell,
    time_cell,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run

MOMENTS = {
    "start": "before loading",
    "before": "after loading",
    "peak": "peak of the measured steps",
    "after": "at the end",
}
"""Moment of a memory figure -> in words."""
QUANTITIES = {
    "allocated": "GPU, allocated by torch",
    "reserved": "GPU, reserved by torch",
    "device_free": "GPU, free",
    "device_total": "GPU, total",
    "host_available": "CPU, available",
    "host_resident": "CPU, of the process",
}
DATA = {"synthetic": "drawn digits or random values, not a published data set", "mnist": "MNIST"}
_STATED = re.compile(r"memory (allocated|reserved), (before|after)")


@dataclass(frozen=True, slots=True)
class Compared:
    """What the chapters are made of."""

    networks: tuple[Network, ...]
    layer: str
    """The layer that is looked at closely."""
    batch: int
    """Batch size of the hand sheet, the memory figures and the training."""
    hand: tuple[HandValue, ...]
    points: tuple[tuple[Network, tuple[LayerPoint, ...]], ...]

    @property
    def runs(self) -> list[Run]:
        return [run for network in self.networks for run in network.runs]

    @property
    def all_points(self) -> list[LayerPoint]:
        return [point for _, points in self.points for point in points]

    @property
    def scatter(self) -> float:
        """Return the largest slowest / fastest step of the layer's forward pass."""
        return max((point.forward.scatter for point in self.all_points), default=1.0)

    @property
    def heads(self) -> list[Column]:
        """Return the column that tells networks apart, where there are several."""
        return [Column("network", style="text")] if len(self.networks) > 1 else []

    def of(self, networks: Sequence[Network]) -> Compared:
        """Return the same of these networks alone."""
        return replace(self, networks=tuple(networks))

    def name(self, network: Network) -> list[Cell]:
        """Return the cell of that column."""
        return [text_cell(network.label)] if len(self.networks) > 1 else []

    def rows(self) -> Iterator[tuple[list[Cell], LayerPoint]]:
        """Yield points, batch sizes ascending and at each the networks in order, with the cells
        that say which row it is."""
        for batch in sorted({point.batch for point in self.all_points}):
            for network, points in self.points:
                for point in points:
                    if point.batch == batch:
                        yield [text_cell(batch), *self.name(network)], point


def find_trained(network: Network, batch: int) -> Run | None:
    """Return the run with epochs, at ``batch`` where there are several."""
    known = [
        run
        for run in network.runs
        if any(step.phase in ("epoch", "test") for step in run.report.steps)
    ]
    return min(known, key=lambda run: run.batch_size != batch, default=None)


def _is_foreign(run: Run) -> bool:
    """Whether the report was made elsewhere: its moments are those of a training, and its figures
    have the digits they have."""
    return run.origin not in ("measured", "recorded")


def memory_chapter(compared: Compared) -> View:
    """Each quantity at each moment of one run of each network: with epochs, else without a
    profiler, else any."""
    chosen: list[tuple[Network, Run]] = []
    for network in compared.networks:
        trained = find_trained(network, compared.batch)
        runs = sorted(
            (run for run in network.runs if run.report.memory),
            key=lambda run: (
                run is not trained,
                run.batch_size != compared.batch,
                run.profiler != "none",
            ),
        )
        chosen += [(network, run) for run in runs[:1]]
    missing = tuple(_missing_memory(compared.runs))
    if not chosen:
        return make_chapter(missing=missing)
    run = chosen[0][1]
    epochs = sum(step.phase == "epoch" for step in run.report.steps)
    after = f", {epochs} epochs and their tests" if epochs else ""
    text = (
        "Before loading: torch is imported, and there is no model. After loading: no step was "
        f"measured yet. At the end: after the measured steps{after}, at batch {run.batch_size}."
    )
    held = {(item.moment, item.quantity): item.bytes for item in run.report.memory}
    findings = [
        f"{what}: {size(held['before', quantity])} after loading, "
        f"{size(held['after', quantity])} at the end."
        for quantity, what in (
            ("reserved", "GPU memory reserved"),
            ("host_resident", "CPU memory of the process"),
        )
        if {("before", quantity), ("after", quantity)} <= held.keys()
    ]
    return make_chapter(
        () if _is_foreign(run) else (text,),
        tables=(_memory_table(compared.of([network for network, _ in chosen]), chosen),),
        findings=tuple(findings[:1]),
        missing=missing,
    )


def _memory_table(compared: Compared, chosen: Sequence[tuple[Network, Run]]) -> Table | None:
    recorded = {item.moment for _, run in chosen for item in run.report.memory}
    moments = [name for name in MOMENTS if name in recorded]
    words = MOMENTS
    if all(_is_foreign(run) for _, run in chosen):
        words = MOMENTS | {"before": "before the training", "after": "after the training"}
    heads = [
        Column("memory", style="text"),
        *compared.heads,
        *(Column(words[name], base="B") for name in moments),
    ]
    rows = []
    for network, run in chosen:
        stated = dict(_stated_memory(run))
        for quantity in dict.fromkeys(quantity for quantity, _ in stated):
            texts = [stated.get((quantity, moment)) for moment in moments]
            rows.append(
                [
                    text_cell(f"{QUANTITIES[quantity]}, as published"),
                    *compared.name(network),
                    *(text_cell(text) if text else nothing("not stated") for text in texts),
                ]
            )
    for quantity in dict.fromkeys(item.quantity for _, run in chosen for item in run.report.memory):
        for network, run in chosen:
            held = {
                item.moment: item.bytes for item in run.report.memory if item.quantity == quantity
            }
            rows.append(
                [
                    text_cell(QUANTITIES.get(quantity, quantity)),
                    *compared.name(network),
                    *(_bytes_cell(held.get(moment)) for moment in moments),
                ]
            )
    return table("Memory of one run, by moment", heads, rows, tools=False)


def _stated_memory(run: Run) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield (quantity, moment) and the figure as it was published, where these are too coarse for
    bytes: "0.62 GB"."""
    for item in run.report.summaries:
        if match := _STATED.fullmatch(item.name):
            value = "" if item.value is None else f"{item.value:.2f} {item.unit or ''}".rstrip()
            if text := item.text or value:
                yield (match[1], match[2]), text


def _bytes_cell(value: int | None) -> Cell:
    """Return "40.4 GB (38,554 MiB)": nvidia-smi prints MiB."""
    if value is None:
        return nothing("the run did not record it at this moment")
    mib = value / 2**20
    text = f"{size(value)} ({mib:,.{0 if mib >= 100 else 1}f} MiB)"
    return Cell(text, full(value, "B"), value=value)


def _missing_memory(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    recorded = {item.quantity for run in runs for item in run.report.memory}
    recorded |= {quantity for run in runs for (quantity, _), _ in _stated_memory(run)}
    if not recorded & {"device_free", "device_total", "allocated", "reserved"}:
        on_cpu = all(run.device_kind in ("cpu", None) for run in runs)
        yield "GPU memory", "the run used no GPU" if on_cpu else "the runs recorded none"
    elif not recorded & {"allocated", "reserved"}:
        why = "the runs recorded what is free on the GPU only"
        yield "GPU memory allocated and reserved by torch", why
    if not recorded & {"host_available", "host_resident"}:
        yield "CPU memory", _gap(runs, "memory.host_available") or "the runs recorded none"


def _gap(runs: Sequence[Run], quantity: str) -> str | None:
    """Return why a run has none of it, in its own words."""
    gaps = (gap for run in runs for gap in run.report.gaps)
    return next((gap.reason for gap in gaps if gap.quantity == quantity), None)


def training_chapter(compared: Compared) -> View:
    """Loss, accuracy and time of each epoch and its test."""
    chosen = [
        (network, run)
        for network in compared.networks
        if (run := find_trained(network, compared.batch)) is not None
    ]
    if not chosen:
        why = "no run trained whole epochs: a built-in workload does with --epochs"
        return make_chapter(missing=(("loss and accuracy", why),))
    compared = compared.of([network for network, _ in chosen])
    heads = [
        Column("epoch"),
        *compared.heads,
        Column("training loss"),
        Column("test loss"),
        Column("test accuracy"),
        Column("time of the epoch", base="ns"),
        Column("time of the test", base="ns"),
    ]
    rows, findings = [], []
    data = chosen[0][1].report.environment.get("option:data")
    for network, run in chosen:
        steps = {(step.phase, step.number): step for step in run.report.steps}
        numbers = sorted({number for phase, number in steps if phase in ("epoch", "test")})
        stated = next((one.value for one in run.report.summaries if one.name == "epochs"), None)
        for number in numbers:
            train, test = steps.get(("epoch", number)), steps.get(("test", number))
            right = test.accuracy if test else None
            last = number + 1 if train else None if stated is None else round(stated)
            cells = [
                nothing("the report does not say") if last is None else text_cell(last),
                *compared.name(network),
                decimal_cell(train.loss if train else None),
                decimal_cell(test.loss if test else None),
                share_cell(right, "no test"),
                time_cell(train.duration_ns if train else None),
                time_cell(test.duration_ns if test else None),
            ]
            rows.append((number, cells))
            if number == numbers[-1] and right is not None and test is not None:
                of = f"{network.label}: " if len(chosen) > 1 else ""
                loss = f", loss {test.loss:.4f}" if test.loss is not None else ""
                on = "drawn digits" if data == "synthetic" else "the test data"
                after = "" if last is None else f" after {last} epoch{'' if last == 1 else 's'}"
                findings.append(f"{of}Accuracy {percent(right)}{loss} on {on}{after}.")
    rows.sort(key=lambda row: row[0])
    text = f"Trained on: {DATA.get(data or '', data or 'data that the run does not name')}."
    named = [
        (network.label if len(chosen) > 1 else "", run)
        for network, run in chosen
        if any(step.phase == "epoch" for step in run.report.steps)
    ]
    why = "the data were made here, so accuracy is not comparable: use --data mnist --data-dir DIR"
    return make_chapter(
        (text,),
        tuple(training_charts(named)),
        (table("Epochs", heads, [cells for _, cells in rows], tools=False),),
        findings=tuple(findings),
        missing=(("a published data set", why),) if data == "synthetic" else (),
    )


def machine_chapter(compared: Compared) -> View:
    """Hosts, devices and software, and how busy they were."""
    runs = compared.runs
    facts: dict[str, dict[str, None]] = defaultdict(dict)
    for run in runs:
        for device in run.devices:
            kind = "GPU" if device.kind == "gpu" else "CPU"
            memory = device.memory_bytes and _bytes_cell(device.memory_bytes).text
            for fact, value in (
                (kind, device.name or "not named"),
                (f"{kind} memory", memory),
                ("compute capability", device.compute_capability),
                ("driver", device.driver_version),
                # else it is the machine that read the report
                ("host", run.host if run.origin == "measured" else None),
                *run.report.environment.items(),
            ):
                if value:
                    facts[fact.removeprefix("option:").replace("_", " ")][value[:200]] = None
    rows = [[what, ", ".join(values)] for what, values in facts.items()]
    columns = [Column("fact", style="text"), Column("value", style="text")]
    usages = [(network, [RunUsage(run) for run in network.runs]) for network in compared.networks]
    missing: tuple[tuple[str, str], ...] = ()
    ways = [usage.ways for _, used in usages for usage in used]
    if all(way.kernels.value is way.nvml.value is way.dlprof.value is None for way in ways):
        why = "no run on the GPU was sampled, and none has kernels with start and length"
        why = _gap(runs, "sample.gpu_utilisation") or why
        on_cpu = all(run.device_kind in ("cpu", None) for run in runs)
        missing = (("GPU utilisation", "the run used no GPU" if on_cpu else why),)
    return make_chapter(
        tables=(
            table("Host and GPU", columns, rows, tools=False),
            *(_name_table(compared, network, ways_table(used)) for network, used in usages),
            summaries([run for run in runs if _is_foreign(run)]),
        ),
        folded=tuple(
            _name_table(compared, network, readings_table(used)) for network, used in usages
        ),
        missing=missing,
    )


def _name_table(compared: Compared, network: Network, made: Table | None) -> Table | None:
    """Return the table with the network's name in its caption, where there are several."""
    if made is None or len(compared.networks) == 1:
        return made
    return replace(made, caption=f"{made.caption}, {network.label}")


def verdicts_chapter(compared: Compared) -> View:
    """Why counted and paper differ, in full, and what the ledger's page would find."""
    names = ("about", "reason", "verdict", "what to do")
    heads = [*compared.heads, *(Column(name, style="text") for name in names)]
    rows: list[list[Cell]] = []
    text: list[str] = []
    findings: list[str] = []
    for network in compared.networks:
        lead = f"{network.label}: " if compared.heads else ""
        for analysis in network.analyses:
            of_sweep = [one for one in analysis.judgement.sweep if one.rule != "hand estimate"]
            causes = [("the sweep", cause) for cause in of_sweep]
            causes += [
                (f"{row.name}{row.at}", cause)
                for row in analysis.ledger.rows
                if row.layer == compared.layer
                for cause in analysis.judgement.at(row.batch, row.layer, row.direction).causes
            ]
            for about, cause in causes:
                cells = (about, cause.rule, describe_cause(cause), describe_fix(cause))
                rows.append([*compared.name(network), *map(text_cell, cells)])
            findings += map(describe_cause, of_sweep)
            text += [
                f"{lead}{finding.text}"
                for finding in page_findings(analysis)
                if finding.text not in findings
            ]
    made = table("Why counted and paper differ", heads, rows, tools=False)
    return make_chapter(tuple(dict.fromkeys(text)), tables=(made,), findings=tuple(findings))
