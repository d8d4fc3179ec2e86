"""Work of the kernels that Inductor wrote, from the arguments of their calls.

Events are made after torch 2.14's code (``get_profiler_kwargs`` and ``def_kernel``) and public
traces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers.kineto.fused import elementwise_flops, template_flops
from perfctl.records.report import CompiledKernel
from tests.make.kineto import kernel, launch, operation, read

B, M, N, K = 3, 48, 40, 24


@pytest.mark.parametrize(
    ("name", "shapes", "work"),
    [
        ("mm", [(6, 6), (6, 6), (6, 6), (6, 6)], 2 * 6**3),  # two pairs, one product
        ("mm", [(M, K), (K, N), (M, N)], 2 * M * N * K),
        ("mm", [(M, K), (N, K), (M, N)], 2 * M * N * K),  # a weight as it lies in memory
        ("addmm_gelu", [(N,), (M, K), (N, K), (M, N)], 2 * M * N * K),  # the bias comes first
        # a residual behind them
        ("add_addmm", [(N,), (M, K), (N, K), (M, N), (M, N)], 2 * M * N * K),
        # rows in two dimensions
        ("addmm", [(N,), (4, M // 4, K), (N, K), (4, M // 4, N)], 2 * M * N * K),
        ("t_mm", [(M, 2, K // 2), (K, N), (M, N)], 2 * M * N * K),  # heads and their width
        ("bmm", [(B, M, K), (B, K, N), (B, M, N)], 2 * B * M * N * K),
        (
            "convolution",
            [(2, 8, 9, 9), (16, 4, 3, 3), (2, 16, 7, 7)],
            2 * (2 * 16 * 7 * 7) * (4 * 3 * 3),
        ),
        ("mm", [(M, K), (K + 1, N), (M, N)], "no product"),
        ("mm", [(M, K), (M, N)], "fewer than three"),
        ("mm", [(0, K), (K, N), (0, N)], "no product"),
        # the bias could be a factor: 4 = 1 x 4
        ("addmm", [(4,), (4, 16), (4, 16), (4, 4)], "more than one"),
        ("flex_attention", [(B, M, K)] * 4, "flex_attention does not follow"),
        ("relu", [(M, K), (K, N), (M, N)], "no operator that multiplies"),
        ("convolution", [(2, 8, 9, 9), (16, 3, 3, 3), (2, 16, 7, 7)], "no product"),
    ],
)
def test_a_template_s_product_follows_from_its_tensors_or_a_reason_says_why_not(
    name: str, shapes: list[tuple[int, ...]], work: int | str
) -> None:
    flops, reason = template_flops(f"triton_tem_fused_{name}_0", shapes)
    assert flops == (work if isinstance(work, int) else None)
    assert reason is None if flops else str(work) in str(reason)


@pytest.mark.parametrize(
    ("origins", "expected"),
    [
        ("add", 1),
        ("_to_copy_add_mean_mul_pow_rsqrt", 5),
        ("add_view_gelu", 2),
        ("leaky_relu_add", 2),
        ("cat_mul", None),
        ("native_layer_norm_add", None),
        ("clone", None),
        ("index_add", None),
    ],
)
def test_operators_of_a_name_that_compute_are_listed_once_an_element(
    origins: str, expected: int | None
) -> None:
    assert elementwise_flops(origins, 100) == (None if expected is None else expected * 100)
    assert elementwise_flops(origins, None) is None


@pytest.mark.parametrize("strange", [None, "x", -1, [1], {"a": 1}, "nan", 1e300])
def test_strange_arguments_are_not_stated(strange: Any, tmp_path: Path) -> None:
    name, call = "triton_poi_fused_add_0", operation("triton_poi_fused_add_0", 0, 8, 1)
    states = ("kernel_num_gb", "kernel_kwargs", "Input Dims", "Input type", "Concrete Inputs")
    call["args"] |= dict.fromkeys(states, strange) | {"kernel_hash": "c0"}
    (found,) = read(tmp_path, call, launch(1, 5), kernel(name, 50, 4, 1, 5)).compiled_kernels
    assert found == CompiledKernel(name, None, "c0", None, "add", calls=1, device_ns=4_000)
