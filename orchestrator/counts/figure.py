"""A number together with how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, with its state; ``value`` is None exactly when the state is one of the
    last three."""

    value: float | None
    state: str
    """counted: measured, exact. derived: follows from kernel name, grid and shape, by a rule whose
    error on hardware is stated. estimated: worked out by a rule that may be off. not_collected: not
    asked for. not_available: the tool or chip cannot say. refused: a number exists and would
    be wrong."""
    reason: str | None = None
    """Why there is no value, or the rule that gave it; None for a plain count."""
    launches: int = 1
    of_launches: int = 1
    """Kernel launches that it is about; ``launches``: that have the figure."""
    missing: tuple[str, ...] = ()
    """Parts that are not in the sum ("tensor", "fp64"); with any of them the value is a
    lower bound."""
    lacking: tuple[str, ...] = field(default=(), compare=False)
    """Why a launch or a part has no value, each reason once and without numbers, so that rows with
    the same reason can be named together. Equality ignores it."""
    rule: str | None = field(default=None, compare=False)
    """The sum of counters that gave the value ("FADD + FMUL + 2 FFMA"); None for other values.
    Equality ignores it."""
    moves_constants: bool = field(default=False, compare=False)
    """True if ``reason`` is that instructions move constants, or may only do that. Equality ignores
    it."""
    only_moves_constants: bool = field(default=False, compare=False)
    """True if it is certain that the instructions that are left out only move constants. Equality
    ignores it."""

    upper_bound: bool = field(default=False, compare=False)
    """Whether fewer may be required, for the ``reason``. Equality ignores it."""

    @property
    def lower_bound(self) -> bool:
        return self.value is not None and (bool(self.missing) or self.launches < self.of_launches)


@lru_cache(maxsize=4096)
def make_missing_figure(
    state: str,
    reason: str,
    *,
    of_launches: int = 1,
    lacking: tuple[str, ...] = (),
    moves_constants: bool = False,
) -> Figure:
    """Return a figure without a value; the same one if it is asked for again, because most sums
    have nothing to add up.

    ``lacking``: the reason without its numbers, if it has any.
    """
    return Figure(
        None,
        state,
        reason,
        0,
        of_launches,
        lacking=lacking or (reason,),
        moves_constants=moves_constants,
    )


def sum_figures(figures: Iterable[Figure], *, divide_by: int = 1) -> Figure:
    """Return the sum of per-launch figures, divided by ``divide_by`` (the number of measured
    steps).

    Launches without a value leave a hole: the sum is then a lower bound and says how many it holds.
    """
    launches = list(figures)
    if not launches:
        return make_missing_figure("not_collected", "no launch was profiled", of_launches=0)
    with_value = [figure for figure in launches if figure.value is not None]
    of_launches = sum([figure.of_launches for figure in launches])
    first = launches[0]
    if not with_value:
        return make_missing_figure(
            first.state,
            first.reason or "not collected",
            of_launches=of_launches,
            lacking=first.lacking,
            moves_constants=first.moves_constants,
        )
    total = sum([figure.value for figure in with_value if figure.value is not None])
    # counts are exact beyond 2**53, where they can be
    is_whole = isinstance(total, int) and total % divide_by == 0
    value = total // divide_by if is_whole else total / divide_by
    if len(launches) == 1:
        return first if divide_by == 1 else replace(first, value=value)
    states = {figure.state for figure in with_value}
    state = next((state for state in ("estimated", "derived") if state in states), "counted")
    telling = [figure for figure in with_value if figure.state == state]
    reasons = dict.fromkeys(figure.reason for figure in telling if figure.reason)
    rules = dict.fromkeys(
        part for figure in with_value if figure.rule for part in figure.rule.split("; ")
    )
    return Figure(
        value,
        state,
        "; ".join(reasons) or None,
        sum(figure.launches for figure in with_value),
        of_launches,
        tuple(dict.fromkeys(part for figure in with_value for part in figure.missing)),
        tuple(dict.fromkeys(reason for figure in launches for reason in figure.lacking)),
        "; ".join(rules) or None,
        any(figure.moves_constants for figure in telling),
        upper_bound=any(figure.upper_bound for figure in with_value),
    )
