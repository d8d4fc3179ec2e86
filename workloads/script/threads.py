"""Decide which thread's events count as the script's steps. Independent of torch.

Models may be called in many threads: a warm-up, a pool that answers requests, the replicas of DataParallel. Steps are those
of one thread at a time, the lead. Another thread takes over when the lead has ended, when it trains and the lead did not,
or when the lead is idle.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from perfctl.records.report import Gap

IDLE_AFTER = 3
"""Calls in a row of another thread, without an event of the lead, after which the lead counts as idle."""


class _Token:
    """Lives as long as its thread. Thread ids are no good: the system gives those of ended threads to new ones."""

    __slots__ = ("__weakref__", "calls", "row", "seen", "trains")

    def __init__(self) -> None:
        self.trains = False
        self.calls: list[Any] = []
        """Modules that the thread is calling, outermost first."""
        self.row = 0
        """Calls since the lead's last event."""
        self.seen = -1
        """Number of the lead's events when the row began."""


class _Here(threading.local):
    def __init__(self) -> None:
        self.token = _Token()
        me = threading.get_ident()
        known = (one for one in threading.enumerate() if one.ident == me)
        self.can_lead = any(not isinstance(one, threading._DummyThread) for one in known)
        """Not autograd's own threads, in which checkpointing repeats forward work."""

    @property
    def calls(self) -> list[Any]:
        return self.token.calls


class Lead:
    """The thread whose events count."""

    def __init__(self, taken_over: Callable[[bool], None]) -> None:
        """``taken_over``: called in the new lead, with whether the one before had ended."""
        self.here = _Here()
        self.fixed = False
        """Steps are being measured: only a thread that ended or is idle is replaced."""
        self._taken_over = taken_over
        self._lead: weakref.ref[_Token] | None = None
        self._callers: weakref.WeakSet[_Token] = weakref.WeakSet()
        self._several = False
        self._events = 0
        self._own_calls = self._other_calls = 0
        """Calls of models in the measured steps: by the lead, and by others."""

    @property
    def is_one_of_several(self) -> bool:
        """Whether models were called in more than one thread, or the lead is not the main one."""
        return self._several or threading.current_thread() is not threading.main_thread()

    def leads(self, trains: bool = False, called: bool = False) -> bool:
        """Whether this thread's events count. ``trains``: it ended a backward pass or an optimizer's step. ``called``: it
        begins an outermost call of a model."""
        token = self.here.token
        token.trains = token.trains or trains
        if called and token not in self._callers:
            self._several = self._several or bool(self._callers)
            self._callers.add(token)
        lead = self._lead() if self._lead is not None else None
        if lead is not token and not (self.here.can_lead and self._should_take_over(token, lead, called)):
            self._other_calls += called and self.fixed
            return False
        self._events += 1
        self._own_calls += called and self.fixed
        if lead is not token:
            first, self._lead = self._lead is None, weakref.ref(token)
            if not first:
                self._taken_over(lead is None)
        return True

    def _should_take_over(self, token: _Token, lead: _Token | None, called: bool) -> bool:
        if lead is None:
            return True
        if token.trains != lead.trains and (lead.trains or not self.fixed):
            return token.trains
        if token.seen != self._events:
            token.seen, token.row = self._events, 0
        token.row += called
        if token.row <= IDLE_AFTER or lead.calls:
            return False
        self._other_calls -= (token.row - 1) * self.fixed  # those before this one belong to no step
        return True

    def gaps(self) -> list[Gap]:
        """What is to be said of calls of models by other threads during the measured steps."""
        if not self._other_calls:
            return []
        reason = (
            f"models were also called in other threads: {self._other_calls} calls beside the {self._own_calls} of the thread "
            "whose steps were measured. Kernels of a step include theirs; the estimate is for one thread's calls"
        )
        return [Gap("layer_call", "ambiguous", reason)]
