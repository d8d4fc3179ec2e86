"""Events in the layout that Kineto writes are read as text: what comes out is what their
JSON says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers.kineto.collect import Collector, collect
from perfctl.parsers.kineto.events import Events
from perfctl.parsers.text.json import JsonStream

STEPS = 3
SHAPES = (
    '"Concrete Inputs": ["", "[1, 1]"], "Input type": ["float", "ScalarList"], "Input Dims": [[4, '
    "{width}, 26], []]"
)


def laid_out(category: str, name: str, at: str, lasted: str, args: str, *, thread: int = 11) -> str:
    return f"""  {{
    "ph": "X", "cat": "{category}", "name": "{name}", "pid": 10, "tid": {thread},
    "ts": {at}, "dur": {lasted},
    "args": {{
      {args}
    }}
  }}"""


def arrow(kind: str, number: int) -> str:
    end = ', "bp": "e"' if kind == "f" else ""
    return f"""  {{
    "ph": "{kind}", "id": {number}, "pid": 10, "tid": 11, "ts": 5437.123,
    "cat": "ac2g", "name": "ac2g"{end}
  }}"""


def step(number: int) -> list[str]:
    """One operator with its launch, kernel and copy; times with three digits, with one,
    and whole."""
    external, correlation, at = 100 + number, 900 + number, 1000 * number
    op = (
        f'"External id": {external},"Record function id": 0, "Sequence number": {number}, "Fwd '
        'thread id": 0, '
    )
    op += f'{SHAPES.format(width=3 + number % 2)}, "Ev Idx": {number}'
    grid = (
        '"registers per thread": 64, "shared memory": 0, "grid": [264, 1, 1], "block": [256, 1, 1]'
    )
    kernel = (
        f'"External id": {external}, "device": 0, "stream": 7, "correlation": {correlation}, {grid}'
    )
    launch = f'"External id": {external}, "cbid": 211, "correlation": {correlation}'
    function = f'"Python id": {number}, "Python parent id": 1, "Ev Idx": {number}'
    copy = (
        f'"External id": {external}, "device": 0, "stream": 7, "correlation": {correlation + 50}, '
        '"bytes": 4096'
    )
    return [
        laid_out(
            "user_annotation",
            f"ProfilerStep#{number}",
            f"{at}",
            "900",
            f'"External id": {external + 50}',
        ),
        laid_out("cpu_op", "aten::mm", f"{at + 1}.125", "8.214", op),
        laid_out("cuda_runtime", "cudaLaunchKernel", f"{at + 2}.5", "4", launch),
        arrow("s", correlation),
        laid_out(
            "kernel", "void gemm<float, (int)4>(T1 *)", f"{at + 9}.001", "3.044", kernel, thread=7
        ),
        arrow("f", correlation),
        laid_out("gpu_memcpy", "Memcpy HtoD", f"{at + 20}.001", "3.044", copy, thread=7),
        laid_out("python_function", "train.py(3): step", f"{at}.5", "80.25", function),
    ]


TRACE = [event for number in range(STEPS) for event in step(number)]


def decoded(texts: list[str]) -> Events:
    events: list[Any] = json.loads(f"[{','.join(texts)}]", parse_float=str)
    return collect(events, op_calls=True)


def streamed(path: Path, texts: list[str]) -> Events:
    collector = Collector(op_calls=True)
    path.write_text(f'{{"traceEvents": [{",".join(texts)}]}}')
    stream = JsonStream(path, "torch", "traceEvents", collector.take)
    return collector.run(value for _, value in stream.members())


def test_a_whole_trace_is_taken_as_text_and_says_what_its_json_says(tmp_path: Path) -> None:
    text = ",\n".join(TRACE)
    collector = Collector(op_calls=True)
    assert collector.take(text, 0) == (len(text), len(TRACE))
    assert collector.found == decoded(TRACE) == streamed(tmp_path / "trace.json", TRACE)
    found = collector.found
    assert [span.start for span in found.spans] == [
        at for n in range(STEPS) for at in (1_000_000 * n, 1_000_000 * n + 1125)
    ]
    assert [event.correlation for event in found.kernels] == [900 + n for n in range(STEPS)]
    assert [shapes for shapes, _ in found.arguments] == [
        None,
        "[[4, 3, 26], []]",
        "[[4, 4, 26], []]",
    ]


def test_the_end_of_what_was_read_may_lie_anywhere_in_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (97, 500, 1303):
        monkeypatch.setattr("perfctl.parsers.text.json.CHUNK_BYTES", size)
        assert streamed(tmp_path / f"{size}.json", TRACE) == decoded(TRACE)


ODD = {
    "a quote in a name": ("cpu_op", r"say \"aten::mm\"", "1.125", "8", '"External id": 1'),
    "a brace in an argument": (
        "cpu_op",
        "aten::mm",
        "1.125",
        "8",
        '"External id": 1, "Concrete Inputs": ["}", "{"]',
    ),
    "an object in an argument": (
        "cpu_op",
        "aten::mm",
        "1.125",
        "8",
        '"External id": 1, "more": {"External id": 2}',
    ),
    "an id twice": ("cpu_op", "aten::mm", "1.125", "8", '"External id": 1, "External id": 2'),
    "an id at the end": ("cpu_op", "aten::mm", "1.125", "8", '"Ev Idx": 4, "External id": 2'),
    "an old id": ("kernel", "k", "1.125", "8", '"external id": 2, "correlation": 5, "device": 0'),
    "a correlation twice": (
        "kernel",
        "k",
        "1.125",
        "8",
        '"correlation": 4, "correlation": 5, "device": 0',
    ),
    "a correlation without a blank": ("kernel", "k", "1.125", "8", '"correlation":5, "device": 0'),
    "a correlation as text": ("kernel", "k", "1.125", "8", '"correlation": "5", "device": 0'),
    "a correlation with a fraction": (
        "kernel",
        "k",
        "1.125",
        "8",
        '"correlation": 5.5, "device": 0',
    ),
    "a word like an argument": (
        "kernel",
        "k",
        "1.125",
        "8",
        r'"note": "a \"correlation\": 7", "correlation": 5',
    ),
    "a sequence number below 0": (
        "cpu_op",
        "aten::mm",
        "1.125",
        "8",
        '"Sequence number": -1, "Fwd thread id": 0',
    ),
    "no arguments": ("cuda_runtime", "cudaFree", "1.125", "8", ""),
    "more digits": ("cpu_op", "aten::mm", "1.1254", "8.00049", '"External id": 1'),
    "fewer digits": ("cpu_op", "aten::mm", "1.1", "8.04", '"External id": 1'),
    "an exponent": ("cpu_op", "aten::mm", "1e3", "8", '"External id": 1'),
    "never ended": ("cpu_op", "aten::mm", "1.125", "-1", '"External id": 1'),
    "not used": ("gpu_user_annotation", "ProfilerStep#1", "1.125", "8", '"External id": 1'),
    "unknown": ("gpu_dma", "x", "1.125", "8", '"External id": 1'),
}


@pytest.mark.parametrize("what", ODD)
def test_an_event_that_is_laid_out_otherwise_says_what_its_json_says(
    what: str, tmp_path: Path
) -> None:
    texts = [*step(0), laid_out(*ODD[what]), *step(1), laid_out(*ODD[what]), arrow("s", 7)]
    assert streamed(tmp_path / "trace.json", texts) == decoded(texts)


@pytest.mark.parametrize(
    "args", ['"External id": 1, "a": 5 5', '"External id": 1, "a": [1', '"a": "x', '"Ev Idx": 4,']
)
def test_broken_arguments_are_not_taken(args: str) -> None:
    text = laid_out("cpu_op", "aten::mm", "1.125", "8", args)
    assert Collector(op_calls=True).take(text, 0) == (0, 0)
