"""Unused tensor cores: on which real reports it is said, with which number, and on which it
is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfctl import parsers
from perfctl.orchestrator.counts.kernels.names import recognise
from perfctl.orchestrator.ledger.causes.timeline.judge import run_verdicts
from perfctl.orchestrator.ledger.causes.timeline.records import RunVerdict
from perfctl.records.report import Device, Kernel
from tests.make import synthetic

SIMT, TF32 = "ampere_sgemm_128x64_tn", "cutlass_80_tensorop_s1688gemm_128x128_16x4_tn_align4"
HALVES, FP16 = "volta_hgemm_128x64_nn", "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn"
A100, V100, P100 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "Tesla P100-PCIE-16GB"


def said(gpu: str | None, *named: tuple[str, int], **what: Any) -> RunVerdict | None:
    """Kernels (name, us) one after the other on one GPU."""
    kernels, at = [], 0
    for number, (name, lasted) in enumerate(named):
        kernels.append(
            Kernel(
                number,
                name,
                start_ns=at * 1000,
                duration_ns=lasted * 1000,
                device_index=0,
                stream=7,
            )
        )
        at += lasted
    devices = () if gpu is None else (Device(name=gpu, kind="gpu", index=0, **what),)
    run = synthetic.foreign_run(1, profiler="torch", kernels=kernels, ranges=[], devices=devices)
    return _of(replace(run, device=devices[0] if devices else None))


def _of(run: Any) -> RunVerdict | None:
    return next((one for one in run_verdicts(run) if one.rule == "unused tensor cores"), None)


def test_fp32_products_on_an_a100_leave_its_tf32_unused() -> None:
    """Peaks of the data sheet: TF32 156 TFLOP/s, fp32 19.5."""
    found = said(A100, (SIMT, 60), (TF32, 40))
    assert found is not None
    assert found.share == pytest.approx(0.6)
    assert "156 TFLOP/s against 19.5" in found.sentence and "in TF32" in found.sentence
    assert f"at most {60 * (1 - 1 / (156 / 19.5)):.1f}% of the kernel time" in found.sentence
    assert "set_float32_matmul_precision('high')" in found.todo


def test_a_v100_has_no_tf32_and_is_told_of_fp16() -> None:
    found = said(V100, ("volta_sgemm_128x64_nn", 60), (FP16, 40))
    assert found is not None
    assert (
        "in fp16" in found.sentence
        and "TF32" not in found.sentence + found.todo
        and "GradScaler" in found.todo
    )


def test_fp16_products_off_the_tensor_cores_are_told_about_their_sizes() -> None:
    found = said(V100, (HALVES, 100))
    assert found is not None
    assert "GEMMs in fp16 on the CUDA cores" in found.sentence and "multiples of 8" in found.todo


@pytest.mark.parametrize(
    ("gpu", "kernels", "why"),
    [
        (A100, [(TF32, 100)], "TF32 is on tensor cores"),
        (V100, [(FP16, 100)], "so is fp16"),
        (P100, [("maxwell_sgemm_128x64_nn", 100)], "Pascal has none"),
        ("NVIDIA GeForce GTX 1660", [("turing_sgemm_128x64_nn", 100)], "nor has this Turing"),
        ("Some GPU", [(SIMT, 100)], "nobody knows what it has"),
        (None, [(SIMT, 100)], "nor which GPU it was"),
        (A100, [(SIMT, 9), (TF32, 91)], "a small share"),
        (A100, [(SIMT, 4)] * 50, "launches, not work"),
        (
            A100,
            [("void gemv2T_kernel_val<int, int, float, float, float, 128, 16, 4, 4, false>", 100)],
            "bound by memory",
        ),
        (A100, [("ampere_dgemm_64x64_nn", 100)], "fp64 was chosen"),
        (
            "AMD Instinct MI250X",
            [("Cijk_Ailk_Bljk_SB_MT64x64x16_MI32x32x2x1", 100)],
            "matrix cores multiply fp32",
        ),
    ],
)
def test_it_is_not_said(gpu: str | None, kernels: list[tuple[str, int]], why: str) -> None:
    capability = "7.5" if gpu and "GTX" in gpu else None
    assert said(gpu, *kernels, compute_capability=capability) is None, why


def test_tf32_of_a_geforce_is_no_faster_than_fp32_so_bf16_is_named() -> None:
    """RTX 3090: 256 FLOPs of an SM in a cycle in fp32 and in TF32, 512 in bf16 with sums
    in fp32."""
    found = said("NVIDIA GeForce RTX 3090", (SIMT, 100))
    assert found is not None
    assert (
        "2 times that peak in bf16" in found.sentence
        and "at most 50.0% of the kernel time" in found.sentence
    )


def test_a_gpu_without_a_row_is_judged_by_its_compute_capability() -> None:
    found = said("NVIDIA A100-PG509-200", (SIMT, 100), compute_capability="8.0")
    assert found is not None
    assert "8 times that peak in TF32," in found.sentence and "TFLOP/s" not in found.sentence


REAL = {
    "nsys/sqlite/zx3xyy_cs336_result.sqlite": ("sgemm", "TF32"),
    "kineto/hta_alexnet_critical_path_2023.json.gz": ("sgemm", "TF32"),
    "kineto/harryjmoss_forward_batch_size_16.json": None,
    "kineto/tracelens_h100_Falconsai_vit.json.gz": None,
    "kineto/tracelens_mi210_gpu_only.json.gz": None,
    "kineto/llm/nanovllm_decode_gpu_10.json.gz": None,
    "nsys/sqlite/ntua_a100_gemm_pipeline.sqlite": None,
    "nsys/sqlite/memfusion_report1.sqlite": None,
}
"""Two programs in fp32 without TF32; then fp16, bf16 on NVIDIA and AMD, fp64 on tensor cores, and
TensorRT in fp16."""


@pytest.mark.parametrize("name", REAL)
def test_real_reports(reports: Path, name: str) -> None:
    report = parsers.parse(reports / name)
    found = _of(replace(synthetic.foreign_run(1), report=report, device=None, profiler="torch"))
    if (wanted := REAL[name]) is None:
        assert found is None
        return
    assert found is not None
    assert wanted[1] in found.sentence and wanted[0] in found.kernels[0]
    times = [(recognise(one.name), one.duration_ns or 0) for one in report.kernels]
    plain = sum(
        ns for of, ns in times if of.math == "fp32" and of.tensor_core is False and ns >= 5000
    )
    assert found.share == pytest.approx(plain / sum(ns for _, ns in times), rel=0.05)
