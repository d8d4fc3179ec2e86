"""``python -m perfctl.parsers.ncu.rep_worker REPORT [source]`` writes a line of JSON for each
result: ``name``, ``short``, ``single`` (one kernel), ``ranges`` (push/pop, outermost first),
``metrics`` ([name, unit, value or null]), ``sections`` (metric -> title), ``rules`` ([name, kind,
text, speed-up in %, scope]), ``instances`` ([metric, unit, instance, value]), ``series`` (metrics
with more values than that), ``source`` (SourceCounter's fields without the launch; only on request)
and ``addresses`` (how many instructions have values). NVIDIA's package can abort the interpreter on
a damaged file (seen with ncu_report 2026.x: "Check failed: count >= 0")."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_EXACT = 2.0**53
Value = int | float | str | None
FEW, OPCODES = 32, 512
"""Values of one metric that are given by instance; opcodes are an instruction mix, which is of use
only as a whole."""
_ADDRESS = 2**32
"""Instances from here on are addresses of instructions or moments in time."""
_EXECUTED, _THREADS, _SAMPLES = "inst_executed", "thread_inst_executed", "smsp__pcsamp_sample_count"
_STALLED = "smsp__pcsamp_warps_issue_stalled_"
_PREDICATE = re.compile(r"^\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
_KINDS = {1: "INF", 2: "OPT", 3: "WRN", 4: "ERR"}
"""MsgType of the package -> what ncu prints for it."""
_SCOPES = {1: "local", 2: "global"}
"""SpeedupType of the package."""


def main(arguments: list[str], out: TextIO) -> int:
    """Write the results of the report to ``out``; 0 also when there are none."""
    for action in _actions(arguments[0]):
        json.dump(_record(action, with_source="source" in arguments[1:]), out)
        out.write("\n")
    return 0


def _actions(path: str) -> Iterator[Any]:
    import ncu_report

    context = ncu_report.load_report(path)
    for number in range(context.num_ranges() if context is not None else 0):
        part = context.range_by_idx(number)  # None in reports that the package refuses
        for index in range(part.num_actions() if part is not None else 0):
            action = part.action_by_idx(index)
            if action is not None:
                yield action


def _record(action: Any, *, with_source: bool) -> dict[str, object]:
    names = action.metric_names()
    found = [_metric(action, name) for name in names]
    instances, series = _instances(action, names)
    of_source = (_EXECUTED, _THREADS, _SAMPLES)
    addresses = sorted(
        {at for name in of_source if name in names for at in _by_instance(action, name)}
    )
    return {
        "name": _text(action.name(action.NameBase_DEMANGLED)),
        "short": _text(action.name(action.NameBase_FUNCTION)),
        "single": action.workload_type() == action.WorkloadType_KERNEL,
        "ranges": _ranges(action),
        "metrics": [metric for metric, _ in found],
        "strange": [metric[0] for metric, is_strange in found if is_strange],
        "sections": _sections(action),
        "rules": list(_rules(action)),
        "instances": instances,
        "series": series,
        "addresses": len(addresses),
        "source": list(_source(action, names, addresses)) if with_source else [],
    }


def _sections(action: Any) -> dict[str, str]:
    """Metric -> title of its section: the first one that has it in its header, which the details
    page prints, else the first one that has it in a chart or table. Empty with a package that does
    not know sections."""
    known = (
        sorted(action.sections(), key=lambda section: section.order())
        if hasattr(action, "sections")
        else []
    )
    found: dict[str, str] = {}
    for metrics_of in ("header_metrics", "body_metrics"):
        for section in known:
            for metric in getattr(section, metrics_of)():
                found.setdefault(_text(metric.name()), _text(section.name()))
    return found


def _rules(action: Any) -> Iterator[tuple[str, str | None, str, float | None, str | None]]:
    """Results of rules that say something. Empty with a package that does not know rules."""
    for result in action.rule_results() if hasattr(action, "rule_results") else ():
        message = result.rule_message() if result.has_rule_message() else None
        speedup = result.speedup_estimation() if result.has_speedup_estimation() else None
        if message is not None or speedup is not None:
            message, speedup = message or {}, speedup or {}
            kind, scope = _KINDS.get(message.get("type", 0)), _SCOPES.get(speedup.get("type", 0))
            share = speedup.get("speedup")
            known = share if share is not None and math.isfinite(share) else None
            yield _text(result.rule_identifier()), kind, _text(message.get("message")), known, scope


def _instances(action: Any, names: Any) -> tuple[list[tuple[str, str, str, Value]], list[str]]:
    """Values by opcode, slice or pass; and the metrics of which there are more (curves, series
    of samples)."""
    few: list[tuple[str, str, str, Value]] = []
    series = []
    of_code = set(_by_instance(action, _EXECUTED)) if _EXECUTED in names else set()
    for name in names:
        metric = action.metric_by_name(name) if name == _text(name) else None
        count = metric.num_instances() if metric is not None else 0
        if metric is None or not count or not metric.has_correlation_ids():
            continue
        first = metric.correlation_ids().value(0)
        by_name = isinstance(first, str)
        if first in of_code or (count == 1 and not by_name):
            continue
        if count > (OPCODES if by_name else FEW) or (not by_name and first >= _ADDRESS):
            series.append(name)
            continue
        pairs = _by_instance(action, name).items()
        few += (
            (name, _text(metric.unit()), _text(str(one)), _plain(value)) for one, value in pairs
        )
    return few, series


def _by_instance(action: Any, name: str) -> dict[Any, Any]:
    """Instance -> value."""
    metric = action.metric_by_name(name)
    if metric is None or not metric.num_instances() or not metric.has_correlation_ids():
        return {}
    ids = metric.correlation_ids()
    return {ids.value(at): metric.value(at) for at in range(metric.num_instances())}


def _plain(value: Any) -> Value:
    if isinstance(value, str):
        return _text(value) or None
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    return value if isinstance(value, int) else None


def _source(action: Any, names: Any, addresses: list[int]) -> Iterator[tuple[object, ...]]:
    """Of each instruction: bytes from the first one, opcode, file, line, executed by warps and by
    threads, samples, and the most frequent reason why a sampled warp stalled. Of the code no more
    than the opcode is given. The package lists only the instructions whose value is not 0: the
    values of all add up to the metric's own."""
    executed, threads, samples = (
        _by_instance(action, name) if name in names else {}
        for name in (_EXECUTED, _THREADS, _SAMPLES)
    )
    reasons = {
        name.removeprefix(_STALLED): _by_instance(action, name)
        for name in names
        if name.startswith(_STALLED) and not name.endswith(("_not_issued", "_selected"))
    }
    for at in addresses:
        place = action.source_info(at)
        opcode = _PREDICATE.match(_text(action.sass_by_pc(at)))
        stalled = {
            reason: of_reason[at] for reason, of_reason in reasons.items() if of_reason.get(at)
        }
        yield (
            at - addresses[0],
            opcode and opcode[1],
            place and (_text(place.file_name()) or None),
            (place and place.line()) or None,
            *(_plain(of.get(at, 0)) if of else None for of in (executed, threads, samples)),
            max(stalled, key=lambda reason: stalled[reason]) if stalled else None,
        )


def _metric(action: Any, name: str) -> tuple[tuple[str, str, Value], bool]:
    """(name, unit, value) and whether the value has an unknown type. The package refuses names with
    lone surrogates, which it gives itself in damaged files."""
    metric = action.metric_by_name(name) if name == _text(name) else None
    if metric is None:
        return (_text(name), "", None), False
    value, is_strange = _value(metric)
    return (name, _text(metric.unit()), value), is_strange


def _value(metric: Any) -> tuple[Value, bool]:
    """The aggregate over all instances, whole numbers as int; and whether its type is unknown."""
    if not metric.has_value():
        return None, False
    kind = metric.kind()
    if kind in (metric.ValueKind_UINT32, metric.ValueKind_UINT64):
        return int(metric.as_uint64()), False
    if kind in (metric.ValueKind_DOUBLE, metric.ValueKind_FLOAT):
        number = float(metric.as_double())
        if not math.isfinite(number):
            return None, False
        return int(number) if number.is_integer() and abs(number) < _EXACT else number, False
    if kind == metric.ValueKind_STRING:
        return _text(metric.as_string()) or None, False
    return None, kind != metric.ValueKind_ANY


def _ranges(action: Any) -> list[str]:
    """Names of the push/pop ranges around the launch, outermost first within each domain."""
    state = action.nvtx_state()
    if state is None:
        return []
    return [
        _text(name)
        for number in state.domains()
        for name in state.domain_by_id(number).push_pop_ranges()
    ]


def _text(text: str | None) -> str:
    """Text without the lone surrogates that the package makes of bytes that are no UTF-8; "" where
    it has none."""
    return (text or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _own_stdout() -> TextIO:
    """Keep stdout for the records: anything the package prints goes to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    return out


if __name__ == "__main__":
    with _own_stdout() as stdout:
        code = main(sys.argv[1:], stdout)
    sys.exit(code)
