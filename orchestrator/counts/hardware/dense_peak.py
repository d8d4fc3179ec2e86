"""The dense peak that an MFU is a share of; a sparse one is refused."""

from __future__ import annotations

from collections.abc import Mapping

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.peaks import PATH_OF
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.mfu import Peak

PATHS = {**PATH_OF, "fp8": "tensor fp8"}
"""Precision -> path of its dense peak."""
SPARSE = 0.005
"""How near to twice a dense peak a figure is taken for the sparse one."""
A100 = 312e12
"""Dense bf16 of the A100: torchtitan takes it for every device that it does not know
(get_peak_flops)."""


def peak_of(
    device: str | None, precision: str, peak_tflops: float | None
) -> tuple[Peak, tuple[str, ...]]:
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
    given = peak_tflops * 1e12 if peak_tflops is not None else None
    if device is None:
        if given is None:
            raise UsageError(
                "`device` or `peak_tflops` is needed",
                "For example `device` H100, or `peak_tflops` 275 for a TPU v4",
            )
        _refuse_sparse(given, precision, path)
        return Peak(given, f"{given / 1e12:,.1f} TFLOP/s, as given", _slips(given, path, None)), ()
    try:
        found = machines.named(device)
    except machines.DeviceError as error:
        raise UsageError(
            str(error), f"{error.remedy.partition('Give its peaks')[0]}Give `peak_tflops` instead"
        ) from error
    table = found.machine.flops_per_second
    dense = table.get(path)
    if dense is None and given is None:
        has = ", ".join(name for name, known in PATHS.items() if known in table)
        raise UsageError(
            f"`precision`: the table has no dense {precision} peak of {found.machine.name}",
            f"It has {has}",
        )
    name, notes = found.machine.name, [found.note] if found.note else []
    if dense is not None and given is not None:
        _refuse_twice(given, dense, name, precision, "Leave `peak_tflops` out")
        if abs(given / dense - 1) > SPARSE:
            notes.append(
                f"peak: {given / 1e12:,.1f} TFLOP/s as given; the table has {dense / 1e12:,.1f} "
                f"for {name} in {precision}"
            )
    used = given or dense or 0.0
    source = f"{used / 1e12:,.1f} TFLOP/s dense {precision}" + (
        "" if given is None else ", as given"
    )
    return Peak(used, f"{name}, {source}", _slips(used, path, table)), tuple(notes)


def _refuse_sparse(given: float, precision: str, path: str) -> None:
    """A peak without a device that is the sparse one of an NVIDIA data centre GPU, and the dense
    peak of none."""
    dense = {
        gpu: peak for gpu in machines.GPUS if (peak := machines.flops_per_second(gpu).get(path))
    }
    if any(abs(given / peak - 1) < SPARSE for peak in dense.values()):
        return
    for gpu, peak in dense.items():
        # a consumer GPU's could be another accelerator's dense peak
        if machines.class_of(gpu).startswith("data centre"):
            _refuse_twice(
                given,
                peak,
                gpu.name,
                precision,
                f"Use `device` '{gpu.name}', or give its dense peak",
            )


def _refuse_twice(given: float, dense: float, name: str, precision: str, remedy: str) -> None:
    times = next((times for times in (2, 4) if abs(given / dense / times - 1) < SPARSE), None)
    if times is not None:
        what = (
            f"twice its dense {precision} peak"
            if times == 2
            else f"in FP8, four times its dense {precision} peak"
        )
        said = (
            f"`peak_tflops`: {given / 1e12:,g} TFLOP/s is the sparse peak of {name}, {what} of "
            f"{dense / 1e12:,.1f}"
        )
        raise UsageError(f"{said}; training multiplies dense matrices", remedy)


def _slips(
    peak: float, path: str, table: Mapping[str, float] | None
) -> tuple[tuple[str, float], ...]:
    tf32 = (table or {}).get("tensor tf32")
    found = [
        ("the sparse peak, twice the dense one", 2 * peak),
        ("half of the dense peak (OLMo-core on the A100 before pull request 614)", peak / 2),
    ]
    if tf32 and path in ("tensor bf16", "tensor fp16") and abs(tf32 / peak * 2 - 1) > SPARSE:
        found.append(("the TF32 peak (torchtitan issue 668)", tf32))
    elif tf32 and path in ("tensor bf16", "tensor fp16"):
        found[1] = (f"{found[1][0]}, or the TF32 peak (torchtitan issue 668)", peak / 2)
    if abs(A100 / peak - 1) > SPARSE:
        found.append(
            ("312 TFLOP/s of the A100 (torchtitan on a device that it does not know)", A100)
        )
    return tuple(found)
