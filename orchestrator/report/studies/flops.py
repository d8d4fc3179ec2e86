"""The study of FLOPs against pen and paper: from analysed networks to its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from perfctl.orchestrator.estimate.sheets.slips import explain
from perfctl.orchestrator.ledger.network import LayerPoint, Network
from perfctl.orchestrator.ledger.prepared import device_label, heading
from perfctl.orchestrator.ledger.timing import host_times
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.comparison import (
    clocks_chart,
    flops_chart,
    step_losses,
    training_charts,
)
from perfctl.orchestrator.report.findings import findings as page_findings
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from perfctl.orchestrator.report.numbers import ratio, size
from perfctl.orchestrator.report.page.about import ORIGINS
from perfctl.orchestrator.report.page.study import summaries
from perfctl.orchestrator.report.page.usage import memory_table, readings_table, ways_table
from perfctl.orchestrator.report.studies import flops_tables as tables
from perfctl.orchestrator.report.studies.flops_findings import (
    MORE_IN_LESS,
    SCATTERS,
    FlopsStudy,
    findings,
    remembered,
    scatter_of,
    trained,
)
from perfctl.orchestrator.report.studies.flops_tables import Points
from perfctl.orchestrator.report.studies.records import Chapter, StudyPage
from perfctl.orchestrator.report.tables import Cell, Column, Table, table, text_cell
from perfctl.records.run import Run

COUNTED = "counted FLOPs"
"""Begins the name of the part that ncu runs."""
UNNAMED = {"gpu": "a GPU without a name", "cpu": "a CPU without a name"}
ENVIRONMENT = (
    ("cpu", "CPU"),
    ("cpu_model", "CPU model"),
    ("cpu_capability", "CPU instructions that torch uses"),
    ("cpu_count", "CPU cores"),
    ("threads", "CPU threads of torch"),
    ("os", "operating system"),
    ("python", "Python"),
    ("torch", "torch"),
    ("cuda", "CUDA"),
    ("cudnn", "cuDNN"),
    ("tf32_conv", "TF32 in convolutions"),
    ("cudnn_benchmark", "cuDNN benchmark"),
    ("option:data", "data"),
    ("option:seed", "seed"),
)
OF_PARTS = ("other GPU", MORE_IN_LESS)
"""Verdicts about runs that differ in GPU or in the network."""
PARTS, ALL = "parts of the study", (text_cell("all"),)
ON_GPU = ("cpu", "cuda", "cudnn", "tf32_conv", "cudnn_benchmark")
"""Facts that say something only of runs on a GPU; on a CPU the processor is the device itself."""
DATA = {"synthetic": "drawn digits or random values, not a published data set", "mnist": "MNIST"}


def page(study: FlopsStudy) -> StudyPage:
    """The whole study; charts are drawn here."""
    points = tuple((one, one.points(study.layer)) for one in study.networks)
    training = [
        (one, run) for one in study.networks if (run := trained(one, study.batch)) is not None
    ]
    runs = [run for one in study.networks for run in one.runs]
    first = runs[0]
    origins = [
        ORIGINS.get(name, name)
        for name in dict.fromkeys(run.origin for run in runs)
        if name != "measured"
    ]
    chapters = (
        _network(study),
        _by_hand(study),
        _comparison(study, points),
        _time(study, points),
        _memory(study),
        _training(training),
        _machine(study, runs),
        _verdicts(study),
    )
    return StudyPage(
        kind="flops",
        title=f"FLOPs of {study.layer} in {first.workload}, measured and by hand",
        facts=tuple(_facts(study, runs)),
        findings=tuple(findings(study, points, training)),
        chapters=tuple(one for one in chapters if one is not None),
        missing=tuple(dict.fromkeys(_missing(study, points, training, runs))),
        origin="; ".join(origins) or None,
        command=study.command,
        links=study.links,
    )


def draw(networks: Sequence[Network]) -> None:
    """Draw the charts of the study alone, of the layer with most multiply-adds; ``files.drawn``
    collects them."""
    layer = networks[0].main_layer()
    if layer is None:
        return
    points = _labels(tuple((one, one.points(layer)) for one in networks))
    flops_chart(layer, points)
    clocks_chart(layer, points)
    runs = [(one, run) for one in networks if (run := trained(one, one.batches[-1])) is not None]
    tuple(training_charts([(one.label if len(runs) > 1 else "", run) for one, run in runs]))
    if not runs:  # no epochs were trained
        step_losses(
            "training-loss", [run for one in networks for run in _by_batch(one, len(networks) > 1)]
        )


def _by_batch(one: Network, named: bool) -> Iterator[tuple[str, Run]]:
    """One run of each batch size with its name in a chart: repeats and other profilers see the
    same losses."""
    for batch in one.batches:
        label = f"{one.label}, batch {batch}" if named else f"batch {batch}"
        yield label, next(run for run in one.runs if run.batch_size == batch)


def _facts(study: FlopsStudy, runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    studied = next(item for one in study.networks for item in one.analyses).study
    yield "network", heading(studied)
    if len(study.networks) > 1:
        yield "compared", " with ".join(one.label for one in study.networks)
    devices = dict.fromkeys(filter(None, map(device_label, runs)))
    yield "device", ", ".join(UNNAMED.get(name, name) for name in devices) or "not recorded"
    batches = dict.fromkeys(size for one in study.networks for size in one.batches)
    yield "batch sizes", ", ".join(map(str, sorted(batches)))
    yield "measured by", ", ".join(dict.fromkeys(name for run in runs for name in _tools(run)))
    data = dict.fromkeys(run.report.environment.get("option:data", "") for run in runs)
    said = [f"{name} ({DATA[name]})" if name in DATA else name for name in data if name]
    if said:
        yield "data", ", ".join(said)
    day = min((run.started_at for run in runs if run.started_at), default="")[:10]
    if day:
        yield "date", day


def _tools(run: Run) -> Iterator[str]:
    """What measured: the profiler, and the clock where a run says which."""
    if run.profiler != "none":
        yield {"torch": "the PyTorch profiler"}.get(run.profiler, run.profiler)
    elif run.report.layer_times:
        yield "a synchronised clock"
    elif any(step.duration_ns is not None for step in run.report.steps):
        yield "a clock without a profiler"
    if any(host_times((run,))):
        yield "the host's clock, which waited for nothing"


def _labels(points: Points) -> list[tuple[str, Sequence[LayerPoint]]]:
    """Names for charts: without the words that all begin with."""
    words = [one.label.split() for one, _ in points]
    same = (
        len(points) > 1
        and len({tuple(each[:1]) for each in words}) == 1
        and all(each[1:] for each in words)
    )
    shown = [" ".join(each[1:]) if same else " ".join(each) for each in words]
    return [
        (name if len(points) > 1 else "", found)
        for name, (_, found) in zip(shown, points, strict=True)
    ]


def _kept(*found: Table | None) -> tuple[Table, ...]:
    return tuple(one for one in found if one is not None)


def _charts(*found: Chart | None) -> tuple[Chart, ...]:
    return tuple(one for one in found if one is not None)


def _network(study: FlopsStudy) -> Chapter | None:
    shown = _kept(tables.parameters(study.networks, study.batch))
    said = [
        f"{one.label}: {one.network_sheet(study.batch).total.parameters:,} parameters."
        for one in study.networks
    ]
    return Chapter("network", "The network", tuple(said), tables=shown) if shown else None


def _by_hand(study: FlopsStudy) -> Chapter | None:
    layer, batch, networks = study.layer, study.batch, study.networks
    text = [
        (
            "One multiply-add (MAC) is 2 FLOPs. Operations, values and bytes are different "
            "quantities: each has its column."
        )
    ]
    text += [explain(one.finding, one.layer) for one in study.hand]
    shown = _kept(
        tables.hand_values(study.hand, len(networks) > 1) if study.hand else None,
        tables.quantities(networks, layer, batch),
        *(tables.worked(one, layer, batch, len(networks) > 1) for one in networks),
        tables.layers_on_paper(networks, batch),
    )
    return Chapter("hand", "By hand", tuple(text), tables=shown) if shown else None


def _comparison(study: FlopsStudy, points: Points) -> Chapter:
    layer = study.layer
    text = [
        (
            f"FLOPs of the forward pass of {layer}. Paper follows from the shapes and grows with "
            "the batch."
        )
    ]
    reasons = [
        point.counted.reason
        for _, found in points
        for point in found
        if point.counted.value is None
    ]
    text += [
        f"Counted: not available. Reason: {reason}."
        for reason in dict.fromkeys(filter(None, reasons))
    ]
    names = dict.fromkeys(
        name for _, found in points for point in found for name in point.loose.names
    )
    if names:
        text.append(
            f"Some kernels belong to no layer. What was collected of them: {', '.join(names)}. "
            "Derived: all their instructions, from kernel name and shapes."
        )
    drawn = flops_chart(layer, _labels(points))
    return Chapter(
        "comparison",
        "Paper against the hardware",
        tuple(text),
        _charts(drawn),
        _kept(tables.comparison(points, layer)),
        _kept(tables.every_row(study.networks)),
    )


def _time(study: FlopsStudy, points: Points) -> Chapter | None:
    shown = _kept(
        tables.clocks(points, study.layer),
        tables.step_clocks(points),
        tables.host_clock(points, study.layer),
    )
    if not shown:
        return None
    bases = dict.fromkeys(
        found.basis
        for _, of in points
        for point in of
        for found in (point.forward, point.step)
        if found.basis
    )
    both = [one for _, found in points for point in found for one in (point.forward, point.step)]
    text = (
        ["Clock: it waits until the device is idle, and no profiler runs."]
        if any(one.synchronised for one in both)
        else []
    )
    text += [f"Profiler: {'; '.join(bases)}."] if bases else []
    if (scatter := scatter_of(points)) >= SCATTERS:
        text.append(
            f"Within one run the slowest step takes x {ratio(scatter)} the fastest: other work ran "
            "on this machine. Do not compare these times with each other."
        )
    if any(point.host for _, found in points for point in found):
        text.append(
            "A host clock that waits for nothing sees the launch of a kernel, not the kernel."
        )
    drawn = clocks_chart(study.layer, _labels(points))
    return Chapter(
        "time", f"Time of {study.layer}, by two clocks", tuple(text), _charts(drawn), shown
    )


def _memory(study: FlopsStudy) -> Chapter | None:
    chosen = [
        (one, run) for one in study.networks if (run := remembered(one, study.batch)) is not None
    ]
    if not chosen:
        return None
    _, run = chosen[0]
    ends = sum(step.phase == "epoch" for step in run.report.steps)
    last = (
        f"after the measured steps, {ends} epochs and their tests"
        if ends > 1
        else "after the measured steps, one epoch and its test"
        if ends
        else "after the measured steps"
    )
    loaded = "After loading: the model is on its device, and no step has run."
    if any(item.moment == "start" for item in run.report.memory):
        loaded = f"Before loading: torch is imported, and there is no model. {loaded}"
    elif run.mode is None:
        loaded = "After loading: before the first measured step of the program."
    text = [f"{loaded} At the end: {last}, at batch {run.batch_size}."]
    if tables.as_stated(run):
        text = ["Before and after the training, as the report states them."]
    text += [f"{what}: {why}." for what, why in _memory_gaps(run)]
    every = tuple(_by_network(study, lambda used: memory_table([one.run for one in used])))
    return Chapter(
        "memory", "Memory", tuple(text), tables=_kept(tables.memory(chosen)), folded=every
    )


def _memory_gaps(run: Run) -> Iterator[tuple[str, str]]:
    """(quantity, why the report has none of it), of a report that was made elsewhere."""
    if tables.as_stated(run):
        for quantity, what in (
            ("host_available", "CPU memory"),
            ("allocated", "Allocated and reserved, in bytes"),
        ):
            reason = next(
                (gap.reason for gap in run.report.gaps if gap.quantity == f"memory.{quantity}"),
                None,
            )
            if reason:
                yield what, reason


def _training(chosen: Sequence[tuple[Network, Run]]) -> Chapter | None:
    if not chosen:
        return None
    data = chosen[0][1].report.environment.get("option:data")
    text = [f"Trained on: {DATA.get(data or '', data or 'data that the run does not name')}."]
    named = [
        (one.label if len(chosen) > 1 else "", run)
        for one, run in chosen
        if any(step.phase == "epoch" for step in run.report.steps)
    ]
    return Chapter(
        "training",
        "Training",
        tuple(text),
        tuple(training_charts(named)),
        _kept(tables.epochs(chosen)),
    )


def _by_network(
    study: FlopsStudy, made: Callable[[Sequence[RunUsage]], Table | None]
) -> Iterator[Table]:
    """One table a network, whose name is in the caption where there are several."""
    for one in study.networks:
        found = made([RunUsage(run) for run in one.runs])
        if found is not None:
            of = f", {one.label}" if len(study.networks) > 1 else ""
            yield replace(found, caption=f"{found.caption}{of}")


def _of_run(run: Run) -> Iterator[tuple[str, str | None]]:
    """(fact, value) of a run's machine and software."""
    for device in run.devices:
        gpu = device.kind == "gpu"
        yield "GPU" if gpu else "processor", device.name or "not named"
        if device.memory_bytes:
            mib = f"{device.memory_bytes / 2**20:,.0f} MiB"
            yield "GPU memory" if gpu else "CPU memory", f"{size(device.memory_bytes)} ({mib})"
        yield "compute capability", device.compute_capability
        yield "multiprocessors", str(device.sm_count) if device.sm_count else None
        yield "driver", device.driver_version
    if run.origin == "measured":  # of a report made elsewhere it is the machine that read it
        yield "host", run.host
    on_cpu = run.device_kind == "cpu"
    for key, what in ENVIRONMENT:
        if not (key in ON_GPU and on_cpu):
            yield what, run.report.environment.get(key)


def _machine(study: FlopsStudy, runs: Sequence[Run]) -> Chapter | None:
    facts: dict[str, dict[str, None]] = {}
    for run in runs:
        for what, value in _of_run(run):
            if value:
                facts.setdefault(what, {})[value] = None
    rows = [[text_cell(what), text_cell(", ".join(values))] for what, values in facts.items()]
    shown = table(
        "Host and GPU",
        [Column("fact", style="text"), Column("value", style="text")],
        rows,
        tools=False,
    )
    reported = [run for run in runs if run.origin not in ("measured", "recorded")]
    many = [what for what in ("GPU", "GPU memory", "processor") if len(facts.get(what, ())) > 1]
    text = (
        [f"The runs differ in: {', '.join(many)}. Their times must not be compared."]
        if many
        else []
    )
    return Chapter(
        "machine",
        "Host, GPU and utilisation",
        tuple(text),
        tables=_kept(shown, *_by_network(study, ways_table), summaries(reported)),
        folded=tuple(_by_network(study, readings_table)),
    )


def _verdicts(study: FlopsStudy) -> Chapter | None:
    """Why counted and paper differ, in full, and what the ledger's page would find."""
    heads = [
        *([Column("network", style="text")] if len(study.networks) > 1 else []),
        Column("about", style="text"),
        Column("reason", style="text"),
        Column("verdict", style="text"),
        Column("what to do", style="text"),
    ]
    rows: list[list[Cell]] = []
    text: list[str] = []
    for one in study.networks:
        named = [text_cell(one.label)] if len(study.networks) > 1 else []
        lead = f"{one.label}: " if len(study.networks) > 1 else ""
        for found in one.analyses:
            whole = [
                (PARTS if item.rule in OF_PARTS else "the sweep", item)
                for item in found.judgement.sweep
                if item.rule != "hand estimate"
            ]
            mine = [
                (f"{row.name}{row.at}", item)
                for row in found.ledger.rows
                if row.layer == study.layer
                for item in found.judgement.at(row.batch, row.layer, row.direction).causes
            ]
            rows += [
                [
                    *(ALL[: len(named)] if about == PARTS else named),
                    text_cell(about),
                    *map(text_cell, (item.rule, describe_cause(item), describe_fix(item))),
                ]
                for about, item in (*whole, *mine)
            ]
            said = {describe_cause(cause) for cause in found.judgement.sweep}
            text += [f"{lead}{item.text}" for item in page_findings(found) if item.text not in said]
    shown = table("Why counted and paper differ", heads, rows, tools=False)
    told = tuple(dict.fromkeys(text))
    return Chapter("verdicts", "Verdicts", told, tables=_kept(shown)) if told or shown else None


def _missing(
    study: FlopsStudy, points: Points, training: Sequence[tuple[Network, Run]], runs: Sequence[Run]
) -> Iterator[tuple[str, str]]:
    yield from ((what, why) for what, why in study.failed if not what.startswith(COUNTED))
    known = [point for _, found in points for point in found]
    for what, counts, todo in (
        (
            "counted",
            [point.counted for point in known],
            "Run the same command on a machine with an NVIDIA GPU and ncu",
        ),
        (
            "derived",
            [point.derived for point in known],
            "They need the kernels of a GPU, from torch, nsys or ncu",
        ),
    ):
        if counts and all(figure.value is None for figure in counts):
            yield f"{what} FLOPs of {study.layer}", f"{counts[0].reason or 'not collected'}. {todo}"
    if not any(point.forward.synchronised for point in known):
        yield (
            f"time of {study.layer} by a synchronised clock",
            "no run timed its layers with one: those of built-in workloads do",
        )
    if not any(point.forward.profiled for point in known):
        yield (
            f"time of {study.layer} under a profiler",
            "no trusted report times it: nsys and the PyTorch profiler do",
        )
    if not training:
        yield (
            "loss and accuracy",
            "no run trained whole epochs: a built-in workload does with --epochs",
        )
    figures = {item.quantity for run in runs for item in run.report.memory}
    stated = {quantity for run in runs for quantity, _, _ in tables.stated_memory(run)}
    cpu = all(run.device_kind in ("cpu", None) for run in runs)
    if not figures & {"device_free", "device_total", "allocated", "reserved"} | stated:
        yield "GPU memory", "the run used no GPU" if cpu else "the runs recorded none"
    elif not figures & {"allocated", "reserved"} | stated:
        yield (
            "GPU memory allocated and reserved by torch",
            "the runs recorded what is free on the GPU only",
        )
    if not figures & {"host_available", "host_resident"}:
        yield "CPU memory", _gap(runs, "memory.host_available") or "the runs recorded none"
    usages = [RunUsage(run).ways for run in runs]
    if all(
        way.kernels.value is None and way.nvml.value is None and way.dlprof.value is None
        for way in usages
    ):
        none = "no run on the GPU was sampled, and none has kernels with start and length"
        yield (
            "GPU utilisation",
            "the run used no GPU" if cpu else _gap(runs, "sample.gpu_utilisation") or none,
        )
    if training and training[0][1].report.environment.get("option:data") == "synthetic":
        yield (
            "a published data set",
            (
                "the data were made here, so accuracy is not comparable: use --data mnist "
                "--data-dir DIR"
            ),
        )


def _gap(runs: Sequence[Run], quantity: str) -> str | None:
    """Why a run has none of it, in its own words."""
    return next(
        (gap.reason for run in runs for gap in run.report.gaps if gap.quantity == quantity), None
    )
