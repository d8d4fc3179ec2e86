"""What each command prints with ``--json``, as JSON Schema. Units stand in the names of keys or in
descriptions.

Columns of the store and of the ledger are described where they always are: in the migrations and in
``ledger.csv``.
"""

from __future__ import annotations

from collections.abc import Callable

from perfctl.orchestrator.actions.schemas import VERSIONS, measured, name_of
from perfctl.orchestrator.actions.schemas.answer import ANSWER
from perfctl.orchestrator.actions.schemas.shapes import (
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    Schema,
    array,
    closed,
    fields_of,
    mapping,
    maybe,
    members,
    record,
    said,
)
from perfctl.orchestrator.errors import UsageError
from perfctl.records.paper import LayerCall

FLOPS = "FLOPs count 1 multiply-add as 2. null is not known, never 0."
_SIZES = "batch size -> its figures"

_KINDS = {"INTEGER": WHOLE, "REAL": NUMBER, "NUMERIC": NUMBER, "TEXT": TEXT}

_TRUTHS = ("paper_is_lower_bound", "counted_is_lower_bound", "clock_trusted")
_STUDY = ("workload", "variant", "mode", "precision", "device")

_MODEL = {"model": said(TEXT, "as it was named")}

_PATH = said(TEXT, "what was written")


def schema_of(output: str) -> Schema:
    """The JSON Schema of one of ``VERSIONS``. Raises UsageError for another name."""
    if output not in VERSIONS:
        raise UsageError(
            f"`output`: there is no schema '{output}'", f"There are {', '.join(VERSIONS)}"
        )
    found = _MADE[output]()
    if found["type"] == "object":
        name = said({"const": name_of(output)}, "version of this shape")
        found = {
            **found,
            "properties": {"schema": name, **found["properties"]},
            "required": ["schema", *found["required"]],
        }
    about = " ".join(filter(None, (found.get("description"), FLOPS)))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{name_of(output).replace('/', ':')}",
        "title": f"perfctl {output.replace('-', ', ')} --json, version {VERSIONS[output]}",
        **found,
        "description": about,
    }


def _runs() -> Schema:
    from perfctl.orchestrator.store import query

    columns: dict[str, Schema] = {}
    for column, kind in query.columns_of("run"):
        unit = f" ({column.unit})" if column.unit != "-" else ""
        one = said(_KINDS[kind], f"{column.meaning}{unit}")
        columns[column.name] = one if column.null == "never" else maybe(one, column.null)
    counts = {
        name: maybe(said(WHOLE, f"rows of {name}"), "not collected")
        for name in ("kernels", "ranges", "copies", "operations")
    }
    more = {
        "sweep_name": TEXT,
        "device_name": maybe(TEXT),
        **counts,
        "counters": said(WHOLE, "values of counters"),
        "serving": maybe(
            said(TEXT, "phases of text generation and their tokens"), "no step of it is known"
        ),
    }
    return array(closed(columns | more), "One object a run, oldest first.")


def _show() -> Schema:
    from perfctl.orchestrator.report.ledger.rows import BULK, FACTS, SMALL
    from perfctl.records.report import Device, Report
    from perfctl.records.run import Run

    run, report = fields_of(Run), fields_of(Report)
    return closed(
        {
            **{name: run[name] for name in FACTS},
            "form": said(TEXT, "the format that was recognised"),
            "devices": array(record(Device)),
            "environment": mapping(maybe(TEXT), "fact of the software -> its value"),
            "ledger": array(_ledger_row()),
            "energy": array(
                _energy(), "one object a GPU whose power was read; one with a reason where none was"
            ),
            "layer_calls": array(record(LayerCall)),
            **{name: report[name] for name in (*SMALL, *BULK)},
        },
        "Everything that one run holds, in the units of the store.",
    )


def _energy() -> Schema:
    number = maybe(NUMBER)
    error = said(
        number,
        "0..1: by how much the joules may be off because power was read now and then; without the "
        "sensor's accuracy",
    )
    shared = said(NUMBER, "the step's joules by time, shared and not measured")
    layer = closed({"layer": TEXT, "direction": TEXT, "joules_per_step_shared": shared})
    return closed(
        {
            "device_index": maybe(WHOLE, "the samples do not say"),
            "joules": said(number, "over span_ns; null: see reason"),
            "span_ns": maybe(WHOLE),
            "mean_watts": number,
            "source": maybe(TEXT),
            "sampling_error": error,
            "period_ns": said(maybe(WHOLE), "median time between readings"),
            "readings": WHOLE,
            "steps": maybe(WHOLE, "no step was marked"),
            "joules_per_step": said(number, "mean of all steps; null: see step_reason"),
            "joules_per_sample": number,
            "joules_per_token": said(number, "null: see token_reason"),
            "energy_delay_js": said(number, "joules of a step times its mean time in s"),
            "reason": maybe(TEXT),
            "step_reason": maybe(TEXT),
            "token_reason": maybe(TEXT),
            "layers": array(layer),
        }
    )


def _source() -> Schema:
    from perfctl.records.report import SourceLine

    return array(record(SourceLine), "One object a source line with counters.")


def _ledger_row() -> Schema:
    from perfctl.orchestrator.analyse.ledger.ledger import KernelUse
    from perfctl.orchestrator.analyse.verdicts.rule import Verdict
    from perfctl.orchestrator.report.ledger.rows import column_facts

    kinds = {
        "verdicts": array(record(Verdict)),
        "kernels": array(record(KernelUse)),
        "batch": maybe(WHOLE),
    }
    kinds |= {name: maybe(TRUTH) for name in _TRUTHS}
    columns: dict[str, Schema] = {}
    for name, (unit, meaning) in column_facts().items():
        kind = kinds.get(name) or maybe(TEXT if unit == "-" else NUMBER)
        columns[name] = said(kind, f"{meaning} ({unit})" if unit != "-" else meaning)
    return closed(columns)


def _ledger() -> Schema:
    from perfctl.orchestrator.analyse.verdicts.rule import Verdict

    about = {name: maybe(TEXT) for name in _STUDY}
    return closed(
        {
            "rows": array(
                _ledger_row(),
                "One object a layer, direction and batch size; then what no layer explains.",
            ),
            "sweep": array(
                closed({**about, **fields_of(Verdict)}), "Verdicts about a sweep as a whole."
            ),
            "jobs": array(_job(), "One object a job of several ranks that came in together."),
            "phases": array(
                _phase_row(),
                "Of a language model's traces: one object a phase and part of the model.",
            ),
            "passes": array(
                _pass_row(),
                "Of traces of training: one object a pass (forward, backward for the input, for "
                "the weights).",
            ),
        }
    )


def _job() -> Schema:
    from perfctl.orchestrator.analyse.usage.exchange import (
        Bubble,
        Exchange,
        JobTalk,
        Late,
        LayerTalk,
        StepTalk,
    )
    from perfctl.orchestrator.analyse.usage.ranks import RankUse

    rank = {name: schema for name, schema in fields_of(RankUse).items() if name != "run"}
    told = fields_of(JobTalk)
    return closed(
        {
            "world_size": maybe(WHOLE, "not stated"),
            "ranks": array(
                closed(
                    {
                        "run": WHOLE,
                        **rank,
                        "overlap": maybe(
                            said(
                                NUMBER, "share of the collectives' time that compute kernels cover"
                            ),
                            "no collectives",
                        ),
                        "clock_error_ns": maybe(
                            said(NUMBER, "of offset_ns"), "fewer than 3 collectives align the clock"
                        ),
                    }
                ),
                "Times in ns.",
            ),
            "layers": array(
                record(LayerTalk), "Exposed communication by collective and layer, the most first."
            ),
            "steps": array(
                record(
                    StepTalk,
                    imbalance=maybe(
                        said(NUMBER, "most compute over mean compute of the ranks"), "no compute"
                    ),
                )
            ),
            "late": array(record(Late), "What ranks cost by coming last."),
            "bubbles": array(
                record(Bubble), "Of a pipeline; empty where no rank sends to one other rank."
            ),
            "collectives": array(record(Exchange), "Those that all ranks have, one for one."),
            **{name: told[name] for name in ("link", "link_peak", "link_reason")},
            "findings": array(TEXT, "What stands out, and what to do."),
        }
    )


def _phase_row() -> Schema:
    from perfctl.orchestrator.analyse.usage.served import PHASES

    return closed(
        {
            "run": WHOLE,
            "phase": said({"type": "string", "enum": list(PHASES)}, "of the steps"),
            "steps": said(WHOLE, "of the phase"),
            "tokens": said(maybe(WHOLE), "that all its steps computed"),
            "inferred": said(
                TRUTH, "true: no annotation names the steps, their phase follows from shapes"
            ),
            "cache_read_bytes": said(
                maybe(WHOLE), "keys and values that the steps of the phase read, of all blocks (B)"
            ),
            "cache_why": said(maybe(TEXT), "how that was worked out, or what is missing"),
            "part": said(TEXT, "of the model; repeated blocks are one"),
            "blocks": said(maybe(WHOLE), "repeated blocks that have it"),
            "launches": WHOLE,
            "kernel_ns": said(maybe(NUMBER), "time of its kernels added up (ns)"),
            "share": said(maybe(NUMBER), "of the phase's kernel time (0..1)"),
            "token_ns": said(maybe(NUMBER), "kernel time over tokens (ns)"),
            "kernel_ns_shared": said(
                TRUTH, "a fused kernel belongs to it and to other parts: its time is an estimate"
            ),
            "prompts_ns": said(
                maybe(NUMBER),
                "of mixed steps' prompts, an estimate by work (ns); null: not mixed or not said",
            ),
            "decodes_ns": said(maybe(NUMBER), "the rest of it, of the decodes (ns)"),
            "split_by": said(
                maybe(TEXT),
                "what the split goes by: tokens, sequences, or pairs of queries and keys",
            ),
            "paper_flops": said(maybe(WHOLE), "1 multiply-add = 2 FLOPs, of all steps (FLOP)"),
            "paper_why": said(maybe(TEXT), "why null"),
            "bytes": said(
                maybe(WHOLE),
                "weights and activations once each, and the cache that attention reads (B)",
            ),
            "bytes_why": said(maybe(TEXT), "why null"),
            "bytes_estimated": said(
                TRUTH, "true: they take the cache to have the type of the projections"
            ),
            "flops_per_byte": said(maybe(NUMBER), "paper (FLOP/B)"),
            "ridge_flops_per_byte": said(maybe(NUMBER), "where the device's roofs meet (FLOP/B)"),
            "roof": said(maybe(TEXT), "path of the peak"),
            "bound": said(maybe(TEXT), "memory or compute"),
            "executed_per_paper": said(
                maybe(NUMBER), "multiply-adds of whole tiles over those on paper, 1 or more"
            ),
        }
    )


def _pass_row() -> Schema:
    from perfctl.records.ranges import DIRECTIONS

    call = "of one call of attention, by its kernel's tile and grid"
    return closed(
        {
            "run": WHOLE,
            "direction": maybe(
                {"type": "string", "enum": list(DIRECTIONS)}, "nothing says it of these kernels"
            ),
            "layers": WHOLE,
            "launches": WHOLE,
            "kernel_ns": said(NUMBER, "of its kernels added up, of all recorded steps (ns)"),
            "share": said(NUMBER, "of the kernel time (0..1)"),
            "running_ns": said(NUMBER, "in which at least one of them ran (ns)"),
            "exchange_ns": said(NUMBER, "of it in exchanges between GPUs (ns)"),
            "attention_calls": maybe(WHOLE, "no kernel tells"),
            "tokens_a_call": maybe(
                said(WHOLE, f"{call} and by the rows of other kernels: inferred"),
                "these do not agree",
            ),
            "tokens_a_call_least": maybe(said(WHOLE, call), "no kernel tells"),
            "tokens_a_call_most": maybe(said(WHOLE, call), "no kernel tells"),
        }
    )


def _compare() -> Schema:
    from perfctl.orchestrator.analyse.compare.causes import KINDS, Executed
    from perfctl.orchestrator.analyse.compare.pairing import MEANING, Difference, Key, Number, Row

    side = closed({"label": TEXT, "runs": array(WHOLE, "numbers of runs")})
    verdict = said(
        {"type": "string", "enum": list(MEANING)},
        "; ".join(f"{word}: {meant}" for word, meant in MEANING.items()),
    )
    row = fields_of(Row)
    names = ("name", "change", "interval", "p", "adjusted", "why", "basis")
    rows = {
        **fields_of(Key),
        **{name: row[name] for name in names},
        "verdict": verdict,
        "a": maybe(record(Number)),
        "b": maybe(record(Number)),
    }
    ran = {
        name: fields_of(Executed)[name]
        for name in ("algorithms", "arithmetic", "launches", "ns", "kernels")
    }
    part = {
        "layer": TEXT,
        "direction": TEXT,
        "behind_it": {"type": "string", "enum": list(KINDS)},
        "change_ns": maybe(said(NUMBER, "B less A, ns a step")),
        "flops_b_over_a": maybe(NUMBER),
        "a": maybe(closed(ran)),
        "b": maybe(closed(ran)),
    }
    pair = {
        "heading": TEXT,
        "batch_a": maybe(WHOLE),
        "batch_b": maybe(WHOLE),
        "comparable": TRUTH,
        "differences": array(record(Difference, as_cause=maybe(TEXT), as_cause_why=maybe(TEXT))),
        "by_layer": TRUTH,
        "aligned": array(closed(part)),
        "rows": array(closed(rows)),
    }
    counts = dict.fromkeys(("regressions", "improvements", "news", "not_comparable"), WHOLE)
    lists = {
        name: array(TEXT) for name in ("findings", "warnings", "only_a", "only_b", "failed_in_b")
    }
    gate = said(NUMBER, "changes up to this do not count; 0.05 is 5 %")
    said_of = (
        "Times in ns, memory in bytes, throughput in samples per second, energy in J, energy-delay "
        "product in J s."
    )
    return closed(
        {
            "a": side,
            "b": side,
            "gate": gate,
            "forced": TRUTH,
            **counts,
            **lists,
            "pairs": array(closed(pair)),
        },
        said_of,
    )


def _gate() -> Schema:
    from perfctl.orchestrator.analyse.gate.records import MEANING, Place

    value = {"type": ["number", "string", "object", "array", "null"]}
    verdict = said(
        {"type": "string", "enum": list(MEANING)},
        "; ".join(f"{word}: {meant}" for word, meant in MEANING.items()),
    )
    row = {
        "place": record(Place),
        "quantity": TEXT,
        "unit": maybe(TEXT),
        "verdict": verdict,
        "said": TEXT,
        "before": said(
            value, "a figure, a text, launches by kernel name, or the time of each repeat in ns"
        ),
        "after": value,
        "change": maybe(said(NUMBER, "after over before, less 1")),
    }
    entry = {
        "entry": TEXT,
        "failed": TRUTH,
        "undecided": TRUTH,
        "problems": array(TEXT),
        "notes": array(TEXT),
        "differences": array(TEXT),
        "rows": array(closed(row), "all that are not the same"),
        "same": WHOLE,
    }
    return closed({"passed": TRUTH, "headline": TEXT, "entries": array(closed(entry))})


def _history() -> Schema:
    from perfctl.orchestrator.analyse.compare.pairing import Difference

    place = said(WHOLE, "place among the line's points, from 0")
    change = {
        "after": said(WHOLE, "first point of the new level"),
        "earliest": said(WHOLE, "not before this point, with 95 %"),
        "latest": said(WHOLE, "not after this point, with 95 %"),
        "before": said(WHOLE, "last point of the old level"),
        "change": maybe(said(NUMBER, "new level over old, less 1"), "the old level is 0"),
        "interval": maybe(array(NUMBER, "95 %"), "an exact count"),
        "p": maybe(NUMBER, "an exact count"),
        "differences": array(record(Difference, as_cause=TEXT, as_cause_why=TEXT)),
    }
    series = {
        "quantity": TEXT,
        "layer": TEXT,
        "direction": TEXT,
        "unit": TEXT,
        "exact": TRUTH,
        "points": array(place),
        "values": array(NUMBER, "median of the repeats of each point"),
        "changes": array(closed(change)),
    }
    point = {
        "store": TEXT,
        "runs": array(WHOLE),
        "started_at": maybe(TEXT),
        "commit": maybe(TEXT, "not recorded"),
        "commit_time": maybe(TEXT, "not recorded"),
    }
    line = {
        "heading": TEXT,
        "batch": maybe(WHOLE),
        "profiler": TEXT,
        "device": maybe(TEXT, "not recorded"),
        "apart": maybe(
            said(TEXT, "why it is a line of its own"), "the first of its workload and batch size"
        ),
        "points": array(closed(point)),
        "series": array(closed(series)),
    }
    gate = said(NUMBER, "changes up to this are not told; 0.05 is 5 %")
    return closed({"stores": array(TEXT), "gate": gate, "lines": array(closed(line))})


def _query() -> Schema:
    value = {"type": ["string", "number", "null"]}
    return array(
        {"type": "object", "additionalProperties": value},
        "One object a row, by the names of its columns; a second column of a name is name_2. Bytes "
        "are hexadecimal digits. With --search the columns are what, name, kind, runs, launches, "
        "duration_ns.",
    )


def _doctor() -> Schema:
    from perfctl.orchestrator.launch.machine.doctor import Finding

    return array(record(Finding), "One object a tool or property of the machine.")


def _price() -> dict[str, Schema]:
    return {
        "provider": TEXT,
        "instance": maybe(TEXT),
        "gpu": TEXT,
        "boards": array(TEXT, "products that it may be"),
        "count": said(WHOLE, "GPUs"),
        "on_demand_usd_per_hour": maybe(NUMBER),
        "spot_usd_per_hour": maybe(NUMBER),
        "region": maybe(TEXT),
        "date": said(TEXT, "when the price was seen"),
        "older_than_a_year": TRUTH,
        "in_doubt": maybe(said(TEXT, "why the price may not hold")),
        "source": maybe(TEXT),
    }


def _prices() -> Schema:
    return closed(
        {"table": said(TEXT, "where the prices are from"), "prices": array(closed(_price()))}
    )


def _estimate() -> Schema:
    from perfctl.orchestrator.analyse.flops.engine import Totals
    from perfctl.orchestrator.analyse.memory.by_batch import Fit
    from perfctl.orchestrator.analyse.memory.estimate import Estimate
    from perfctl.orchestrator.analyse.memory.trace import Memory

    total = record(Totals, at_least=said(TRUTH, "some of it was not counted"))
    memory = record(
        Memory, cublas_workspace=maybe(said(WHOLE, "bytes")), allocated=maybe(said(WHOLE, "bytes"))
    )
    size = {
        **members(
            Estimate, "parameters", "trainable", "input_bytes", "active_parameters", "experts"
        ),
        "forward": total,
        "backward": total,
        "recompute": total,
        "fused_attention": total,
        **members(Estimate, "integer_macs", "precision", "types", "casts"),
        "layers": array(record(LayerCall)),
        **members(Estimate, "modules"),
        "memory": maybe(memory, "--memory was not asked for, or see problem"),
        **members(Estimate, "data_dependent", "problem"),
    }
    return closed(
        {
            **_MODEL,
            "mode": TEXT,
            "batches": mapping(closed(size), _SIZES),
            "largest_batch": maybe(record(Fit)),
            "notes": array(TEXT),
        },
        "Figures of one step, on paper. Memory in bytes.",
    )


def _estimate_layer() -> Schema:
    from perfctl.orchestrator.analyse.sheets.sheet import Section, Sheet
    from perfctl.orchestrator.analyse.sheets.slips import Finding

    one = fields_of(Sheet)
    check = maybe(record(Finding, said=TEXT), "no --check")
    size = closed(
        {
            "layer": one["layer"],
            "kind": one["kind"],
            "sections": array(record(Section)),
            "check": check,
        }
    )
    return closed(
        {**_MODEL, "batches": mapping(size, _SIZES), "problems": array(TEXT)},
        "--sheet with --layer, or --check.",
    )


def _estimate_sheet() -> Schema:
    from perfctl.orchestrator.analyse.sheets.network import NetworkSheet

    sizes = mapping(record(NetworkSheet), _SIZES)
    return closed(
        {**_MODEL, "batches": sizes, "problems": array(TEXT)}, "--sheet of a whole network."
    )


def _estimate_generation() -> Schema:
    from perfctl.orchestrator.analyse.flops.engine import Totals
    from perfctl.orchestrator.analyse.generation import MEASURES, CachePart, LayerWork

    measures = dict.fromkeys(MEASURES[1:], NUMBER)
    names = ("steps", "tokens", "first_context", "last_context", "macs", "flops")
    phase = {
        "name": TEXT,
        **dict.fromkeys(names, WHOLE),
        "at_least": TRUTH,
        **members(Totals, "unknown"),
        **measures,
        "bytes": NUMBER,
        "flops_per_byte": maybe(NUMBER),
        "steps_traced": WHOLE,
        "layers": array(record(LayerWork, flops=NUMBER)),
    }
    latent = closed({"compressed_values": WHOLE, "expanded_values": WHOLE})
    cache = {
        "dtypes": array(TEXT),
        "bytes_per_token": NUMBER,
        "values_per_token": NUMBER,
        "fixed_bytes": NUMBER,
        "bytes_at_end": NUMBER,
        "tokens_at_end": WHOLE,
        "parts": array(record(CachePart)),
        "latent": maybe(latent),
    }
    size = {
        "prompt": WHOLE,
        "generate": WHOLE,
        "parameters": WHOLE,
        "active_parameters": maybe(WHOLE),
        "phases": array(closed(phase)),
        "kv_cache": maybe(closed(cache)),
        "problem": maybe(TEXT),
        "notes": array(TEXT),
    }
    return closed(
        {**_MODEL, "mode": {"const": "generate"}, "batches": mapping(closed(size), _SIZES)},
        "--prompt.",
    )


def _device(**more: Schema) -> Schema:
    from perfctl.orchestrator.analyse.hardware.machines import Machine

    return record(
        Machine,
        without=("flops_per_second",),
        flops_per_second=mapping(NUMBER, "arithmetic -> peak"),
        source=TEXT,
        **more,
    )


def _predict() -> Schema:
    from perfctl.orchestrator.analyse.cost import Energy, Parallel, Span
    from perfctl.orchestrator.analyse.predict.predict import Share

    span = record(Span)
    spans = maybe(span)
    offer = {
        **_price(),
        "instances": WHOLE,
        "idle_gpus": WHOLE,
        "on_demand_usd": spans,
        "spot_usd": spans,
    }
    room = {
        "needed_bytes": NUMBER,
        "reserve_bytes": NUMBER,
        "limit_bytes": maybe(NUMBER),
        "fits": maybe(TRUTH),
        "lacking_bytes": maybe(NUMBER),
        "largest_batch": maybe(WHOLE),
    }
    point = {
        "batch": WHOLE,
        "step_s": span,
        "step_one_gpu_s": spans,
        "samples_per_s": spans,
        "tokens_per_s": spans,
        "steps_per_epoch": maybe(WHOLE),
        "epoch_s": spans,
        "training_s": spans,
        "way": TEXT,
        "source": TEXT,
        "nearest": maybe(TEXT),
        "operations": maybe(NUMBER),
        "host_s": maybe(NUMBER),
        "gpu_s": maybe(NUMBER),
        "host_limits": maybe(TRUTH),
        "coverage": maybe(NUMBER),
        "why_not_better": array(TEXT),
        "beyond_the_data": array(TEXT),
        "roofline_s": maybe(NUMBER),
        "phases_s": mapping(NUMBER, "phase -> seconds"),
        "memory": maybe(closed(room)),
        "parallel": maybe(record(Parallel)),
        "offers": array(closed(offer)),
        "energy": maybe(record(Energy)),
        "layers": array(record(Share)),
        "drivers": mapping(NUMBER, "what the time goes with -> share"),
        "gaps": _gaps(),
    }
    choice = {
        **_price(),
        "board": maybe(TEXT),
        "batch": WHOLE,
        "way": TEXT,
        "beyond_the_data": TRUTH,
        "training_s": spans,
        "on_demand_usd": spans,
        "spot_usd": spans,
    }
    counts = dict.fromkeys(("compared", "too_large", "unknown", "unsure"), WHOLE)
    frontier = maybe(closed({**counts, "choices": array(closed(choice))}), "no --frontier")
    numbers = {name: maybe(WHOLE) for name in ("parameters", "dataset_size", "epochs", "gpus")}
    return closed(
        {
            **_MODEL,
            "mode": TEXT,
            "optimizer": maybe(TEXT),
            "precision": TEXT,
            **numbers,
            "device": _device(),
            "prices": TEXT,
            "notes": array(TEXT),
            "tokens_per_sample": maybe(WHOLE),
            "batches": array(closed(point)),
            "frontier": frontier,
        },
        "Times in seconds, memory in bytes, money in US dollars, energy in kWh.",
    )


def _gaps() -> Schema:
    return mapping(TEXT, "key that is null or empty -> why")


def _predict_generation() -> Schema:
    from perfctl.orchestrator.analyse.cost import Span

    span = record(Span)
    step = closed(
        {
            "seconds": span,
            "roofline_s": maybe(NUMBER),
            "limit": maybe(TEXT),
            "context": maybe(WHOLE),
        }
    )
    bytes_ = dict.fromkeys(
        ("weights_bytes", "kv_cache_bytes", "reserve_bytes", "needed_bytes"), NUMBER
    )
    memory = closed(
        {
            **bytes_,
            "limit_bytes": maybe(NUMBER),
            "fits": maybe(TRUTH),
            "largest_batch": maybe(WHOLE),
        }
    )
    point = {
        "batch": WHOLE,
        "prefill": step,
        "decode_first_step": maybe(step),
        "decode_last_step": maybe(step),
        "whole_s": span,
        "tokens_per_s": span,
        "memory": memory,
        "cost": maybe(closed({**_price(), "usd_per_million_tokens": span})),
        "source": TEXT,
        "nearest": maybe(TEXT),
        "coverage": maybe(NUMBER),
        "beyond_the_data": array(TEXT),
        "gaps": _gaps(),
    }
    texts = {"engine": TEXT, "precision": TEXT, "kv_cache": maybe(TEXT)}
    return closed(
        {
            **_MODEL,
            "mode": {"const": "generate"},
            **texts,
            "prompt": WHOLE,
            "generate": WHOLE,
            "parameters": WHOLE,
            "device": _device(),
            "prices": TEXT,
            "notes": array(TEXT),
            "batches": array(closed(point)),
        },
        "Times in seconds, memory in bytes, money in US dollars.",
    )


def _report() -> Schema:
    left = maybe(said(TEXT, "which older studies are not on the page"), "all are")
    return closed(
        {
            "path": _PATH,
            "bytes": WHOLE,
            "runs": array(WHOLE, "numbers of the runs on it"),
            "left_out": left,
        }
    )


def _plot() -> Schema:
    return closed({"path": _PATH, "chart": TEXT, "description": TEXT})


def _plot_list() -> Schema:
    return array(closed({"name": TEXT, "description": TEXT}), "One object a chart.")


def _trace() -> Schema:
    counts = dict.fromkeys(
        ("kernels", "copies", "ranges", "operators", "readings", "arrows"), WHOLE
    )
    step = maybe(said(WHOLE, "the measured step"), "everything that was captured")
    return closed({"path": _PATH, "run": WHOLE, "step": step, "events": WHOLE, **counts})


def _export() -> Schema:
    return closed({"path": _PATH, "format": TEXT, "tables": array(TEXT)})


def _export_dataset() -> Schema:
    return closed({"path": _PATH, "runs": WHOLE, "files": WHOLE, "rows": WHOLE})


def _calculator() -> Schema:
    return closed({"path": _PATH, "bytes": WHOLE, "models": array(TEXT), "devices": WHOLE})


def _scrub() -> Schema:
    kinds = mapping(WHOLE, "kind -> how many were replaced")
    return closed(
        {
            "path": _PATH,
            "rows_removed": mapping(WHOLE, "table -> rows"),
            "replaced": kinds,
        }
    )


def _mcp() -> Schema:
    rest = {name: one for name, one in ANSWER["properties"].items() if name != "schema"}
    return {
        "type": "object",
        "properties": rest,
        "required": [name for name in ANSWER["required"] if name != "schema"],
        "description": "Every answer of perfctl mcp; each tool adds keys.",
    }


_MADE: dict[str, Callable[[], Schema]] = {
    "runs": _runs,
    "show": _show,
    "show-source": _source,
    "ledger": _ledger,
    "compare": _compare,
    "gate": _gate,
    "history": _history,
    "query": _query,
    "doctor": _doctor,
    "prices": _prices,
    "estimate": _estimate,
    "estimate-layer": _estimate_layer,
    "estimate-sheet": _estimate_sheet,
    "estimate-generation": _estimate_generation,
    "predict": _predict,
    "predict-generation": _predict_generation,
    "report": _report,
    "plot": _plot,
    "plot-list": _plot_list,
    "trace": _trace,
    "export": _export,
    "export-dataset": _export_dataset,
    "calculator": _calculator,
    "scrub": _scrub,
    "mcp": _mcp,
    **measured.MADE,
}
