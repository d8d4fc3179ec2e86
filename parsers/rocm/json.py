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
    ROCPROFV3,
    SERIAL,
    Calls,
    copy_kind,
    counter,
    device,
    groups,
    launched,
    no_kernels,
    no_layers,
    registers,
    scratch,
    span,
    whole,
)
from perfctl.parsers.text.json import peek, read_whole
from perfctl.records.errors import ReportError
from perfctl.records.report import Copy, Counter, Device, Gap, Kernel, Report

ROOT = "rocprofiler-sdk-tool"
_SMALLER = "Record with --output-format csv or rocpd, which have no limit, or copy the file again"
Json = dict[str, Any]


def sniff(path: Path, head: bytes) -> bool:
    """Return whether its first member is rocprofv3's."""
    return not path.is_dir() and peek(head[:4096]).lstrip()[:200].replace(" ", "").replace(
        "\n", ""
    ).startswith('{"' + ROOT)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off, too long, or has no process."""
    content = read_whole(path, ROCPROFV3, _SMALLER)
    processes = content.get(ROOT) if isinstance(content, dict) else None
    processes = [
        one
        for one in (processes if isinstance(processes, list) else [processes])
        if isinstance(one, dict)
    ]
    if not processes:
        raise ReportError(path, ROCPROFV3, f'"{ROOT}" holds no process', _SMALLER)
    found = [_Process(one) for one in processes]
    kernels: list[Kernel] = []
    counters: list[Counter] = []
    calls = Calls()
    for one in found:
        one.launches(kernels, counters)
        one.calls(calls)
    copies = [copy for one in found for copy in one.copies()]
    devices = {device.index: device for one in reversed(found) for device in one.devices()}
    used = {kernel.device_index for kernel in kernels}
    return Report(
        tool=ROCPROFV3,
        path=path,
        form="rocprofv3 JSON",
        devices=tuple(sorted(devices.values(), key=lambda one: (one.index not in used, one.index))),
        kernels=kernels,
        counters=counters,
        copies=copies,
        operations=tuple(calls.operations()),
        gaps=tuple(_gaps(found, kernels, copies)),
        diagnostics=(SERIAL,) if any(one.counted for one in found) else (),
        duration_ns=_length(found),
    )


class _Process:
    """The records of one process."""

    def __init__(self, record: Json) -> None:
        self.record = record
        self.buffered, self.called = (
            _object(record.get(f"{kind}_records")) for kind in ("buffer", "callback")
        )
        gpus = [agent for agent in _objects(record.get("agents")) if whole(agent.get("type")) == 2]
        self.gpus = sorted(gpus, key=lambda agent: whole(agent.get("node_id")) or 0)
        self.ordinals = {_handle(agent.get("id")): place for place, agent in enumerate(self.gpus)}
        self.symbols = {
            whole(one.get("kernel_id")): one for one in _objects(record.get("kernel_symbols"))
        }
        self.names = {
            _handle(one.get("id")): str(one.get("name")) for one in _objects(record.get("counters"))
        }
        self.counted = _objects(self.called.get("counter_collection"))

    def devices(self) -> Iterator[Device]:
        for place, agent in enumerate(self.gpus):
            yield device(place, agent.get("name"), agent.get("product_name"), agent)

    def launches(self, kernels: list[Kernel], counters: list[Counter]) -> None:
        """Dispatches of the trace, then those of counters that it does not have."""
        numbers: dict[int | None, int] = {}
        for row in _objects(self.buffered.get("kernel_dispatch")):
            self._launch(row, row, numbers, kernels, counters)
        for row in self.counted:
            data = _object(row.get("dispatch_data"))
            number = numbers.get(whole(_object(data.get("dispatch_info")).get("dispatch_id")))
            if number is None:
                number = self._launch(data, row, numbers, kernels, counters)
            values: dict[str, float] = {}
            for one in _objects(row.get("records")):
                name = self.names.get(
                    _handle(one.get("counter_id")), str(_handle(one.get("counter_id")))
                )
                # instances are summed, as in the CSV
                if isinstance(value := one.get("value"), int | float):
                    values[name] = values.get(name, 0) + value
            counters += [counter(number, name, value) for name, value in values.items()]

    def _launch(
        self,
        data: Json,
        row: Json,
        numbers: dict[int | None, int],
        kernels: list[Kernel],
        counters: list[Counter],
    ) -> int:
        info, launch = _object(data.get("dispatch_info")), len(kernels)
        symbol = self.symbols.get(whole(info.get("kernel_id")), {})
        name = (
            symbol.get("formatted_kernel_name")
            or symbol.get("demangled_kernel_name")
            or symbol.get("kernel_name")
        )
        grid, block = (
            [whole(_object(info.get(f"{what}_size")).get(axis)) for axis in "xyz"]
            for what in ("grid", "workgroup")
        )
        static, total = (
            whole(symbol.get("group_segment_size")),
            whole(info.get("group_segment_size")),
        )
        dynamic = (
            total - static if total is not None and static is not None and total >= static else None
        )
        kernels.append(
            launched(
                launch,
                str(name or "(no name in the file)"),
                self.ordinals.get(_handle(info.get("agent_id"))),
                _handle(row.get("stream_id", info.get("queue_id"))),
                *map(groups, grid, block),
                *block,
                registers(
                    whole(symbol.get("arch_vgpr_count")), whole(symbol.get("accum_vgpr_count"))
                ),
                static,
                dynamic,
                *span(data.get("start_timestamp"), data.get("end_timestamp")),
            )
        )
        counters += scratch(launch, whole(info.get("private_segment_size")))
        numbers[whole(info.get("dispatch_id"))] = launch
        return launch

    def copies(self) -> Iterator[Copy]:
        for row in _objects(self.buffered.get("memory_copy")):
            start, duration = span(row.get("start_timestamp"), row.get("end_timestamp"))
            target, source = (
                self.ordinals.get(_handle(row.get(f"{end}_agent_id"))) for end in ("dst", "src")
            )
            length = None if duration is None else round(duration)
            place = target if target is not None else source
            yield Copy(
                copy_kind(self._operation(row)), whole(row.get("bytes")), start, length, None, place
            )

    def calls(self, calls: Calls) -> None:
        for domain in ("hip_api", "hsa_api", "rccl_api", "rocdecode_api", "rocjpeg_api"):
            for row in _objects(self.buffered.get(domain)):
                start, duration = span(row.get("start_timestamp"), row.get("end_timestamp"))
                if start is not None and duration is not None:
                    calls.add(domain, self._operation(row), round(duration))

    def _operation(self, row: Json) -> str:
        """Name of a record's operation, by ``strings``: its kind, and the number of the operation
        in it."""
        strings = _object(self.record.get("strings")).get("buffer_records")
        kinds = strings if isinstance(strings, list) else []
        kind, number = whole(row.get("kind")), whole(row.get("operation"))
        names = (
            _object(kinds[kind]).get("operations")
            if kind is not None and 0 <= kind < len(kinds)
            else None
        )
        if isinstance(names, list) and number is not None and 0 <= number < len(names):
            return str(names[number])
        return f"operation {number} of kind {kind}"

    def others(self) -> Iterator[tuple[str, int]]:
        """(name, rows) of records that have no reader."""
        read = (
            "kernel_dispatch",
            "memory_copy",
            "hip_api",
            "hsa_api",
            "rccl_api",
            "rocdecode_api",
            "rocjpeg_api",
            "names",
        )
        for name, rows in self.buffered.items():
            if name not in read and isinstance(rows, list) and rows:
                yield name, len(rows)


def _gaps(found: list[_Process], kernels: list[Kernel], copies: list[Copy]) -> Iterator[Gap]:
    yield no_layers(ranges=False) if kernels else no_kernels("the file holds no launch")
    if not copies:
        yield Gap(
            "copy",
            "not_collected",
            "no copy was recorded: none ran, or rocprofv3 ran without --memory-copy-trace",
        )
    if not any(one.counted for one in found):
        yield Gap("counter", "not_collected", "rocprofv3 ran without counters (--pmc)")
    for one in found:
        for name, count in one.others():
            yield Gap(name, "not_available", f"{count:,} records of {name} are not read")


def _length(found: list[_Process]) -> int | None:
    times = [_object(one.record.get("metadata")) for one in found]
    known = [(whole(one.get("init_time")), whole(one.get("fini_time"))) for one in times]
    spans = [(begin, end) for begin, end in known if begin and end and begin < end]
    return max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else None


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _handle(value: object) -> int | None:
    return whole(value.get("handle")) if isinstance(value, dict) else whole(value)
