"""A number together with how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, with its state; ``value`` is None exactly when the state is one of the last three."""

    value: float | None
    state: str
    """counted: measured, exact. estimated: derived by a rule that may be off. not_collected: nobody asked for it.
    not_available: the tool or chip cannot say. refused: a number exists and would be wrong."""
    reason: str | None = None
    """Why there is none, or by what rule it was found; None for a plain count."""
    launches: int = 1
    """Kernel launches that have the figure."""
    of_launches: int = 1
    """Kernel launches that it is about."""
    missing: tuple[str, ...] = ()
    """Parts that are not in the sum ("tensor", "fp64"); with any of them the value is a lower bound."""
    rule: str | None = field(default=None, compare=False)
    """How the value was made of counters ("FADD + FMUL + 2 FFMA"); None for what is not made of counters. Two figures
    are equal when they say the same, whatever counters led there."""

    @property
    def lower_bound(self) -> bool:
        """True when something that belongs into the value is not in it."""
        return self.value is not None and (bool(self.missing) or self.launches < self.of_launches)


def missing(state: str, reason: str, *, of_launches: int = 1) -> Figure:
    """A figure without a value."""
    return Figure(None, state, reason, 0, of_launches)


def total_of(figures: Iterable[Figure], *, divide_by: int = 1) -> Figure:
    """Sum of per-launch figures, divided by ``divide_by`` (the number of measured steps).

    Launches without a value leave a hole: the sum is then a lower bound and says how many it holds.
    """
    all_figures = list(figures)
    known = [figure for figure in all_figures if figure.value is not None]
    of_launches = sum(figure.of_launches for figure in all_figures)
    if not known:
        if not all_figures:
            return missing("not_collected", "no launch was profiled", of_launches=0)
        return missing(all_figures[0].state, all_figures[0].reason or "not collected", of_launches=of_launches)
    total = sum(figure.value for figure in known if figure.value is not None)
    estimated = [figure for figure in known if figure.state == "estimated"]
    reasons = dict.fromkeys(figure.reason for figure in (estimated or known) if figure.reason)
    without = dict.fromkeys(part for figure in known for part in figure.missing)
    rules = dict.fromkeys(part for figure in known if figure.rule for part in figure.rule.split("; "))
    return Figure(
        _divided(total, divide_by),
        "estimated" if estimated else "counted",
        "; ".join(reasons) or None,
        sum(figure.launches for figure in known),
        of_launches,
        tuple(without),
        "; ".join(rules) or None,
    )


def _divided(total: float, by: int) -> float:
    """Keep whole numbers whole: counts are exact beyond 2**53."""
    if isinstance(total, int) and total % by == 0:
        return total // by
    return total / by
