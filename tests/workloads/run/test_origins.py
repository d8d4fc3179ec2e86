"""The lines that fused kernels come from, in the trace that perfctl writes: by torch's own code, on
a made-up trace."""

import json

import pytest

torch = pytest.importorskip("torch")
profiler = pytest.importorskip("torch._inductor.profiler")
if not hasattr(profiler, "_add_inductor_provenance"):
    pytest.skip(
        "this torch adds no lines of origins to traces (2.14 does)", allow_module_level=True
    )

from perfctl.parsers.kineto import trace as kineto_trace  # noqa: E402
from perfctl.workloads.run.clock import _add_inductor_source_lines  # noqa: E402
from tests.make.kineto import kernel, launch, operation  # noqa: E402
from tests.parsers.served.test_origins import STACKS  # noqa: E402

REGION, NAME = "Torch-Compiled Region: 0/0", "triton_poi_fused_add_gelu_0"


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """A kernel that was launched inside a compiled region, of which Inductor knows three lines."""
    known = {str((REGION, False)): {f"{NAME}:1": {"stack_traces": list(STACKS[:3])}}}
    monkeypatch.setattr("torch._inductor.debug._kernel_information_jsons", known)
    path = tmp_path / "trace.json"
    events = [
        operation(REGION, 0, 40, 1),
        operation(NAME, 10, 5, 2),
        launch(11, 5),
        kernel(NAME, 50, 12, 2, 5),
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_trace_has_the_modules_of_fused_kernels_where_the_user_asked_for_lines(
    trace, monkeypatch
):
    monkeypatch.setenv("TORCH_COMPILE_DEBUG_EXTEND", "1")
    _add_inductor_source_lines(trace)
    found = kineto_trace.parse(trace)
    assert {part.layer: part.share for part in found.kernel_parts} == {
        "block.norm": 1 / 3,
        "block": 1 / 3,
        "block.act": 1 / 3,
    }


def test_without_being_asked_the_trace_stays_as_it_is(trace, monkeypatch):
    monkeypatch.delenv("TORCH_COMPILE_DEBUG_EXTEND", raising=False)
    before = trace.read_bytes()
    _add_inductor_source_lines(trace)
    assert trace.read_bytes() == before


def test_an_error_of_torch_s_leaves_the_trace_as_it_is(trace, monkeypatch):
    monkeypatch.setenv("TORCH_COMPILE_DEBUG_EXTEND", "1")
    trace.write_text("{")
    _add_inductor_source_lines(trace)
    assert trace.read_text() == "{"
