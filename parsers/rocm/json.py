"""``results.json`` of rocprofv3 (``--output-format json``), by the layout that its documentation
and tests describe.

One object a process below "rocprofiler-sdk-tool": ``agents``, ``kernel_symbols`` and ``counters``
explain the numbers in ``buffer_records`` (kernel_dispatch, memory_copy, ..._api) and
``callback_records`` (counter_collection). Of ``metadata`` only times are read. The file is read
whole, so long recordings belong into CSV or ``results.db``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfctl.parsers.common.json import peek, read_whole
from perfctl.parsers.common.numbers import read_integer
from perfctl.parsers.common.tables import Column, read_object, read_text
from perfctl.parsers.rocm.records import (
    API_DOMAINS,
    ROCPROFV3,
    SERIAL,
    Calls,
    find_missing,
    make_copy,
    make_counter,
    make_device,
    make_kernel,
    make_scratch,
    measure_span,
    order_devices,
    read_span,
    read_stamp,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Copy, Counter, Device, Gap, Kernel, Report

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
    records = _read_objects(root if isinstance(root, list) else [root])
    if not records:
        raise ReportError(path, ROCPROFV3, f'"{ROOT}" holds no process', _SMALLER)
    reader = _Reader()
    for record in records:
        reader.read_process(record)
    kernels = reader.kernels
    return Report(
        tool=ROCPROFV3,
        path=path,
        form="rocprofv3 JSON",
        devices=order_devices(reader.devices, {kernel.device_index for kernel in kernels}),
        kernels=kernels,
        counters=reader.counters,
        copies=reader.copies,
        operations=reader.calls.operations(),
        gaps=(
            *find_missing(
                has_kernels=bool(kernels),
                has_ranges=False,
                has_copies=bool(reader.copies),
                has_counters=reader.has_counters,
            ),
            *reader.gaps,
        ),
        diagnostics=(SERIAL,) if reader.has_counters else (),
        duration_ns=measure_span(reader.times),
    )


class _Reader:
    """Collects the records of one process after another."""

    def __init__(self) -> None:
        self.devices: dict[int, Device] = {}
        self.kernels: list[Kernel] = []
        self.counters: list[Counter] = []
        self.copies: list[Copy] = []
        self.calls = Calls()
        self.gaps: list[Gap] = []
        self.times: list[tuple[object, object]] = []
        """Start and end of each process in ns."""
        self.has_counters = False
        self._ordinals: dict[object, int] = {}
        """Agent of the process -> ordinal among its GPUs."""
        self._symbols: dict[object, Json] = {}

    def read_process(self, record: Json) -> None:
        """Add the records of a process."""
        times = read_object(_METADATA, record)
        self.times.append((times["start"], times["end"]))
        agents = _read_objects(record.get("agents"))
        gpus = [agent for agent in agents if read_integer(agent.get("type")) == 2]
        gpus.sort(key=lambda agent: read_integer(agent.get("node_id")) or 0)
        self._ordinals = {read_object(_ID, gpu)["id"]: index for index, gpu in enumerate(gpus)}
        for index, gpu in enumerate(gpus):
            device = make_device(index, gpu.get("name"), gpu.get("product_name"), gpu)
            self.devices.setdefault(index, device)
        symbols = [read_object(_SYMBOL, row) for row in _read_objects(record.get("kernel_symbols"))]
        self._symbols = {symbol["kernel"]: symbol for symbol in symbols}
        self._read_launches(record)
        names = _read_object(record.get("strings")).get("buffer_records")
        for kind, rows in _read_object(record.get("buffer_records")).items():
            if kind == "memory_copy":
                for row in _read_objects(rows):
                    fields = read_object(_COPY, row)
                    target, source = (
                        self._ordinals.get(fields[end]) for end in ("target", "source")
                    )
                    word = _name_operation(names, fields)
                    self.copies.append(make_copy(word, target, source, fields))
            elif kind in API_DOMAINS:
                for row in _read_objects(rows):
                    fields = read_object(_TIMES, row)
                    _, duration = read_span(fields)
                    if duration is not None:
                        self.calls.add(kind, _name_operation(names, fields), round(duration))
            elif kind not in ("kernel_dispatch", "names") and isinstance(rows, list) and rows:
                reason = f"{len(rows):,} records of {kind} are not read"
                self.gaps.append(Gap(kind, "not_available", reason))

    def _read_launches(self, record: Json) -> None:
        """Add the dispatches of the trace, then those of counters that it does not have."""
        launches: dict[int | None, int] = {}
        buffered = _read_object(record.get("buffer_records"))
        for row in _read_objects(buffered.get("kernel_dispatch")):
            self._read_launch(row, row, launches)
        counter_names = {
            read_object(_ID, row)["id"]: str(row.get("name"))
            for row in _read_objects(record.get("counters"))
        }
        callbacks = _read_object(record.get("callback_records"))
        for row in _read_objects(callbacks.get("counter_collection")):
            self.has_counters = True
            data = _read_object(row.get("dispatch_data"))
            launch = launches.get(read_object(_DISPATCH, data)["dispatch"])
            if launch is None:
                launch = self._read_launch(data, row, launches)
            values: dict[str, float] = {}
            for value in _read_objects(row.get("records")):
                number = read_object(_COUNTER_ID, value)["id"]
                name = counter_names.get(number, str(number))
                # instances are summed, as in the CSV
                if isinstance(instance := value.get("value"), int | float):
                    values[name] = values.get(name, 0) + instance
            self.counters += [make_counter(launch, name, value) for name, value in values.items()]

    def _read_launch(self, data: Json, row: Json, launches: dict[int | None, int]) -> int:
        fields = read_object(_DISPATCH, data)
        fields |= self._symbols.get(fields["kernel"], _NO_SYMBOL) | read_object(_STREAM, row | data)
        launch = launches[fields["dispatch"]] = len(self.kernels)
        name = fields["name"] or "(no name in the file)"
        device = self._ordinals.get(fields["agent"])
        self.kernels.append(make_kernel(launch, name, device, fields))
        self.counters += make_scratch(launch, fields["scratch"])
        return launch


def _name_operation(kinds: object, fields: Json) -> str:
    """Return the name of a record's operation by ``strings``: its kind, and the number of the
    operation in it."""
    kind, number = fields["kind"], fields["operation"]
    names = _read_object(_get_item(kinds, kind)).get("operations")
    name = _get_item(names, number)
    return f"operation {number} of kind {kind}" if name is None else str(name)


def _read_object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _read_objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _get_item(values: object, index: int | None) -> object:
    """Return an element of a list; None for what is no list or has no such element."""
    is_inside = isinstance(values, list) and index is not None and 0 <= index < len(values)
    return values[index] if is_inside else None  # type: ignore[index]
