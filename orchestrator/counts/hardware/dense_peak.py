"""The dense peak that an MFU is a share of; a sparse one is refused."""

from __future__ import annotations

from collections.abc import Mapping

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.peaks import PATH_OF
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.mfu import DevicePeak

PATHS = {**PATH_OF, "fp8": "tensor fp8"}
"""Precision -> path of its dense peak."""
SPARSE = 0.005
"""How near to twice a dense peak a figure is taken for the sparse one."""
A100 = 312e12
"""Dense bf16 of the A100: torchtitan takes it for every device that it does not know
(get_peak_flops_or_raise)."""


def find_dense_peak(
    device: str | None, precision: str, peak_tflops: float | None
) -> tuple[DevicePeak, tuple[str, ...]]:
    """Return the dense peak of a device, and what was assumed. Raises UsageError; for a sparse
    peak always."""
    path = PATHS.get(precision)
    if path is None:
        raise UsageError(f"`precision`: '{precision}' is not known", f"Use {', '.join(PATHS)}")
    if peak_tflops is not None and not 0 < peak_tflops < float("inf"):
        raise UsageError(
            f"`peak_tflops` must be above 0, got {peak_tflops:g}",
            "Give the dense TFLOP/s of one device",
        )
    peak_flops = peak_tflops * 1e12 if peak_tflops is not None else None
    if device is None:
        if peak_flops is None:
            raise UsageError(
                "`device` or `peak_tflops` is needed",
                "For example `device` H100, or `peak_tflops` 275 for a TPU v4",
            )
        _raise_if_sparse_gpu_peak(peak_flops, precision, path)
        source = f"{peak_flops / 1e12:,.1f} TFLOP/s, as given"
        return DevicePeak(peak_flops, source, _list_mistaken_peaks(peak_flops, path, None)), ()
    try:
        device_ = machines.find_device(device)
    except machines.DeviceError as error:
        raise UsageError(
            str(error), f"{error.remedy.partition('Give its peaks')[0]}Give `peak_tflops` instead"
        ) from error
    table = device_.machine.flops_per_second
    dense = table.get(path)
    if dense is None and peak_flops is None:
        has = ", ".join(name for name, path_key in PATHS.items() if path_key in table)
        raise UsageError(
            f"`precision`: the table has no dense {precision} peak of {device_.machine.name}",
            f"It has {has}",
        )
    name, notes = device_.machine.name, [device_.note] if device_.note else []
    if dense is not None and peak_flops is not None:
        _raise_if_sparse_multiple(peak_flops, dense, name, precision, "Leave `peak_tflops` out")
        if abs(peak_flops / dense - 1) > SPARSE:
            notes.append(
                f"peak: {peak_flops / 1e12:,.1f} TFLOP/s as given; the table has "
                f"{dense / 1e12:,.1f} for {name} in {precision}"
            )
    used = peak_flops or dense or 0.0
    source = f"{name}, {used / 1e12:,.1f} TFLOP/s dense {precision}"
    source += "" if peak_flops is None else ", as given"
    return DevicePeak(used, source, _list_mistaken_peaks(used, path, table)), tuple(notes)


def _raise_if_sparse_gpu_peak(peak_flops: float, precision: str, math_path: str) -> None:
    """A peak without a device that is the sparse one of an NVIDIA data centre GPU, and the dense
    peak of none."""
    dense = {
        gpu: peak
        for gpu in machines.GPUS
        if (peak := machines.compute_peak_flops(gpu).get(math_path))
    }
    if any(abs(peak_flops / peak - 1) < SPARSE for peak in dense.values()):
        return
    for gpu, peak in dense.items():
        # a consumer GPU's could be another accelerator's dense peak
        if machines.classify_gpu(gpu).startswith("data centre"):
            remedy = f"Use `device` '{gpu.name}', or give its dense peak"
            _raise_if_sparse_multiple(peak_flops, peak, gpu.name, precision, remedy)


def _raise_if_sparse_multiple(
    peak_flops: float, dense: float, name: str, precision: str, remedy: str
) -> None:
    for times, label in ((2, "twice its"), (4, "in FP8, four times its")):
        if abs(peak_flops / dense / times - 1) < SPARSE:
            raise UsageError(
                f"`peak_tflops`: {peak_flops / 1e12:,g} TFLOP/s is the sparse peak of {name}, "
                f"{label} dense {precision} peak of {dense / 1e12:,.1f}; training multiplies dense "
                "matrices",
                remedy,
            )


def _list_mistaken_peaks(
    peak: float, math_path: str, table: Mapping[str, float] | None
) -> tuple[tuple[str, float], ...]:
    half = "half of the dense peak (OLMo-core on the A100 before pull request 614)"
    slips = {"the sparse peak, twice the dense one": 2 * peak, half: peak / 2}
    tf32 = (table or {}).get("tensor tf32")
    if tf32 and math_path in ("tensor bf16", "tensor fp16"):
        label = "the TF32 peak (torchtitan issue 668)"
        if abs(tf32 / peak * 2 - 1) <= SPARSE:
            label = f"{half}, or {label}"
            tf32 = slips.pop(half)
        slips[label] = tf32
    if abs(A100 / peak - 1) > SPARSE:
        slips["312 TFLOP/s of the A100 (torchtitan on a device that it does not know)"] = A100
    return tuple(slips.items())
