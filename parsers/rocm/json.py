"""``results.json`` of rocprofv3 (``--output-format json``), by the layout that its documentation
and tests describe.

One object per process below "rocprofiler-sdk-tool": ``agents``, ``kernel_symbols`` and ``counters``
explain the numbers in ``buffer_records`` (kernel_dispatch, memory_copy, ..._api) and
``callback_records`` (counter_collection). Of ``metadata`` only times are read. The file is read
whole, so long recordings belong into CSV or ``results.db``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfctl.parsers.common.json import decode_head, read_json_file
from perfctl.parsers.common.numbers import parse_integer
from perfctl.parsers.common.tables import read_json_fields
from perfctl.parsers.rocm.records import (
    API_DOMAINS,
    COPY,
    LAUNCH_OF_SYMBOL,
    ROCPROFV3,
    TIMES,
    RocmRecording,
    make_copy,
    make_counter,
    make_kernel,
    make_scratch_memory_counter,
    read_start_and_duration_ns,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Copy, Counter, Gap, Kernel, Report

ROOT = "rocprofiler-sdk-tool"
_SMALLER = "Record with --output-format csv or rocpd, which have no limit, or copy the file again"
Json = dict[str, Any]


def sniff(path: Path, head: bytes) -> bool:
    """Return whether its first member is rocprofv3's."""
    text = "" if path.is_dir() else decode_head(head).lstrip()[:200]
    return text.replace(" ", "").replace("\n", "").startswith('{"' + ROOT)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off, too long, or of another layout."""
    content = read_json_file(path, ROCPROFV3, _SMALLER)
    kernels, counters, copies = list[Kernel](), list[Counter](), list[Copy]()
    recording = RocmRecording(path, "rocprofv3 JSON", kernels, counters, copies)
    try:
        for process in content[ROOT]:
            ordinals = _add_gpus_and_map_ordinals(process, recording)
            _add_launches_and_counters(process, recording, ordinals, kernels, counters)
            _add_buffer_records(process, recording, ordinals, copies)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"a member of a process is missing or of another type ({error!r:.200})"
        raise ReportError(path, ROCPROFV3, reason, _SMALLER) from error
    if not content[ROOT]:
        raise ReportError(path, ROCPROFV3, f'"{ROOT}" holds no process', _SMALLER)
    return recording.make_report()


def _add_gpus_and_map_ordinals(process: Json, recording: RocmRecording) -> dict[object, int]:
    """Return agent -> ordinal among the GPUs, and add these."""
    gpus = [agent for agent in process.get("agents", ()) if agent["type"] == 2]
    gpus.sort(key=lambda agent: parse_integer(agent.get("node_id")) or 0)
    for index, gpu in enumerate(gpus):
        recording.add_gpu(index, gpu)
    return {gpu["id"]["handle"]: index for index, gpu in enumerate(gpus)}


def _add_buffer_records(
    process: Json, recording: RocmRecording, ordinals: Mapping[object, int], copies: list[Copy]
) -> None:
    """Add the times, copies and calls, and a gap for each kind of record without a reader."""
    metadata = process.get("metadata", {})
    recording.times.append((metadata.get("init_time"), metadata.get("fini_time")))
    operations = process.get("strings", {}).get("buffer_records", ())
    for kind, rows in process.get("buffer_records", {}).items():
        if kind == "memory_copy":
            for row in rows:
                fields = read_json_fields(
                    COPY, {**row, "Direction": _get_operation_name(row, operations)}
                )
                copies.append(make_copy(fields, ordinals.get))
        elif kind in API_DOMAINS:
            for row in rows:
                _, duration = read_start_and_duration_ns(read_json_fields(TIMES, row))
                recording.add_api_calls(kind, _get_operation_name(row, operations), duration)
        elif rows and kind not in ("kernel_dispatch", "names"):
            reason = f"{len(rows):,} records of {kind} are not supported"
            recording.gaps.append(Gap(kind, "not_available", reason))


def _add_launches_and_counters(
    process: Json,
    recording: RocmRecording,
    ordinals: Mapping[object, int],
    kernels: list[Kernel],
    counters: list[Counter],
) -> None:
    """Add the dispatches of the trace, then those of counters that it does not have, and the
    counters."""
    symbols = {row["kernel_id"]: row for row in process.get("kernel_symbols", ())}
    names = {row["id"]["handle"]: row["name"] for row in process.get("counters", ())}
    traced = process.get("buffer_records", {}).get("kernel_dispatch", ())
    counted = process.get("callback_records", {}).get("counter_collection", ())
    launches: dict[int | None, int] = {}
    for row in (*traced, *({**row, **row["dispatch_data"]} for row in counted)):
        symbol = symbols.get(row["dispatch_info"]["kernel_id"])
        fields = read_json_fields(LAUNCH_OF_SYMBOL, {**row, "symbol": symbol})
        launch = launches.setdefault(fields["dispatch"], len(kernels))
        if launch == len(kernels):
            kernels.append(make_kernel(launch, ordinals.get(fields["agent"]), fields))
            recording.used.add(kernels[-1].device_index)
            counters += make_scratch_memory_counter(launch, fields)
        values: dict[str, float] = {}
        for value in row.get("records", ()):
            number = value["counter_id"]["handle"]
            name = str(names.get(number, number))
            # instances are summed, as in the CSV
            values[name] = values.get(name, 0) + value["value"]
        counters += [make_counter(launch, *value) for value in values.items()]
    recording.has_counters |= bool(counted)


def _get_operation_name(row: Json, operations: Sequence[Json]) -> str:
    """Return the name of a record's operation: by its kind, and the number of the operation in
    it."""
    kind, number = row["kind"], row["operation"]
    try:
        return str(operations[kind]["operations"][number])
    except (IndexError, KeyError):
        return f"operation {number} of kind {kind}"
