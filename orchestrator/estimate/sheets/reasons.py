"""Why counts of one layer differ: the words of manual values, of formulas of the user's in a
ledger, and of other FLOP counters."""

UNIT_NAMES = {
    "MAC": "multiply-adds",
    "FLOP": "FLOPs",
    "elementwise FLOP": "elementwise FLOPs",
    "B": "bytes",
    "values": "values",
}
BIAS = "bias additions counted"
NO_ATTENTION = "attention itself left out"
PARAMETERS = "weights and biases"
UNSEEN = "not seen: a function, or a module that the counter does not know"
ELEMENTWISE = "elementwise operations counted"
TWICE = "counted twice"
BIAS_ONCE = "each bias counted once, without the positions"
CHANNELS = "output channels taken as positions"
UNEXPLAINED = "not explained"


def describe_wrong_unit(counted: str, stated: str) -> str:
    """Return that a value is in one unit and was stated in another."""
    return f"{UNIT_NAMES[counted]} instead of {UNIT_NAMES.get(stated, '')}"


def describe_values_counted_as_operations(values: str) -> str:
    """Return that somebody took a number of values for operations."""
    return f"{values}, not operations"
