"""What was worked out of one record is kept for the next who asks about the same one: a page asks a dozen times."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


def remembered(most: int) -> Callable[[Callable[[A], R]], Callable[[A], R]]:
    """Keep the results of a function of one record that nobody changes, for the ``most`` records asked about last.

    Records are told apart by identity: to compare two runs would cost more than to work the result out again.
    """

    def around(function: Callable[[A], R]) -> Callable[[A], R]:
        kept: OrderedDict[int, tuple[A, R]] = OrderedDict()

        @wraps(function)
        def ask(record: A) -> R:
            key = id(record)  # no other has it while the record is kept here
            known = kept.get(key)
            if known is None:
                known = kept[key] = (record, function(record))
                if len(kept) > most:
                    kept.popitem(last=False)
            return known[1]

        return ask

    return around
