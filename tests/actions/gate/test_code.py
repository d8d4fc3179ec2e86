"""The gate holds machine code, and Triton kernels that are compiled without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfctl.orchestrator.actions.count.static import static
from perfctl.orchestrator.actions.gate import compiled, gate
from perfctl.orchestrator.actions.traces import entries
from perfctl.orchestrator.analyse.derived.code.records import Static
from perfctl.orchestrator.analyse.gate.measure import of_code
from perfctl.orchestrator.analyse.gate.records import CHANGED, WORSE, Outcome, Place
from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.launch.code import binaries
from perfctl.records.compiled import KernelAsked
from perfctl.records.sass import KernelCode, Listed
from perfctl.workloads.models.source import ModelError

FUSED = 3
"""Multiply-adds of the kernel in PTX."""
BLOCK = 512
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry chain(.param .u64 p)
.reqntid 64, 1, 1
{
LOCAL .reg .f32 %f<4>; .reg .b32 %r<3>; .reg .b64 %rd<5>;
 ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
 ld.global.f32 %f1, [%rd3]; ld.global.f32 %f2, [%rd1];
BODY
 st.global.f32 [%rd3], %f1; ret;
}
"""
TRITON = """
import triton
import triton.language as tl


@triton.jit
def scale(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 2.0, mask=at < n)
"""
ASKED = {"targets": ["sm_90"], "signature": "x=*fp32,n=i32:16"}


def written(path: Path, multiply_adds: int, local: bool = False) -> Path:
    """A kernel ``chain`` in PTX; ``local``: it keeps a value in local memory at an address that only the launch knows."""
    body = " fma.rn.f32 %f1, %f1, %f2, %f2;\n" * multiply_adds
    if local:
        body += (
            " mov.u64 %rd4, kept; add.s64 %rd3, %rd4, %rd2; st.local.f32 [%rd3], %f1; mov.b32 %r2, %f2; and.b32 %r2, %r2, 124;\n"
            " cvt.u64.u32 %rd3, %r2; add.s64 %rd4, %rd4, %rd3; ld.local.f32 %f1, [%rd4]; add.s64 %rd3, %rd1, %rd2;\n"
        )
    path.write_text(
        PTX.replace("BODY\n", body).replace("LOCAL", " .local .align 4 .b8 kept[256];\n" if local else ""),
        encoding="utf-8",
    )
    return path


def rows(outcome: Outcome) -> dict[str, tuple[object, object, str]]:
    return {row.quantity: (row.before, row.after, row.verdict) for row in outcome.rows}


@pytest.fixture
def tools() -> None:
    pytest.importorskip("triton", reason="its wheel has nvdisasm and ptxas")


@pytest.mark.usefixtures("tools")
def test_one_more_multiply_add_and_local_memory_are_seen_in_the_code(tmp_path: Path) -> None:
    file, baseline = written(tmp_path / "chain.ptx", FUSED), tmp_path / "gate.json"
    gate.update(baseline, [gate.code(file, "sm_80")])
    assert '"code": "chain.ptx"' in baseline.read_text(encoding="utf-8")
    (same,) = gate.gate(baseline)
    assert not same.failed and not same.undecided
    written(file, FUSED + 1, local=True)
    (other,) = gate.gate(baseline)
    assert other.problems == ()
    found = rows(other)
    before, after, verdict = found["instructions"]
    assert isinstance(before, dict) and isinstance(after, dict)
    assert verdict == CHANGED and (before["FFMA"], after["FFMA"]) == (FUSED, FUSED + 1)
    assert found["flops"] == (2 * 64 * FUSED, 2 * 64 * (FUSED + 1), WORSE)
    assert found["local_instructions"] == (0, 2, WORSE)
    assert found["spill_bytes"][2] == WORSE


@pytest.mark.usefixtures("tools")
def test_without_nvdisasm_the_headers_are_held_and_the_rest_is_said_to_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with binaries.compiled(written(tmp_path / "chain.ptx", FUSED), "sm_80") as made:
        cubin = made.replace(tmp_path / "chain.cubin")

    def none(name: str) -> binaries.Binary:
        raise ToolMissing(f"{name} was not found", "Install it")

    monkeypatch.setattr(binaries, "find", none)
    found = of_code(static(cubin))
    ((place, values),) = found.places.items()
    assert set(values) == {"registers", "shared_bytes", "spill_bytes"}
    assert "nvdisasm was not found" in found.unknown[f"{place.name}: instructions"]


def test_kernels_of_one_name_that_differ_are_not_held() -> None:
    one, other = (Static(Listed(KernelCode("k", 90, 1, registers), "k"), {}, 0) for registers in (32, 40))
    assert of_code([one, one]).places[Place(kernel="k (sm_90)")]["registers"] == 32
    found = of_code([one, other])
    assert not found.places
    assert "2 kernels have this name" in found.unknown["k (sm_90)"]


def test_a_triton_kernel_is_held_for_a_gpu_that_is_not_there_and_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="Triton compiles the kernel")
    monkeypatch.delenv(entries.OFF)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    file, baseline = tmp_path / "code" / "own.py", tmp_path / "gate.json"
    file.parent.mkdir()
    file.write_text(TRITON, encoding="utf-8")
    os.utime(file, (1e9, 1e9))  # what is newer than the process that imports it is not kept
    gate.update(baseline, [gate.triton(f"{file}:scale", **ASKED, constants={"BLOCK": str(BLOCK)})])
    with monkeypatch.context() as patch:
        patch.setattr(compiled.subprocess, "run", None)  # a second call starts no process
        (same,) = gate.gate(baseline)
    assert not same.failed and not same.undecided
    assert rows(same)["flops"][1] == BLOCK
    file.write_text(TRITON.replace("+ 2.0", "* 3.0 + 2.0"), encoding="utf-8")
    (other,) = gate.gate(baseline)
    assert rows(other)["flops"] == (BLOCK, 2 * BLOCK, WORSE)
    assert rows(other)["instructions"][2] == CHANGED


@pytest.mark.parametrize(
    ("given", "said"),
    [({"triton": "own.py"}, "is not a kernel"), ({"triton": "own.py:scale"}, "needs `targets`"),
     ({"triton": "own.py:scale", "targets": ["h100"]}, "not a GPU that Triton compiles for"),
     ({"triton": "own.py:scale", "targets": ["sm_70"]}, "does not compile for sm_70"),
     ({"triton": "own.py:scale", **ASKED, "signature": "x:fp32"}, "`signature`"),
     ({"triton": "own.py:scale", **ASKED, "warps": 3}, "`warps` must be")],
)  # fmt: skip
def test_a_triton_kernel_that_cannot_be_is_refused_before_anything_runs(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compiled.kernel_asked(given, Path())


@pytest.mark.parametrize(
    ("kernel", "signature", "constants", "said"),
    [("nothing", (), (), "there is no nothing"), ("scale", (("x", "*fp32"), ("n", "i32")), (), "nothing says what BLOCK"),
     ("scale", (("y", "*fp32"),), (), "no argument 'y'"), ("scale", (("x", "*fp32"),), (("x", "1"),), "a type and a value"),
     ("scale", (("x", "*fp32"), ("n", "i32")), (("BLOCK", "500"),), "power of 2")],
)  # fmt: skip
def test_arguments_that_do_not_fit_a_kernel_are_one_clear_line(
    tmp_path: Path,
    kernel: str,
    signature: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, str], ...],
    said: str,
) -> None:
    pytest.importorskip("triton", reason="Triton reads the kernel")
    from perfctl.workloads.compiling import triton_kernel

    file = tmp_path / "own.py"
    file.write_text(TRITON, encoding="utf-8")
    with pytest.raises(ModelError, match=said) as raised:
        list(triton_kernel.compiled(KernelAsked(str(file), kernel, (90,), signature, constants), tmp_path))
    assert "\n" not in raised.value.message
