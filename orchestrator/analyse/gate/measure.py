"""What a gate holds of a model on paper, of recorded runs, and of machine code. FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from perfctl.orchestrator.analyse.compare.pairing import FACTS, repeats
from perfctl.orchestrator.analyse.compare.rows import UNATTRIBUTED, flops, times
from perfctl.orchestrator.analyse.derived.code.records import Static
from perfctl.orchestrator.analyse.flops.engine import BACKWARD, fused_only
from perfctl.orchestrator.analyse.gate.records import TIME, Measured, Place, Value
from perfctl.orchestrator.analyse.ledger.ledger import algorithm, kernel_uses
from perfctl.orchestrator.analyse.ledger.prepared import PreparedRun, parted, with_whole_backward
from perfctl.orchestrator.analyse.ledger.studies import Study, heading, studies
from perfctl.orchestrator.analyse.ledger.sweep import memory_figures
from perfctl.orchestrator.analyse.ledger.timing import preference
from perfctl.orchestrator.analyse.memory.estimate import Estimate
from perfctl.records.compiled import CompiledStep
from perfctl.records.run import Run

Found = dict[Place, dict[str, Value]]


def of_model(estimates: Mapping[int, Estimate], compiled: Mapping[int, CompiledStep] | None = None) -> Measured:
    """Batch size -> one step on paper: the whole, then each layer by direction in the network's order.

    compiled: batch size -> what torch.compile makes of the step.
    """
    places: Found = {}
    unknown: dict[str, str] = {}
    for batch, found in estimates.items():
        whole = places.setdefault(Place(batch=batch), {"parameters": found.parameters})
        for direction, totals in (("forward", found.forward), ("backward", found.backward)):
            if totals.unknown:
                names = ", ".join(dict.fromkeys(name for name, _ in totals.unknown))
                unknown[f"batch {batch}, FLOPs of {direction}"] = f"no formula for {names}: only what is known is held"
        if found.memory is not None:
            whole["memory_peak"] = found.memory.rounded_peak
        for op in found.ops:
            _add(places, Place(batch=batch, direction=op.direction), "operations", op.calls)
        casts = found.casts
        whole["cast_bytes"] = casts.read_bytes + casts.write_bytes
        for call in found.calls:
            if fused_only(call):
                continue
            direction = "backward" if call.direction in BACKWARD else call.direction
            figures = {
                "flops": call.flops, "elementwise_flops": call.elementwise_flops,
                "bytes": None if None in (call.read_bytes, call.write_bytes) else
                (call.read_bytes or 0) + (call.write_bytes or 0),
            }  # fmt: skip
            for quantity, value in figures.items():
                if value is None:
                    continue
                _add(places, Place(batch=batch, direction=direction), quantity, value)
                if value:
                    _add(
                        places, Place(batch=batch, layer=call.layer or "(model)", direction=direction), quantity, value
                    )
    return Measured(places, unknown, _of_compiled(compiled or {}, places, unknown))


def _of_compiled(
    steps: Mapping[int, CompiledStep], places: Found, unknown: dict[str, str]
) -> dict[str, dict[str, str]]:
    """Graph breaks, and what Inductor makes of the graphs; gives the facts beside them: versions, and why graphs break."""
    environment: dict[str, dict[str, str]] = {}
    for batch, step in steps.items():
        whole = Place(batch=batch)
        why = step.problem or "the step stopped"
        if step.broke:
            unknown[f"{whole.name}: graph_breaks"] = why
        else:
            places.setdefault(whole, {})["graph_breaks"] = sum(times for _, times in step.breaks)
        environment[f"batch {batch}"] = {
            "torch": step.torch, "graph breaks": "; ".join(reason for reason, _ in step.breaks) or "none",
        }  # fmt: skip
        for graph in step.graphs or ():
            at = Place(batch=batch, direction=graph.direction)
            _add(places, at, "compiled_operations", graph.operations)
            _add(places, at, "compiled_kernels", graph.kernels)
            _add(places, at, "library_calls", graph.library_calls)
        if step.graphs is None:
            unknown[f"{whole.name}: kernels of Inductor"] = why
    return environment


def _add(places: Found, place: Place, quantity: str, value: int) -> None:
    mine = places.setdefault(place, {})
    before = mine.get(quantity, 0)
    assert isinstance(before, int)
    mine[quantity] = before + value


def of_runs(runs: Sequence[Run]) -> Measured:
    """The newest sweep of each study and batch size; its repeats give the spread of times, and show which counts are exact."""
    places: Found = {}
    unknown: dict[str, str] = {}
    environment: dict[str, dict[str, str]] = {}
    for study in studies(runs):
        name = heading(study)
        for batch in study.batches or (None,):
            found = repeats(run for run in study.runs if run.batch_size == batch)
            for profiler in sorted(found, key=preference):
                _take(Place(name, batch), [*found[profiler]], places, unknown)
        environment[name] = _environment(study)
    return Measured(places, unknown, environment)


def _environment(study: Study) -> dict[str, str]:
    whole = [run for run in study.runs if run.status == "ok"]
    facts = {
        fact.name: ", ".join(sorted({said for run in whole if (said := fact.read(run)) is not None}))
        for fact in FACTS
        if fact.name not in ("workload", "batch", "host", "origin")
    }
    profilers = ", ".join(sorted({run.profiler for run in whole}))
    return {name: said for name, said in facts.items() if said} | {"profilers": profilers}


def _take(at: Place, runs: Sequence[Run], places: Found, unknown: dict[str, str]) -> None:
    """Quantities of one profiler's repeats that no profiler before it gave; counts only where all repeats agree."""
    prepared = with_whole_backward([parted(PreparedRun(run)) for run in runs])
    each = [dict(_counts(at, item, unknown)) for item in prepared]
    for key in dict.fromkeys(key for found in each for key in found):
        place, quantity = key
        values = [found[key] for found in each if key in found]
        if quantity in places.get(place, {}):
            continue
        if len(values) < len(each) or any(value != values[0] for value in values):
            unknown[f"{place.name}: {quantity}"] = "it is not the same in all repeats, so it is not exact"
            continue
        places.setdefault(place, {})[quantity] = values[0]
    clocks: dict[Place, list[float]] = defaultdict(list)
    for item in prepared:
        for what, seen in times(item).items():
            if what.quantity != "time" or what.level == "kernel" or not seen.trusted:
                continue
            if what.level == "step" and what.what != "step":
                continue
            clocks[at._replace(layer=what.layer, direction=what.direction)].append(statistics.median(seen.values))
    for place, several in clocks.items():
        if TIME not in places.get(place, {}) and len(several) == len(prepared):
            places.setdefault(place, {})[TIME] = tuple(several)


def _counts(at: Place, item: PreparedRun, unknown: dict[str, str]) -> Iterator[tuple[tuple[Place, str], Value]]:
    run = item.run
    for key, seen in flops(item).items() if run.report.counters else ():
        place = at._replace(layer=key.layer, direction=key.direction)
        if seen.note is not None and "lower bound" in seen.note:
            unknown[f"{place.name}: counted_flops"] = seen.note
        else:
            yield (place, "counted_flops"), seen.values[0]
    if run.report.kernels and item.steps:
        yield (at, "launches"), len({kernel.launch for kernel, _ in item.launches}) / item.steps
        for (layer, direction), uses in kernel_uses(item).items():
            place = at._replace(layer=layer or UNATTRIBUTED, direction=direction)
            yield (place, "launches"), sum(use.per_step for use in uses)
            yield (place, "kernels"), {use.name: use.per_step for use in sorted(uses, key=lambda use: use.name)}
            ways = sorted({said for use in uses if (said := algorithm(use.name)) is not None})
            if ways:
                yield (place, "algorithm"), "; ".join(ways)
        rest = [kernel for kernel, where in item.launches if where is None]
        if rest:
            names: dict[str, float] = defaultdict(float)
            for kernel in rest:
                names[kernel.name] += 1 / item.steps
            yield (at._replace(layer=UNATTRIBUTED), "kernels"), dict(sorted(names.items()))
    if run.report.counters and item.steps:
        for where, work in item.work_by_key.items():
            if work.dram.value is not None and work.dram.state == "counted" and not work.dram.lower_bound:
                layer, direction = where or (UNATTRIBUTED, "")
                yield (at._replace(layer=layer, direction=direction), "dram_bytes"), work.dram.value
    if (allocated := memory_figures(run).get("peak allocated")) is not None:
        yield (at, "allocated"), allocated


def of_code(kernels: Iterable[Static]) -> Measured:
    """What stands in the code of each kernel, by name and architecture: registers, shared and local memory, instructions by
    kind, and FLOPs of a thread block where the code states its size. Kernels of one name that differ are not held."""
    named: dict[Place, list[Static]] = defaultdict(list)
    for one in kernels:
        named[Place(kernel=f"{one.listed.name} (sm_{one.listed.kernel.arch})")].append(one)
    places: Found = {}
    unknown: dict[str, str] = {}
    for place, several in named.items():
        found = [_of_kernel(one) for one in several]
        if any(one != found[0] for one in found):
            unknown[place.name] = (
                f"{len(found)} kernels have this name, and differ: name the file or folder of one of them"
            )
            continue
        places[place] = {quantity: value for quantity, value in found[0].items() if value is not None}
        for quantity, value in found[0].items():
            if value is None:
                unknown[f"{place.name}: {quantity}"] = several[0].why or "the code does not say"
    return Measured(places, unknown)


def _of_kernel(one: Static) -> dict[str, Value | None]:
    """Quantity -> value; None where it is not known. FLOPs only of a kernel that states its block."""
    code = one.listed.kernel
    found: dict[str, Value | None] = {
        "registers": code.registers,
        "shared_bytes": code.shared_bytes + (one.listed.dynamic_shared_bytes or 0),
        "spill_bytes": code.stack_bytes,
        "local_instructions": one.local_instructions,
        "instructions": one.instructions,
    }
    return found if code.block is None else {**found, "flops": one.flops}
