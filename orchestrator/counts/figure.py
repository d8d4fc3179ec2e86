"""A number together with how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
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

    @property
    def lower_bound(self) -> bool:
        return self.value is not None and (bool(self.missing) or self.launches < self.of_launches)


def missing(
    state: str, reason: str, *, of_launches: int = 1, lacking: tuple[str, ...] = ()
) -> Figure:
    """A figure without a value; ``lacking``: the reason without its numbers, where it has any."""
    return Figure(None, state, reason, 0, of_launches, lacking=lacking or (reason,))


@lru_cache(maxsize=4096)
def _unknown(state: str, reason: str, of_launches: int) -> Figure:
    """The same figure where it is asked for again: most sums have nothing to add up."""
    return missing(state, reason, of_launches=of_launches)


def total_of(figures: Iterable[Figure], *, divide_by: int = 1) -> Figure:
    """Sum of per-launch figures, divided by ``divide_by`` (the number of measured steps).

    Launches without a value leave a hole: the sum is then a lower bound and says how many it holds.
    """
    all_figures = list(figures)
    if not all_figures:
        return _unknown("not_collected", "no launch was profiled", 0)
    if len(all_figures) == 1:
        return _divided(all_figures[0], divide_by)
    known = [figure for figure in all_figures if figure.value is not None]
    of_launches = sum([figure.of_launches for figure in all_figures])
    if not known:
        return _unknown(all_figures[0].state, all_figures[0].reason or "not collected", of_launches)
    total = sum([figure.value for figure in known if figure.value is not None])
    states = {one.state for one in known}
    state = (
        "estimated" if "estimated" in states else "derived" if "derived" in states else "counted"
    )
    telling = [figure for figure in known if figure.state == state]
    reasons = dict.fromkeys(figure.reason for figure in telling if figure.reason)
    rules = dict.fromkeys(
        part for figure in known if figure.rule for part in figure.rule.split("; ")
    )
    return Figure(
        _per(total, divide_by),
        state,
        "; ".join(reasons) or None,
        sum(figure.launches for figure in known),
        of_launches,
        tuple(dict.fromkeys(part for figure in known for part in figure.missing)),
        tuple(dict.fromkeys(reason for figure in all_figures for reason in figure.lacking)),
        "; ".join(rules) or None,
    )


def _divided(figure: Figure, by: int) -> Figure:
    if figure.value is None:
        return _unknown(figure.state, figure.reason or "not collected", figure.of_launches)
    if by == 1:
        return figure
    return Figure(
        _per(figure.value, by),
        figure.state,
        figure.reason,
        figure.launches,
        figure.of_launches,
        figure.missing,
        figure.lacking,
        figure.rule,
    )


def _per(total: float, count: int) -> float:
    """Counts are exact beyond 2**53, where they can be."""
    return total // count if isinstance(total, int) and total % count == 0 else total / count
