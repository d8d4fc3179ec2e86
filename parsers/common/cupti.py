"""Numbers and words of NVIDIA's CUPTI that profilers built on it write into their reports."""

from __future__ import annotations

COPY_KINDS: dict[object, str] = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
"""CUpti_ActivityMemcpyKind -> the short word that perfctl stores; other kinds keep their number
or label."""
