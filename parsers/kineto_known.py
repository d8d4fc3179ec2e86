"""Known categories of Kineto events that are skipped, and a count of unknown ones."""

from __future__ import annotations

from perfctl.parsers.records import Diagnostic
from perfctl.parsers.unknown import not_understood, words

NOT_USED = words(
    "python_function gpu_user_annotation ac2g async async_cpu_to_gpu async_gpu fwdbwd forward_backward overhead cuda_sync"
    " cuda_event cpu_instant_event mtia_ccp_events mtia_runtime mtia_insight glow_runtime hpu_op collective_comm"
    " gpu_pm_counter external_correlation python_gc xpu_driver privateuse1_runtime privateuse1_driver __metadata"
)
"""gpu_user_annotation is the user_annotation again, on the GPU's time line; ac2g, async and fwdbwd are arrows."""
PHASES = frozenset("XBEbneiIMsftCPpSTFNODRcv()")
"""Kinds of event ("ph") of the Chrome format."""
MOST = 100


def count(unknown: dict[str, int], kind: object, category: object) -> None:
    """Count a skipped event, unless its category and kind are known."""
    if isinstance(kind, str) and kind not in PHASES:
        name = f"ph {kind}"
    elif category is None or (isinstance(category, str) and category in NOT_USED):
        return
    else:
        name = str(category)
    name = name[:100]
    if name in unknown or len(unknown) < MOST:
        unknown[name] = unknown.get(name, 0) + 1


def diagnostics(unknown: dict[str, int]) -> tuple[Diagnostic, ...]:
    """One warning that names them with their numbers of events."""
    return not_understood({"categories": [f"{name} ({number} events)" for name, number in unknown.items()]})
