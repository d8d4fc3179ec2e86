"""The networks that are compared; and what their runs recorded: memory by time, the course of
training, machine and causes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from perfctl.orchestrator.ledger.hand_values import CheckedHandValue
from perfctl.orchestrator.ledger.network import LayerAtBatch, Network
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.report.charts.comparison import (
    draw_loss_and_accuracy_by_epoch,
    draw_loss_by_step,
)
from perfctl.orchestrator.report.findings import list_findings as page_findings
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from perfctl.orchestrator.report.numbers import (
    format_bytes,
    format_integer_or_six_digits,
    format_percent,
)
from perfctl.orchestrator.report.page.study import build_report_summary_values_table
from perfctl.orchestrator.report.page.usage import (
    build_device_samples_table,
    build_utilization_table,
)
from perfctl.orchestrator.report.studies.records import build_study_chapter
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_table,
    count_cell,
    four_decimals_cell,
    missing_cell,
    optional_text_cell,
    share_cell,
    size_column,
    text_columns,
    time_column,
)
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import pluralize_count
from perfctl.records.run import Run

MOMENTS = {
    "start": "before loading",
    "before": "after loading",
    "peak": "peak of the measured steps",
    "after": "at the end",
}
"""When a memory figure was recorded -> in words."""
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
NetworkRow = tuple[str, Sequence[object]]
"""(label of the network, cells)."""


@dataclass(frozen=True, slots=True)
class ComparedNetworks:
    """What the chapters are made of."""

    networks: tuple[Network, ...]
    layer: str
    """The layer that is looked at closely."""
    batch: int
    """Batch size of the worked example, the memory figures and the training."""
    hand: tuple[CheckedHandValue, ...]
    points: tuple[tuple[Network, tuple[LayerAtBatch, ...]], ...]

    @property
    def runs(self) -> list[Run]:
        return [run for network in self.networks for run in network.runs]

    @property
    def labelled_points(self) -> list[tuple[str, LayerAtBatch]]:
        """Return (label of the network, point), batch sizes ascending."""
        pairs = [(network.label, point) for network, points in self.points for point in points]
        return sorted(pairs, key=lambda pair: pair[1].batch)

    @property
    def slowest_over_fastest_step(self) -> float:
        """Return the largest slowest / fastest step of the layer's forward pass."""
        return max(
            (point.forward.slowest_over_fastest_step for _, point in self.labelled_points),
            default=1.0,
        )

    def select_networks(self, labels: Iterable[str]) -> ComparedNetworks:
        """Return the same of these networks only."""
        chosen = set(labels)
        networks = tuple(network for network in self.networks if network.label in chosen)
        return replace(self, networks=networks)

    def build_networks_table(
        self,
        caption: str,
        columns: Sequence[Column],
        rows: Sequence[NetworkRow],
        *,
        explain_empty_columns: bool = True,
    ) -> Table | None:
        """Return a table in which rows of the same first cell follow each other; with the network
        after that cell if there are several."""
        heads = list(columns)
        cells = [list(values) for _, values in rows]
        if len(self.networks) > 1:
            heads[1:1] = text_columns("network")
            for row, (label, _) in zip(cells, rows, strict=True):
                row.insert(1, label)
        grouped = group_by(cells, lambda row: str(row[0])).values()
        return build_table(
            caption,
            heads,
            chain.from_iterable(grouped),
            explain_empty_columns=explain_empty_columns,
        )


def _find_run_with_epochs(network: Network, preferred_batch: int) -> Run | None:
    """Return the run with epochs, at ``preferred_batch`` if there are several."""
    trained = [
        run
        for run in network.runs
        if any(step.phase in ("epoch", "test") for step in run.report.steps)
    ]
    return min(trained, key=lambda run: run.batch_size != preferred_batch, default=None)


def _is_not_recorded_by_perfctl(run: Run) -> bool:
    """Return whether perfctl did not record the report: its memory is that of a training run, and
    its figures have the digits they have."""
    return run.origin not in ("measured", "recorded")


def _are_all_runs_on_cpu(runs: Sequence[Run]) -> bool:
    return all(run.device_kind in ("cpu", None) for run in runs)


def build_memory_chapter(compared: ComparedNetworks) -> View:
    """Return each quantity of one run of each network: with epochs, otherwise without a profiler,
    otherwise any."""
    chosen = []
    for network in compared.networks:
        trained = _find_run_with_epochs(network, compared.batch)
        run = min(
            (run for run in network.runs if run.report.memory),
            key=lambda run: (
                run is not trained,
                run.batch_size != compared.batch,
                run.profiler != "none",
            ),
            default=None,
        )
        if run is not None:
            chosen.append((network.label, run))
    missing = dict(_list_missing_memory(compared.runs))
    if not chosen:
        return build_study_chapter(missing=missing)
    run = chosen[0][1]
    epochs = sum(step.phase == "epoch" for step in run.report.steps)
    after = f", {epochs} epochs and their tests" if epochs else ""
    text = (
        "Before loading: torch is imported, and there is no model. After loading: no step was "
        f"measured yet. At the end: after the measured steps{after}, at batch {run.batch_size}."
    )
    recorded = {(item.moment, item.quantity): item.bytes for item in run.report.memory}
    findings = [
        f"{name}: {format_bytes(recorded['before', quantity])} after loading, "
        f"{format_bytes(recorded['after', quantity])} at the end."
        for quantity, name in (
            ("reserved", "GPU memory reserved"),
            ("host_resident", "CPU memory of the process"),
        )
        if {("before", quantity), ("after", quantity)} <= recorded.keys()
    ]
    return build_study_chapter(
        () if _is_not_recorded_by_perfctl(run) else (text,),
        tables=(
            _build_memory_table(compared.select_networks(label for label, _ in chosen), chosen),
        ),
        findings=findings[:1],
        missing=missing,
    )


def _build_memory_table(
    compared: ComparedNetworks, chosen: Sequence[tuple[str, Run]]
) -> Table | None:
    recorded = {item.moment for _, run in chosen for item in run.report.memory}
    texts = {name: text for name, text in MOMENTS.items() if name in recorded}
    if all(_is_not_recorded_by_perfctl(run) for _, run in chosen):
        texts |= {name: f"{name} the training" for name in ("before", "after") if name in recorded}
    heads = [*text_columns("memory"), *(size_column(text) for text in texts.values())]
    rows = []
    for label, run in chosen:
        for quantity, stated in _read_published_memory(run).items():
            values = map(stated.get, texts)
            cells = (optional_text_cell(value, "not stated") for value in values)
            rows.append((label, [f"{QUANTITIES[quantity]}, as published", *cells]))
    for label, run in chosen:
        figures: dict[str, dict[str, int]] = defaultdict(dict)
        for item in run.report.memory:
            figures[item.quantity][item.moment] = item.bytes
        for quantity, of_quantity in figures.items():
            sizes = map(_build_bytes_and_mib_cell, map(of_quantity.get, texts))
            rows.append((label, [QUANTITIES.get(quantity, quantity), *sizes]))
    return compared.build_networks_table("Memory of one run, by time", heads, rows)


def _read_published_memory(run: Run) -> dict[str, dict[str, str]]:
    """Return quantity -> when -> the published figure, if it is too coarse for bytes:
    "0.62 GB"."""
    stated: dict[str, dict[str, str]] = {}
    for item in run.report.summaries:
        if match := _STATED.fullmatch(item.name):
            value = "" if item.value is None else f"{item.value:.2f} {item.unit or ''}".rstrip()
            if text := item.text or value:
                stated.setdefault(match[1], {})[match[2]] = text
    return stated


def _build_bytes_and_mib_cell(value: int | None) -> Cell:
    """Return "40.4 GB (38,554 MiB)": nvidia-smi prints MiB."""
    if value is None:
        return missing_cell("the run did not record it at this time")
    mib = value / 2**20
    text = f"{format_bytes(value)} ({mib:,.{0 if mib >= 100 else 1}f} MiB)"
    return Cell(text, format_integer_or_six_digits(value, "B"), value=value)


def _list_missing_memory(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    recorded = {item.quantity for run in runs for item in run.report.memory}
    recorded |= {quantity for run in runs for quantity in _read_published_memory(run)}
    if not recorded & {"device_free", "device_total", "allocated", "reserved"}:
        reason = "the run used no GPU" if _are_all_runs_on_cpu(runs) else "the runs recorded none"
        yield "GPU memory", reason
    elif not recorded & {"allocated", "reserved"}:
        reason = "the runs recorded what is free on the GPU only"
        yield "GPU memory allocated and reserved by torch", reason
    if not recorded & {"host_available", "host_resident"}:
        yield (
            "CPU memory",
            _find_missing_value_reason(runs, "memory.host_available") or "the runs recorded none",
        )


def _find_missing_value_reason(runs: Sequence[Run], quantity: str) -> str | None:
    """Return why a run has none of it, in its own words."""
    gaps = (gap for run in runs for gap in run.report.gaps)
    return next((gap.reason for gap in gaps if gap.quantity == quantity), None)


def build_training_chapter(compared: ComparedNetworks) -> View:
    """Return loss, accuracy and time of each epoch and its test; without epochs the loss of the
    steps."""
    several = len(compared.networks) > 1
    trained = [
        (network.label, run)
        for network in compared.networks
        if (run := _find_run_with_epochs(network, compared.batch)) is not None
    ]
    if not trained:
        first_runs = [  # repeats and other profilers see the same losses
            (f"{network.label}, batch {batch}" if several else f"batch {batch}", run)
            for network in compared.networks
            for batch in network.batches
            for run in [next(run for run in network.runs if run.batch_size == batch)]
        ]
        reason = "no run trained complete epochs: a built-in workload does with --epochs"
        losses = draw_loss_by_step(first_runs)
        return build_study_chapter(charts=(losses,), missing={"loss and accuracy by epoch": reason})
    heads = [
        *map(Column, ("epoch", "training loss", "test loss", "test accuracy")),
        time_column("time of the epoch"),
        time_column("time of the test"),
    ]
    rows = []
    findings = []
    data = trained[0][1].report.environment.get("option:data") or ""
    for label, run in trained:
        rows += [(label, cells) for cells in _build_epoch_rows(run)]
        tests = [step for step in run.report.steps if step.phase == "test"]
        last = max(tests, key=lambda step: step.number, default=None)
        if last is not None and last.accuracy is not None:
            lead = f"{label}: " if len(trained) > 1 else ""
            loss = f", loss {last.loss:.4f}" if last.loss is not None else ""
            on = "drawn digits" if data == "synthetic" else "the test data"
            number = _get_1_based_epoch_number(run, last.number)
            after = "" if number is None else f" after {pluralize_count(number, 'epoch')}"
            findings.append(f"{lead}Accuracy {format_percent(last.accuracy)}{loss} on {on}{after}.")
    labelled = [
        (label if len(trained) > 1 else "", run)
        for label, run in trained
        if any(step.phase == "epoch" for step in run.report.steps)
    ]
    reason = (
        "the data were made here, so accuracy is not comparable: use --data mnist --data-dir DIR"
    )
    return build_study_chapter(
        (f"Trained on: {DATA.get(data, data or 'data that the run does not name')}.",),
        draw_loss_and_accuracy_by_epoch(labelled),
        (
            compared.select_networks(label for label, _ in trained).build_networks_table(
                "Epochs", heads, rows
            ),
        ),
        findings=findings,
        missing={"a published data set": reason} if data == "synthetic" else None,
    )


def _get_1_based_epoch_number(run: Run, zero_based_number: int) -> int | None:
    """Return the number of the epoch, from 1; of a test without epochs the number of epochs that
    the report states."""
    if any((step.phase, step.number) == ("epoch", zero_based_number) for step in run.report.steps):
        return zero_based_number + 1
    stated = next((item.value for item in run.report.summaries if item.name == "epochs"), None)
    return None if stated is None else round(stated)


def _build_epoch_rows(run: Run) -> Iterator[list[object]]:
    steps = {(step.phase, step.number): step for step in run.report.steps}
    for number in sorted({number for phase, number in steps if phase in ("epoch", "test")}):
        train, test = steps.get(("epoch", number)), steps.get(("test", number))
        yield [
            count_cell(_get_1_based_epoch_number(run, number), "the report does not state it"),
            four_decimals_cell(train.loss if train else None),
            four_decimals_cell(test.loss if test else None),
            share_cell(test.accuracy if test else None, "no test"),
            train.duration_ns if train else None,
            test.duration_ns if test else None,
        ]


def build_machine_chapter(compared: ComparedNetworks) -> View:
    """Return hosts, devices and software, and how busy they were."""
    runs = compared.runs
    facts: dict[str, dict[str, None]] = defaultdict(dict)
    for run in runs:
        for device in run.devices:
            kind = "GPU" if device.kind == "gpu" else "CPU"
            memory = device.memory_bytes and _build_bytes_and_mib_cell(device.memory_bytes).text
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
    rows = [[name, ", ".join(values)] for name, values in facts.items()]
    usages = {network.label: list(map(RunUsage, network.runs)) for network in compared.networks}
    ways = [usage.utilization_by_source for used in usages.values() for usage in used]
    missing = {}
    if all(way.kernels.value is way.nvml.value is way.dlprof.value is None for way in ways):
        reason = "no run on the GPU was sampled, and none has kernels with start and duration"
        reason = _find_missing_value_reason(runs, "sample.gpu_utilisation") or reason
        missing["GPU utilization"] = "the run used no GPU" if _are_all_runs_on_cpu(runs) else reason

    def build_usage_tables(
        tabulate: Callable[[Sequence[RunUsage]], Table | None],
    ) -> Iterator[Table]:
        for label, used in usages.items():
            if drawn := tabulate(used):
                caption = f"{drawn.caption}, {label}" if len(usages) > 1 else drawn.caption
                yield replace(drawn, caption=caption)

    return build_study_chapter(
        tables=(
            build_table("Host and GPU", text_columns("fact", "value"), rows),
            *build_usage_tables(build_utilization_table),
            build_report_summary_values_table(
                [run for run in runs if _is_not_recorded_by_perfctl(run)]
            ),
        ),
        folded=build_usage_tables(build_device_samples_table),
        missing=missing,
    )


def build_flops_difference_causes_chapter(compared: ComparedNetworks) -> View:
    """Return why executed and estimated FLOPs differ, in full, and what the FLOPs ledger's report
    would find."""
    rows = []
    text = []
    findings: list[str] = []
    for network in compared.networks:
        lead = f"{network.label}: " if len(compared.networks) > 1 else ""
        for analysis in network.analyses:
            of_sweep = [item for item in analysis.judgement.sweep if item.rule != "hand estimate"]
            causes = [("the sweep", cause) for cause in of_sweep]
            causes += [
                (f"{row.name}{row.batch_phrase}", cause)
                for row in analysis.ledger.rows
                if row.layer == compared.layer
                for cause in analysis.judgement.get_row_causes(*row.key).causes
            ]
            for about, cause in causes:
                cells = (about, cause.rule, describe_cause(cause), describe_fix(cause))
                rows.append((network.label, cells))
            findings += map(describe_cause, of_sweep)
            text += [
                f"{lead}{finding.text}"
                for finding in page_findings(analysis)
                if finding.text not in findings
            ]
    heads = text_columns("about", "cause", "explanation", "fix")
    table = compared.build_networks_table("Why executed and estimated FLOPs differ", heads, rows)
    return build_study_chapter(dict.fromkeys(text), tables=(table,), findings=findings)
