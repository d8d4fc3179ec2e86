"""The largest values that a time or count can have. What is beyond is damage, and is not stored."""

from __future__ import annotations

import re

LONGEST_NS = 10 * 365 * 86_400 * 10**9
"""Ten years, in ns (3.2e17): of a range, a kernel, a run, and of everything of one kind in
a run."""
MOST_OF_A_LAUNCH = 1 << 40
"""Of a grid, a block, registers and shared memory: CUDA's limits are 2^31 - 1 and less; of AMD's
reports some give the product of the three sizes of a grid only."""
LATEST_NS = 1 << 62
"""Of a moment, counted from 1970: the year 2116."""
MOST_WATTS = 1_000_000
"""Of what one device draws; the largest draw some 2,000."""
HOTTEST_C = 1_000
FINITE = 1.7976931348623157e308
"""The largest number that is not infinite."""
MOST_COUNT = 2**63 - 1
"""FLOPs, bytes and counts: what SQLite holds."""
_LAUNCH = re.compile(
    r"(?:grid|block|cluster)_[xyz]|registers|(?:static|dynamic)_shared_bytes|occupancy"
)
_MOMENT = re.compile(r"(?:19[7-9]\d|20\d\d)-\d\d-\d\d")


def get_largest_plausible_value(column: str) -> int:
    """The largest value that a column of the store (or a field of a record) may have, by
    its name."""
    if column.endswith("_ns"):
        return LONGEST_NS
    if _LAUNCH.fullmatch(column):
        return MOST_OF_A_LAUNCH
    return MOST_COUNT


def starts_with_plausible_date(text: str) -> bool:
    """Whether it begins with a date from 1970 to 2099."""
    return _MOMENT.match(text) is not None
