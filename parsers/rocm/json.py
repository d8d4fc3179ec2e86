"""``results.json`` of rocprofv3 (``--output-format json``), by the layout that its documentation
and tests describe.

One object a process below "rocprofiler-sdk-tool": ``agents``, ``kernel_symbols`` and ``counters``
explain the numbers in ``buffer_records`` (kernel_dispatch, memory_copy, ..._api) and
``callback_records`` (counter_collection). Of ``metadata`` only times are read. The file is read
whole, so long recordings belong into CSV or ``results.db``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfctl.parsers.rocm.records import (
    API_DOMAINS,
    NO_COPIES,
    NO_COUNTERS,
    ROCPROFV3,
    SERIAL,
    Calls,
    make_copy,
    make_counter,
    make_device,
    make_kernel,
    make_layer_gap,
    make_scratch,
    order_devices,
    read_span,
    read_stamp,
)
from perfctl.parsers.text.json import peek, read_whole
from perfctl.parsers.text.numbers import read_integer
from perfctl.parsers.text.tables import Column, read_object, read_text
from perfctl.records.errors import ReportError
from perfctl.records.report import Counter, Device, Gap, Kernel, Report

ROOT = "rocprofiler-sdk-tool"
_SMALLER = "Record with --output-format csv or rocpd, which have no limit, or copy the file again"
Json = dict[str, Any]

_TIMES = (
    Column("start_timestamp", "ns", "start", read_stamp),
    Column("end_timestamp", "ns", "end", read_stamp),
    Column("kind"),
    Column("operation"),
)
_DISPATCH = (
    *_TIMES,
    Column("dispatch_info.dispatch_id", field="dispatch"),
    Column("dispatch_info.kernel_id", field="kernel"),
    Column("dispatch_info.agent_id.handle", field="agent", also=("dispatch_info.agent_id",)),
    Column("dispatch_info.group_segment_size", "byte", "lds"),
    Column("dispatch_info.private_segment_size", "byte", "scratch"),
    *(Column(f"dispatch_info.grid_size.{axis}", field=f"items_{axis}") for axis in "xyz"),
    *(Column(f"dispatch_info.workgroup_size.{axis}", field=f"block_{axis}") for axis in "xyz"),
)
_STREAM = (
    Column(
        "stream_id.handle",
        field="stream",
        also=("stream_id", "dispatch_info.queue_id.handle", "dispatch_info.queue_id"),
    ),
)
_SYMBOL = (
    Column("kernel_id", field="kernel"),
    Column(
        "formatted_kernel_name",
        field="name",
        read=read_text,
        also=("demangled_kernel_name", "kernel_name"),
    ),
    Column("group_segment_size", "byte", "static_lds"),
    Column("arch_vgpr_count", field="vgprs"),
    Column("accum_vgpr_count", field="accvgprs"),
)
_COPY = (
    *_TIMES,
    Column("bytes", "byte"),
    Column("dst_agent_id.handle", field="target", also=("dst_agent_id",)),
    Column("src_agent_id.handle", field="source", also=("src_agent_id",)),
    Column("no stream", field="stream"),
)
_METADATA = (
    Column("metadata.init_time", "ns", "start"),
    Column("metadata.fini_time", "ns", "end"),
)
_ID = (Column("id.handle", field="id", also=("id",)),)
_COUNTER_ID = (Column("counter_id.handle", field="id", also=("counter_id",)),)
_NO_SYMBOL: Json = read_object(_SYMBOL, {})


def sniff(path: Path, head: bytes) -> bool:
    """Return whether its first member is rocprofv3's."""
    if path.is_dir():
        return False
    text = peek(head[:4096]).lstrip()[:200]
    return text.replace(" ", "").replace("\n", "").startswith('{"' + ROOT)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off, too long, or has no process."""
    content = read_whole(path, ROCPROFV3, _SMALLER)
    root = content.get(ROOT) if isinstance(content, dict) else None
    processes = [
        _Process(record) for record in _objects(root if isinstance(root, list) else [root])
    ]
    if not processes:
        raise ReportError(path, ROCPROFV3, f'"{ROOT}" holds no process', _SMALLER)
    kernels: list[Kernel] = []
    counters: list[Counter] = []
    calls = Calls()
    for process in processes:
        process.read_launches(kernels, counters)
        process.read_calls(calls)
    copies = [copy for process in processes for copy in process.copies()]
    devices = {gpu.index: gpu for process in reversed(processes) for gpu in process.devices()}
    has_counters = any(process.counted for process in processes)
    return Report(
        tool=ROCPROFV3,
        path=path,
        form="rocprofv3 JSON",
        devices=order_devices(devices, {kernel.device_index for kernel in kernels}),
        kernels=kernels,
        counters=counters,
        copies=copies,
        operations=calls.operations(),
        gaps=(
            make_layer_gap(bool(kernels), False, "the file holds"),
            *(() if copies else (NO_COPIES,)),
            *(() if has_counters else (NO_COUNTERS,)),
            *(gap for process in processes for gap in process.unread_gaps()),
        ),
        diagnostics=(SERIAL,) if has_counters else (),
        duration_ns=_length(processes),
    )


class _Process:
    """The records of one process."""

    def __init__(self, record: Json) -> None:
        self.record = record
        self.buffered = _object(record.get("buffer_records"))
        self.counted = _objects(_object(record.get("callback_records")).get("counter_collection"))
        gpus = [
            agent
            for agent in _objects(record.get("agents"))
            if read_integer(agent.get("type")) == 2
        ]
        self.gpus = sorted(gpus, key=lambda agent: read_integer(agent.get("node_id")) or 0)
        self.ordinals = {
            read_object(_ID, agent)["id"]: index for index, agent in enumerate(self.gpus)
        }
        symbols = [read_object(_SYMBOL, row) for row in _objects(record.get("kernel_symbols"))]
        self.symbols = {symbol["kernel"]: symbol for symbol in symbols}
        self.counter_names = {
            read_object(_ID, row)["id"]: str(row.get("name"))
            for row in _objects(record.get("counters"))
        }

    def devices(self) -> Iterator[Device]:
        for index, agent in enumerate(self.gpus):
            yield make_device(index, agent.get("name"), agent.get("product_name"), agent)

    def read_launches(self, kernels: list[Kernel], counters: list[Counter]) -> None:
        """Append the dispatches of the trace, then those of counters that it does not have."""
        launches: dict[int | None, int] = {}
        for row in _objects(self.buffered.get("kernel_dispatch")):
            self._read_launch(row, row, launches, kernels, counters)
        for row in self.counted:
            data = _object(row.get("dispatch_data"))
            launch = launches.get(read_object(_DISPATCH, data)["dispatch"])
            if launch is None:
                launch = self._read_launch(data, row, launches, kernels, counters)
            values: dict[str, float] = {}
            for record in _objects(row.get("records")):
                number = read_object(_COUNTER_ID, record)["id"]
                name = self.counter_names.get(number, str(number))
                # instances are summed, as in the CSV
                if isinstance(value := record.get("value"), int | float):
                    values[name] = values.get(name, 0) + value
            counters += [make_counter(launch, name, value) for name, value in values.items()]

    def _read_launch(
        self,
        data: Json,
        row: Json,
        launches: dict[int | None, int],
        kernels: list[Kernel],
        counters: list[Counter],
    ) -> int:
        fields = read_object(_DISPATCH, data)
        fields |= self.symbols.get(fields["kernel"], _NO_SYMBOL) | read_object(_STREAM, row | data)
        launch = launches[fields["dispatch"]] = len(kernels)
        name = fields["name"] or "(no name in the file)"
        kernels.append(make_kernel(launch, name, self.ordinals.get(fields["agent"]), fields))
        counters += make_scratch(launch, fields["scratch"])
        return launch

    def copies(self) -> Iterator[Any]:
        for row in _objects(self.buffered.get("memory_copy")):
            fields = read_object(_COPY, row)
            target, source = (self.ordinals.get(fields[end]) for end in ("target", "source"))
            yield make_copy(self._operation(fields), target, source, fields)

    def read_calls(self, calls: Calls) -> None:
        for domain in API_DOMAINS:
            for row in _objects(self.buffered.get(domain)):
                fields = read_object(_TIMES, row)
                _, duration = read_span(fields)
                if duration is not None:
                    calls.add(domain, self._operation(fields), round(duration))

    def _operation(self, fields: Json) -> str:
        """Return the name of a record's operation, by ``strings``: its kind, and the number of the
        operation in it."""
        kind, number = fields["kind"], fields["operation"]
        kinds = _object(self.record.get("strings")).get("buffer_records")
        names = _object(_item(kinds, kind)).get("operations")
        name = _item(names, number)
        return f"operation {number} of kind {kind}" if name is None else str(name)

    def unread_gaps(self) -> Iterator[Gap]:
        """Yield one gap for each kind of records that has no reader."""
        for name, rows in self.buffered.items():
            is_read = name in ("kernel_dispatch", "memory_copy", "names", *API_DOMAINS)
            if not is_read and isinstance(rows, list) and rows:
                yield Gap(name, "not_available", f"{len(rows):,} records of {name} are not read")


def _length(processes: list[_Process]) -> int | None:
    """Return the ns from the first process's start to the last one's end."""
    facts = [_object(process.record.get("metadata")) for process in processes]
    times = [
        (read_integer(fact.get("init_time")), read_integer(fact.get("fini_time"))) for fact in facts
    ]
    spans = [(start, end) for start, end in times if start and end and start < end]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else None


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _item(values: object, index: int | None) -> object:
    """Return an element of a list; None for what is no list or has no such element."""
    is_inside = isinstance(values, list) and index is not None and 0 <= index < len(values)
    return values[index] if is_inside else None  # type: ignore[index]
