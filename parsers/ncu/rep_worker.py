"""``python -m perfctl.parsers.ncu.rep_worker REPORT [source]`` writes a line of JSON for each
result: ``name``, ``short``, ``single`` (one kernel), ``ranges`` (push/pop, outermost first),
``metrics`` ([name, unit, value or null, section or null]; also "metric[instance]"), ``rules``
([name, kind, text, speedup in %, scope]), ``series`` (metrics with too many instances for that),
``source`` (SourceCounter's fields without the launch; only on request) and ``addresses`` (how many
instructions have values). NVIDIA's package can abort the interpreter on a damaged file (seen with
ncu_report 2026.x: "Check failed: count >= 0")."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TextIO

_EXACT = 2.0**53
Value = int | float | str | None
Metric = tuple[str, str, Value, str | None]
"""Name, unit, value, title of the section."""
FEW, OPCODES = 32, 512
"""Values of one metric that are given by instance; opcodes are an instruction mix, which is of use
only as a whole."""
_ADDRESS = 2**32
"""Instances from here on are addresses of instructions or moments in time."""
_EXECUTED = "inst_executed"
_OF_ADDRESS = (_EXECUTED, "thread_inst_executed", "smsp__pcsamp_sample_count")
"""Metrics with a value for each instruction."""
_STALLED = "smsp__pcsamp_warps_issue_stalled_"
_PREDICATE = re.compile(r"^\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
_KINDS = {1: "INF", 2: "OPT", 3: "WRN", 4: "ERR"}
"""MsgType of the package -> what ncu prints for it."""
_SCOPES = {1: "local", 2: "global"}
"""SpeedupType of the package."""


def main(arguments: list[str], output: TextIO) -> int:
    """Write the results of the report to ``output``; return 0, also when there are none."""
    for action in _iterate_actions(arguments[0]):
        record = _make_result_record(action, with_source="source" in arguments[1:])
        line = json.dumps(record, ensure_ascii=False) + "\n"
        # the package makes lone surrogates of bytes that are no UTF-8
        output.write(line.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    return 0


def _iterate_actions(path: str) -> Iterator[Any]:
    import ncu_report

    context = ncu_report.load_report(path)
    for number in range(context.num_ranges() if context is not None else 0):
        part = context.range_by_idx(number)  # None in reports that the package refuses
        for index in range(part.num_actions() if part is not None else 0):
            action = part.action_by_idx(index)
            if action is not None:
                yield action


def _make_result_record(action: Any, *, with_source: bool) -> dict[str, object]:
    # the package itself gives names with lone surrogates in damaged files, and refuses them
    metrics_by_name = {
        name: action.metric_by_name(name) if name.isascii() else None
        for name in action.metric_names()
    }
    by_address = {
        name: _read_values_by_instance(metrics_by_name[name])
        for name in _OF_ADDRESS
        if name in metrics_by_name
    }
    addresses = sorted(set().union(*by_address.values()))
    sections = _read_section_titles(action)
    metrics, series = _read_metrics_and_series_names(
        metrics_by_name, sections, by_address.get(_EXECUTED, {})
    )
    state = action.nvtx_state()
    return {
        "name": action.name(action.NameBase_DEMANGLED),
        "short": action.name(action.NameBase_FUNCTION),
        "single": action.workload_type() == action.WorkloadType_KERNEL,
        "ranges": [
            name
            for number in (state.domains() if state is not None else ())
            for name in state.domain_by_id(number).push_pop_ranges()
        ],
        "metrics": metrics,
        "rules": list(_read_rule_results(action)),
        "series": series,
        "addresses": len(addresses),
        "source": list(
            _read_counters_per_instruction(action, metrics_by_name, by_address, addresses)
        )
        if with_source
        else [],
    }


def _read_section_titles(action: Any) -> dict[str, str]:
    """Return metric -> title of its section: the first one that has it in its header, which the
    details page prints, else the first one that has it in a chart or table. Empty with a package
    that does not know sections."""
    if not hasattr(action, "sections"):
        return {}
    sections = sorted(action.sections(), key=lambda section: section.order())
    titles: dict[str, str] = {}
    for metrics_of in ("header_metrics", "body_metrics"):
        for section in sections:
            for metric in getattr(section, metrics_of)():
                titles.setdefault(metric.name(), section.name())
    return titles


def _read_rule_results(action: Any) -> Iterator[tuple[str, str | None, str, Value, str | None]]:
    """Yield results of rules. None with a package that does not know rules."""
    has_rules = hasattr(action, "rule_results_as_dicts")
    for result in action.rule_results_as_dicts() if has_rules else ():
        message, speedup = (result.get(key) or {} for key in ("rule_message", "speedup_estimation"))
        kind, scope = _KINDS.get(message.get("type", 0)), _SCOPES.get(speedup.get("type", 0))
        share = _to_json_value(speedup.get("speedup"))
        yield result["rule_identifier"], kind, message.get("message", ""), share, scope


def _read_metrics_and_series_names(
    metrics_by_name: Mapping[str, Any],
    sections: Mapping[str, str],
    instruction_addresses: Collection[Any],
) -> tuple[list[Metric], list[str]]:
    """Return the metrics, behind them their values by opcode, slice or pass as metrics of their
    own, and the names of metrics of which there are more (curves, series of samples).
    ``instruction_addresses``: of instructions."""
    metrics: list[Metric] = []
    few: list[Metric] = []
    series = []
    for name, metric in metrics_by_name.items():
        section, unit = sections.get(name), metric.unit() if metric is not None else ""
        value = metric.value() if metric is not None and metric.has_value() else None
        metrics.append((name, unit, _to_json_value(value), section))
        values = _read_values_by_instance(metric)
        first = next(iter(values), None)
        is_named = isinstance(first, str)
        if first is None or first in instruction_addresses or (len(values) == 1 and not is_named):
            continue
        if len(values) > (OPCODES if is_named else FEW) or (not is_named and first >= _ADDRESS):
            series.append(name)
        else:
            few += (
                (f"{name}[{instance}]", unit, _to_json_value(values[instance]), section)
                for instance in values
            )
    return metrics + few, series


def _read_values_by_instance(metric: Any) -> dict[Any, Any]:
    """Return instance -> value."""
    if metric is None or not metric.num_instances() or not metric.has_correlation_ids():
        return {}
    ids = metric.correlation_ids()
    return {ids.value(index): metric.value(index) for index in range(metric.num_instances())}


def _read_counters_per_instruction(
    action: Any,
    metrics_by_name: Mapping[str, Any],
    by_address: dict[str, dict[Any, Any]],
    addresses: list[int],
) -> Iterator[tuple[object, ...]]:
    """Yield of each instruction: bytes from the first one, opcode, file, line, executed by warps
    and by threads, samples, and the most frequent reason why a sampled warp stalled. Of the code no
    more than the opcode is given. The package lists only the instructions whose value is not 0: the
    values of all add up to the metric's own."""
    counts = [by_address.get(name) for name in _OF_ADDRESS]
    reasons = {
        name.removeprefix(_STALLED): _read_values_by_instance(metric)
        for name, metric in metrics_by_name.items()
        if name.startswith(_STALLED) and not name.endswith(("_not_issued", "_selected"))
    }
    for address in addresses:
        source = action.source_info(address)
        opcode = _PREDICATE.match(action.sass_by_pc(address))
        stalled = {
            reason: samples[address] for reason, samples in reasons.items() if samples.get(address)
        }
        yield (
            address - addresses[0],
            opcode and opcode[1],
            (source and source.file_name()) or None,
            (source and source.line()) or None,
            *(_to_json_value(values.get(address, 0)) if values else None for values in counts),
            max(stalled, key=lambda reason: stalled[reason]) if stalled else None,
        )


def _to_json_value(value: Any) -> Value:
    """Return whole numbers as int; None for an empty text, and for what JSON does not have."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    return None if value == "" else value


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stdout:
        os.dup2(2, 1)  # anything the package prints goes to stderr
        code = main(sys.argv[1:], stdout)
    sys.exit(code)
