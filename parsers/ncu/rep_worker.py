"""``python -m perfctl.parsers.ncu.rep_worker REPORT`` writes a line of JSON for each result: ``name``, ``short``,
``single`` (one kernel), ``ranges`` (push/pop, outermost first), ``metrics`` ([name, unit, value or null]). NVIDIA's
package can abort the interpreter on a damaged file (seen with ncu_report 2026.x: "Check failed: count >= 0")."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_EXACT = 2.0**53
Value = int | float | str | None


def main(arguments: list[str], out: TextIO) -> int:
    """Write the results of the report to ``out``; 0 also when there are none."""
    for action in _actions(arguments[0]):
        json.dump(_record(action), out)
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


def _record(action: Any) -> dict[str, object]:
    found = [_metric(action, name) for name in action.metric_names()]
    return {
        "name": _text(action.name(action.NameBase_DEMANGLED)),
        "short": _text(action.name(action.NameBase_FUNCTION)),
        "single": action.workload_type() == action.WorkloadType_KERNEL,
        "ranges": _ranges(action),
        "metrics": [metric for metric, _ in found],
        "strange": [metric[0] for metric, is_strange in found if is_strange],
    }


def _metric(action: Any, name: str) -> tuple[tuple[str, str, Value], bool]:
    """(name, unit, value) and whether the value has an unknown type. The package refuses names with lone surrogates,
    which it gives itself in damaged files."""
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
    return [_text(name) for number in state.domains() for name in state.domain_by_id(number).push_pop_ranges()]


def _text(text: str | None) -> str:
    """Text without the lone surrogates that the package makes of bytes that are no UTF-8; "" where it has none."""
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
