"""What the calculator's page shows, worked out ahead: models, devices, prices, what the store's
runs taught.

:func:`gather` is everything for one page; :class:`FamilyAnswers` works out one network of a family
when it is asked for (``perfctl serve``). torchvision's models are traced without data, a second or
more each, and kept in the user's cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl

from perfctl.orchestrator.actions.predict.measurements import (
    find_evidence,
    measurements_from_store,
)
from perfctl.orchestrator.actions.predict.peaks import find_device
from perfctl.orchestrator.actions.predict.prices import load
from perfctl.orchestrator.actions.predict.traced_models import (
    TRACED_IN,
    KeptModels,
    names_of,
    shipped_table,
    trace_all,
)
from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.machines import BOARDS, Device, class_of
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.estimate.plan_memory import lines_of_plan
from perfctl.orchestrator.events import Progress
from perfctl.orchestrator.files import user_folder
from perfctl.orchestrator.launch.machine.doctor import host_facts
from perfctl.orchestrator.predict import published
from perfctl.orchestrator.predict.grid import LARGEST, Network, amounts
from perfctl.orchestrator.predict.operations import OPTIMIZERS, operations_of_plan
from perfctl.orchestrator.predict.predict import Evidence
from perfctl.orchestrator.predict.prices import Price, unsure_for
from perfctl.orchestrator.predict.training import power_of
from perfctl.orchestrator.report.calculator import (
    Known,
    Model,
    Place,
    family_data,
    grid_data,
)
from perfctl.workloads.models.plan import PARAMETERS, canonical, plan, read_settings
from perfctl.workloads.spec import SpecError

LONGEST = 300
"""Characters of a specification that is answered."""
KEPT = 64
"""Networks whose answers are kept."""


def kept_models() -> KeptModels:
    """torchvision's models that need not be traced: perfctl's own table, and the user's cache."""
    return KeptModels(
        user_folder("XDG_CACHE_HOME", "~/.cache") / "calculator-models.json", shipped_table()
    )


def gather(
    store: Path,
    models: str,
    progress: Progress,
    table: Path | None = None,
    kept: KeptModels | None = None,
) -> Known:
    """Everything that a page shows. ``models``: "all", "none" or names of torchvision's; the
    families are always there.

    ``table``: prices in place of the table in use. ``kept``: models that are not traced; None:
    those of :func:`kept_models`.

    Raises UsageError for a name that torchvision has not, PerfctlError for a store or price table
    that cannot be read.
    """
    kept = kept or kept_models()
    names, left_out = names_of(models, kept)
    prices = load(table).sure
    stated = tuple(price for price in prices.prices if price.board is not None)
    learned, devices = store_and_devices(store)
    planned = [planned_model(family) for family in PARAMETERS]
    traced, failed = trace_all(names, progress, kept)
    return Known(
        models=(*planned, *traced),
        places=tuple(places(learned, devices, stated, prices.prices)),
        fits=learned.fits,
        measured=tuple(one for one in learned.measured if one.case.training),
        prices=stated,
        published=published.load("gpu"),
        prices_from=prices.where,
        notes=learned.notes,
        left_out=(*left_out, *failed),
    )


def planned_model(spec: str) -> Model:
    """A network of a family, with every optimizer's memory. Raises SpecError for one that cannot
    be built."""
    planned = plan(spec)
    names = {
        one: canonical(planned.family, {**planned.settings, "optimizer": one}) for one in OPTIMIZERS
    }
    network = Network(
        planned.spec, planned.family, operations_of_plan(planned), planned.parameters, names
    )
    lines = {
        precision: {name: lines_of_plan(planned, name, precision) for name in OPTIMIZERS}
        for precision in TRACED_IN
    }
    return Model(network, lines, amounts(network.works, network.parameters, LARGEST))


def store_and_devices(store: Path) -> tuple[Evidence, tuple[Device, ...]]:
    """What the store knows, and the page's devices: the whole table, and this machine's CPU where
    the store has runs on it."""
    boards = tuple(
        Device(machines.of_board(board), f"published figures of the {board.gpu.name}, dense", board)
        for board in BOARDS
    )
    cpu = _this_cpu(store)
    devices = boards if cpu is None else (*boards, cpu)
    return find_evidence(store, devices), devices


def _this_cpu(store: Path) -> Device | None:
    """With as many threads as most of the store's runs on it had; None where it has none: nothing
    is measured then."""
    name = host_facts().get("cpu") or ""
    seen = Counter(
        machines.threads_of(name, one.machine) for one in measurements_from_store(store).measured
    )
    most = next((threads for threads, _ in seen.most_common() if threads is not None), None)
    return find_device("cpu", None, store, most) if most is not None else None


def places(
    learned: Evidence, devices: Sequence[Device], prices: Sequence[Price], every: Sequence[Price]
) -> Iterator[Place]:
    """Each device with its link, its offers and the power it draws. ``every``: also offers that do
    not state their board."""
    for device in devices:
        board = device.board
        offers = tuple(
            place
            for place, price in enumerate(prices)
            if board is not None and price.board == board
        )
        unsure = len(unsure_for(tuple(every), board)) if board is not None else 0
        link_gbs = board.gpu.link_gbs if board is not None else None
        link = f"{board.gpu.link}, data sheet" if board is not None else ""
        group = class_of(board.gpu) if board is not None else "this machine"
        yield Place(
            device.machine,
            device.source,
            link_gbs,
            link,
            offers,
            _watts(learned, device),
            group,
            unsure,
        )


def _watts(learned: Evidence, device: Device) -> dict[str, tuple[float, str]]:
    """By model where it was measured, and "" for every other."""
    models = {"", *(draw.model for draw in learned.power if draw.model is not None)}
    found = {model: power_of(learned, device, model, None) for model in sorted(models)}
    return {
        model: watts
        for model, watts in found.items()
        if watts is not None and (not model or watts != found[""])
    }


@cache
def families() -> dict[str, Any]:
    """Parameters of each family with their ranges; a residual network's depth with those that its
    blocks can make."""
    found = family_data(PARAMETERS)
    depth = found["resnet"]["depth"]
    low, high = depth["slider"]
    depth["stops"] = [value for value in range(low, high + 1) if _can_be(f"resnet:depth={value}")]
    return found


def _can_be(spec: str) -> bool:
    try:
        plan(spec)
    except SpecError:
        return False
    return True


class FamilyAnswers:
    """Networks of the families by their parameters, worked out when they are asked for; safe for
    several threads."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = Lock()
        self._known = lru_cache(store_and_devices)
        self._grid = lru_cache(KEPT)(self._worked_out)

    def answer(self, query: str) -> tuple[HTTPStatus, Mapping[str, Any]]:
        """Of a request: ``model=SPEC`` gives :meth:`network`, nothing :func:`families`, everything
        else an error."""
        if not query:
            return HTTPStatus.OK, {"families": families()}
        key = spec = ""
        with suppress(ValueError):
            given = parse_qsl(
                query,
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
                max_num_fields=1,
            )
            ((key, spec),) = given
        if key != "model" or len(spec) > LONGEST or not (spec.isascii() and spec.isprintable()):
            return HTTPStatus.BAD_REQUEST, {
                "error": "the request is not model=FAMILY:NAME=VALUE,..."
            }
        try:
            return HTTPStatus.OK, self.network(spec)
        except SpecError as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except PerfctlError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error), "again": True}

    def network(self, spec: str) -> dict[str, Any]:
        """What the page shows of one network: its name, the optimizer that the specification named,
        and its grid.

        Raises SpecError for one that cannot be built, and for a text that is none; PerfctlError for
        a store that cannot be read.
        """
        family, settings = read_settings(spec)
        asked, own = settings["optimizer"], PARAMETERS[family]["optimizer"].default
        name = canonical(family, {**settings, "optimizer": own})
        with self._lock:  # so that none is worked out twice at a time
            return {
                "name": name,
                "optimizer": asked if asked != own else None,
                "grid": self._grid(name),
            }

    def _worked_out(self, name: str) -> dict[str, Any]:
        model = planned_model(name)
        learned, devices = self._known(self._store)
        measured = tuple(one for one in learned.measured if one.case.training)
        return grid_data(
            [model],
            [device.machine for device in devices],
            measured,
            learned.fits,
            published.load("gpu"),
        )
