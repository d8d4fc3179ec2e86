"""Metrics of ncu by their short names."""

from __future__ import annotations

PIPE = "sm__inst_executed_pipe_tensor.sum"


def ops(**values: float | None) -> dict[str, float | None]:
    """Return instructions of threads: ``ops(ffma=5)``."""
    return {
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum": value
        for op, value in values.items()
    }


ZEROS = ops(
    **dict.fromkeys(
        ("fadd", "fmul", "ffma", "dadd", "dmul", "dfma", "hadd", "hmul", "hfma"),
        0,
    )
)
"""All instructions that make FLOPs, none of which ran."""
