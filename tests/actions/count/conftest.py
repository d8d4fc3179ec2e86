"""Triton kernels compiled without a GPU, and PTX that ptxas of the triton wheel compiles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

LOOP = """.version 8.0
.target sm_80
.address_size 64
.visible .entry loop(.param .u64 p, .param .u32 n)
{
 .reg .pred %p<3>; .reg .f32 %f<4>; .reg .b32 %r<5>; .reg .b64 %rd<5>;
 ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2;
 ld.global.f32 %f1, [%rd3]; mov.u32 %r3, 0; setp.lt.s32 %p1, %r1, 1; @%p1 bra DONE;
AGAIN:
 .pragma "nounroll";
 ld.volatile.global.f32 %f2, [%rd1]; fma.rn.f32 %f1, %f1, %f2, %f2; add.s32 %r3, %r3, 1; setp.lt.s32 %p2, %r3, %r1; @%p2 bra AGAIN;
DONE:
 st.global.f32 [%rd3], %f1; ret;
}
"""


@pytest.fixture
def ptx(tmp_path: Path) -> Path:
    """A kernel ``loop`` with one multiply-add in each of n turns."""
    pytest.importorskip("triton", reason="its wheel has nvdisasm and ptxas")
    path = tmp_path / "loop.ptx"
    path.write_text(LOOP, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of Triton: ``add``, ``product`` (K an argument), ``fixed`` (K known) and ``tight`` (spills), for three GPUs."""
    pytest.importorskip("triton", reason="Triton compiles the kernels")
    folder = tmp_path_factory.mktemp("triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder))
        from tests.actions.count import triton_kernels

        for arch in (80, 90, 100):
            triton_kernels.compile_all(arch)
    yield folder
