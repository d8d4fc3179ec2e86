"""The operations of a network as a predictor sees them: the records, and how they come from a trace or from a plan."""

from perfctl.orchestrator.analyse.work_records import (
    HEAVY,
    KINDS,
    OPTIMIZERS,
    STATE,
    Case,
    Machine,
    Measured,
    Work,
    bytes_moved,
    element_bytes,
    flops,
)
from perfctl.orchestrator.analyse.work_trace import works_of

__all__ = [
    "HEAVY",
    "KINDS",
    "OPTIMIZERS",
    "STATE",
    "Case",
    "Machine",
    "Measured",
    "Work",
    "bytes_moved",
    "element_bytes",
    "flops",
    "works_of",
]
