"""``perfctl.count`` on Triton kernels, PTX and files that are no code."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfctl
from perfctl.orchestrator.actions.count import find, kept, launches
from perfctl.orchestrator.actions.count.count import count, kernels
from perfctl.orchestrator.actions.traces import entries
from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.launch.code import binaries
from perfctl.records.errors import ReportError
from perfctl.records.report import Kernel

GPUS = (80, 90, 100)
TILE, DEPTH, BLOCK, THREADS = 64, 32, 1024, 128
"""Sides of the product's tile, its step along the sum, elements of a block of ``add``, threads of four warps."""
TURNS, WIDTH = 37, 96


@pytest.mark.parametrize("arch", GPUS)
def test_a_vector_add_has_one_fadd_for_each_element(triton_cache: Path, arch: int) -> None:
    found = count(triton_cache, "add", grid=(7, 1, 1), arch=f"sm_{arch}")
    fadd = next(one for one in found.counted if one.kind.name == "FADD")
    assert fadd.launch is not None
    assert fadd.launch.exact
    assert fadd.launch.whole == 7 * BLOCK
    assert found.flops is not None
    assert found.flops.whole == 7 * BLOCK
    assert found.unknown == ()


@pytest.mark.parametrize("arch", GPUS)
def test_a_product_has_two_flops_for_each_multiply_add_of_its_shape(triton_cache: Path, arch: int) -> None:
    m, n, k = 3 * TILE, 2 * TILE, 9 * DEPTH
    found = count(triton_cache, "product", grid=(m // TILE, n // TILE, 1), shape=(m, n, k), arch=f"sm_{arch}")
    assert found.flops is not None
    assert found.flops.whole == found.flops.high == 2 * m * n * k
    tensor = [one for one in found.counted if one.kind.path == "tensor"]
    assert [one.kind.name.partition(".")[0] for one in tensor] == [{80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}[arch]]
    assert f"K = {k}" in next(loop.source for loop in found.loops if any("MMA" in name for name, _ in loop.each_turn))


def test_without_its_shape_a_product_is_at_least_one_turn_and_says_what_would_help(triton_cache: Path) -> None:
    found = count(triton_cache, "product", grid=(1, 1, 1), arch="sm_80")
    assert found.flops is not None
    assert found.flops.at_least
    assert found.flops.least == 2 * TILE * TILE * DEPTH
    assert "`arguments` K=VALUE" in found.unknown[0]
    stated = count(triton_cache, "product", grid=(1, 1, 1), arch="sm_80", trips={"L0": 5})
    assert stated.flops is not None
    assert stated.flops.whole == 2 * TILE * TILE * 5 * DEPTH


def test_a_kernel_that_spills_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from tests.actions.count import triton_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    k = 4 * DEPTH
    triton_kernels.compile_fixed(80, k, maxnreg=40, num_warps=1)
    found = count(tmp_path, "product", grid=(1, 1, 1))
    assert found.local_instructions > 0
    assert found.kernel.stack_bytes
    assert found.flops is not None
    assert found.flops.whole == 2 * TILE * TILE * k


def test_launches_of_a_run_get_rows_by_name_threads_and_registers(triton_cache: Path) -> None:
    listed = {(one.name, one.kernel.arch): one for one in kernels(triton_cache)}
    registers = listed["add", 80].kernel.registers
    size = {"grid_x": 5, "grid_y": 1, "grid_z": 1, "block_x": THREADS, "block_y": 1, "block_z": 1}
    run = [
        Kernel(0, "add", registers=registers, **size), Kernel(1, "something else", **size),
        Kernel(2, "add", registers=255, **size), Kernel(3, "add", **{**size, "block_x": 2 * THREADS}),
    ]  # fmt: skip
    rows = list(launches.code_rows(run, "sm_80", [triton_cache]))
    assert [(row[0], row[1], row[2], row[4]) for row in rows] == [(0, "FADD", 5 * BLOCK, None)]
    assert rows[0][3].startswith("read from code")


def test_rows_whose_loop_turns_are_not_known_are_marked(triton_cache: Path) -> None:
    run = [Kernel(0, "product", grid_x=1, grid_y=1, grid_z=1, block_x=THREADS, block_y=1, block_z=1)]
    instructions, flops = launches.code_rows(run, "sm_80", [triton_cache])
    assert "at least" in instructions[3] and "at least" in flops[3]
    assert flops[1] == "tensor FLOP" and flops[2] > 0


def test_ptx_is_compiled_for_the_gpu_that_is_named(ptx: Path) -> None:
    for arch in ("sm_80", "sm_90"):
        found = count(ptx, "loop", grid=(2, 1, 1), block=(WIDTH, 1, 1), arguments={"1": TURNS}, arch=arch)
        ffma = next(one for one in found.counted if one.kind.name == "FFMA")
        assert ffma.launch is not None
        assert ffma.launch.whole == TURNS * 2 * WIDTH
    with pytest.raises(UsageError, match="Name the GPU"):
        count(ptx, "loop")
    with pytest.raises(PerfctlError, match="ptxas says"):
        count(ptx, "loop", arch="sm_20")


def test_a_second_call_starts_no_tool(ptx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(entries.OFF)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = count(ptx, "loop", arch="sm_80", arguments={"1": TURNS})
    monkeypatch.setattr(binaries, "_run", None)
    assert count(ptx, "loop", arch="sm_80", arguments={"1": TURNS}) == first
    again = count(ptx, "loop", arch="sm_80", arguments={"1": TURNS}, trips={"L0": 2 * TURNS})
    assert again.counted[0].each.whole == 2 * TURNS  # turns are no part of what is kept
    kept_text = b"".join(file.read_bytes() for file in (tmp_path / "cache").rglob("*.gz"))
    assert b"IMAD" not in kept_text
    ptx.write_text(ptx.read_text(encoding="utf-8") + "// changed\n", encoding="utf-8")
    with pytest.raises(TypeError):  # another content: the tool would be started
        count(ptx, "loop", arch="sm_80", arguments={"1": TURNS})


def test_a_name_that_fits_several_kernels_is_asked_for(triton_cache: Path) -> None:
    with pytest.raises(UsageError, match="fits 3 kernels"):
        count(triton_cache, "add")
    with pytest.raises(UsageError, match="holds no 'nothing'"):
        count(triton_cache, "nothing")


def test_names_are_demangled_and_a_star_stands_for_anything() -> None:
    mangled = "_ZN2at6native12kernel_namedILi4EfEEvPT0_"
    (name,) = find.demangled([mangled])
    if name == mangled:
        pytest.skip("no C++ library that demangles")
    assert name == "void at::native::kernel_named<4, float>(float*)"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "it is empty"), (b"hello\n", "it is not GPU code"), (b"\x7fELF\x02\x01\x01" + bytes(20), "cut off"),
     (b"!<arch>\n", "ar x"), (b"\x7fELF" + b"\xff" * 200, "not GPU code"), (bytes(4096), "not GPU code")],
)  # fmt: skip
def test_what_is_no_code_is_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file.cubin"
    path.write_bytes(content)
    with pytest.raises(ReportError) as raised:
        count(path, "kernel")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_huge_file_that_is_no_code_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.cubin"
    with path.open("wb") as file:
        file.truncate(5 << 30)
    assert not kept._may_be_code(path)
    with pytest.raises(ReportError, match="not GPU code"):
        count(path, "kernel")


@pytest.mark.parametrize(
    "name", ["libcublas.so.13", "libcudnn_ops.so.9", "libcublasLt.so", "libnvjpeg.so.12", "libnvinfer.so.10"]
)
def test_closed_libraries_are_not_read_unless_that_is_asked_for(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(200))
    with pytest.raises(UsageError, match="licence may forbid"):
        count(path, "kernel")
    link = tmp_path / "renamed.so"
    link.symlink_to(path)
    with pytest.raises(UsageError, match="licence may forbid"):
        count(link, "kernel")


def test_without_the_tools_one_line_says_what_to_install(ptx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(binaries, "_wheel", lambda: None)
    with pytest.raises(ToolMissing, match="pip install triton"):
        count(ptx, "loop", arch="sm_80")


def test_sizes_loops_and_arguments_that_make_no_sense_are_refused(ptx: Path) -> None:
    def refused(**what: object) -> str:
        with pytest.raises(UsageError) as raised:
            count(ptx, "loop", arch="sm_80", **what)  # type: ignore[arg-type]
        return str(raised.value)

    assert "`grid`" in refused(grid=(0, 1, 1))
    assert "1,024 threads" in refused(block=(64, 32, 1))
    assert "Loops: L0" in refused(trips={"L7": 3})
    assert "must turn" in refused(trips={"L0": 0})
    assert "there is no argument 9" in refused(arguments={"9": 3})
    assert "does not name its arguments" in refused(shape=(1, 2, 3))
    assert "is not a value" in refused(arguments={"1": 1 << 40})


def test_the_api_has_it() -> None:
    assert perfctl.count is count
