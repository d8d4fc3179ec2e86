"""What the calculator's page shows, worked out ahead: models, devices, prices, what the store's runs taught.

:func:`gather` is everything for one page; :class:`FamilyAnswers` works out one network of a family when it is asked for
(``perfctl serve``). torchvision's models are traced without data, a second or more each, and kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cache, lru_cache
from http import HTTPStatus
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl

from perfctl import __version__
from perfctl.orchestrator.actions.estimate import TRACED_AT, Request, Session, memory_pair, without_driver_warning
from perfctl.orchestrator.actions.files import check_free, replacing, user_folder, write_text
from perfctl.orchestrator.actions.messages import SILENT, Messages, Progress
from perfctl.orchestrator.actions.predict.measurements import Known as Learned
from perfctl.orchestrator.actions.predict.measurements import known_of, measurements_from_store, model_name, power_of
from perfctl.orchestrator.actions.predict.predict import find_device
from perfctl.orchestrator.actions.predict.prices import load
from perfctl.orchestrator.analyse.hardware import machines
from perfctl.orchestrator.analyse.hardware.gpus import BOARDS, Board
from perfctl.orchestrator.analyse.hardware.machines import Device
from perfctl.orchestrator.analyse.memory import by_batch, of_plan
from perfctl.orchestrator.analyse.memory.by_batch import MemoryLine
from perfctl.orchestrator.analyse.memory.estimate import Estimate
from perfctl.orchestrator.analyse.predict import published
from perfctl.orchestrator.analyse.predict.grid import Network
from perfctl.orchestrator.analyse.predict.operations import OPTIMIZERS, Operation, operations_of, operations_of_plan
from perfctl.orchestrator.analyse.predict.step_parts import merged
from perfctl.orchestrator.analyse.prices import Price, unsure_for
from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.launch.machine.doctor import host_facts
from perfctl.orchestrator.report.calculator import Known, Model, Place, family_data, grid_data, page_view
from perfctl.orchestrator.report.page.page import render_calculator
from perfctl.workloads.models.find import ModelError
from perfctl.workloads.models.plan import PARAMETERS, canonical, plan, read_settings
from perfctl.workloads.spec import SpecError

FLOAT = 4
"""Bytes of a parameter, and of each value that an optimizer keeps for it."""
LONGEST = 300
"""Characters of a specification that is answered."""
CARDS = (
    "GTX 1080 Ti", "RTX 2080 Ti", "RTX 3070 Ti", "RTX 3090", "RTX 4090", "RTX 5090", "RTX A6000", "RTX 6000 Ada",
)  # fmt: skip
"""Cards of desktops and workstations in the page, beside boards of servers. A page with all would be twice as large."""
OTHERS = ("P100 PCIe 12 GB", "A2", "A16 (one of four)", "MI250 (one of two dies)")
"""Boards of servers that are not in it: rare, or with the figures of another."""
TRACED_IN = ("fp32", "fp16")
"""Precisions whose memory is worked out; the others have the bytes of one of these (SAME_BYTES), but see :func:`_precisions`."""
KEPT = 64
"""Networks whose answers are kept."""


def calculator(
    out: Path,
    models: str,
    store: Path,
    *,
    table: Path | None = None,
    force: bool = False,
    progress: Progress,
    messages: Messages = SILENT,
) -> tuple[int, Known]:
    """Write the page; (its bytes, what is in it). Raises what :func:`gather` does, and UsageError where ``out`` exists."""
    check_free(out, force=force)
    known = gather(store, models, progress, table)
    for sentence in known.left_out:
        messages.warning(sentence)
    progress("writing the page", 0, 1)
    text = render_calculator(page_view(known, date=datetime.now(UTC).date().isoformat(), version=__version__))
    with replacing(out, force=force) as partial:
        partial.write_text(text, encoding="utf-8")
    return len(text.encode()), known


def gather(store: Path, models: str, progress: Progress, table: Path | None = None) -> Known:
    """Everything that a page shows. ``models``: "all", "none" or names of torchvision's; the families are always there.

    ``table``: prices in place of the table in use.

    Raises UsageError for a name that torchvision has not, PerfctlError for a store or price table that cannot be read.
    """
    names, left_out = names_of(models)
    prices = load(table).sure
    stated = tuple(price for price in prices.prices if price.board is not None)
    learned, devices = store_and_devices(store)
    planned = [planned_model(family) for family in PARAMETERS]
    traced, failed = trace_all(names, progress, user_folder("XDG_CACHE_HOME", "~/.cache") / "calculator-models.json")
    return Known(
        models=(*planned, *traced),
        places=tuple(places(learned, devices, stated, prices.prices)),
        fits=learned.fits,
        measured=tuple(one for one in learned.measured if one.case.training),
        prices=stated,
        published=published.load(),
        prices_from=prices.where,
        notes=learned.notes,
        left_out=(*left_out, *failed),
    )


def names_of(asked: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """("all", "none" or "resnet50,vgg16" as names, what is missing in a sentence).

    Raises UsageError for a name that torchvision has not.
    """
    if asked == "none":
        return (), ()
    if find_spec("torchvision") is None:
        if asked == "all":
            missing = "torchvision is not installed: only the families are in the page (pip install 'perfctl[torch]')."
            return (), (missing,)
        raise ToolMissing("`models`: torchvision is not installed", "pip install 'perfctl[torch]', or take none")
    from torchvision import models

    known = models.list_models(module=models)
    if asked == "all":
        return tuple(known), ()
    names = tuple(dict.fromkeys(name.strip().removeprefix("torchvision:") for name in asked.split(",")))
    for name in names:
        if ":" in name:
            said = f"`models`: '{name}' is not a model of torchvision, and the page holds no others"
            raise UsageError(said, f"Run 'perfctl predict {name}'")
        if name not in known:
            close = get_close_matches(name, known, 5)
            raise UsageError(f"`models`: torchvision has no classification model '{name}'",
                             f"Close: {', '.join(close)}" if close else "Say all, none, or resnet50,vgg16")  # fmt: skip
    return names, ()


def planned_model(spec: str) -> Model:
    """A network of a family, with every optimizer's memory. Raises SpecError for one that cannot be built."""
    planned = plan(spec)
    names = {one: canonical(planned.family, {**planned.settings, "optimizer": one}) for one in OPTIMIZERS}
    network = Network(planned.spec, planned.family, operations_of_plan(planned), planned.parameters, names)
    lines = {
        precision: {name: of_plan.lines_of_plan(planned, name, precision) for name in OPTIMIZERS}
        for precision in TRACED_IN
    }
    return Model(network, lines)


def store_and_devices(store: Path) -> tuple[Learned, tuple[Device, ...]]:
    """What the store knows, and the page's devices: boards of servers, CARDS, and what the store has runs on.

    Also this machine's CPU where the store has runs on it.
    """
    seen = {one.machine for one in measurements_from_store(store).measured}
    boards = tuple(Device(machines.of_board(board), f"published figures of the {board.gpu.name}, dense", board)
                   for board in BOARDS if in_page(board) or board.name in seen)  # fmt: skip
    cpu = _this_cpu(store)
    learned = known_of(store, boards[0])
    if cpu is None:
        return learned, boards
    its = known_of(store, cpu)
    return replace(learned, fits=(*learned.fits, *its.fits), notes=(*learned.notes, *its.notes)), (*boards, cpu)


def in_page(board: Board) -> bool:
    """True for boards of servers but OTHERS, and for CARDS."""
    card = board.name.startswith(("RTX", "GTX", "Titan", "Quadro", "T1200")) or board.gpu.capability == "gfx906"
    return board.name in CARDS or not (card or board.name in OTHERS)


def _this_cpu(store: Path) -> Device | None:
    """With as many threads as most of the store's runs on it had; None where it has none: nothing is measured then."""
    name = host_facts().get("cpu") or ""
    seen = Counter(machines.threads_of(name, one.machine) for one in measurements_from_store(store).measured)
    most = next((threads for threads, _ in seen.most_common() if threads is not None), None)
    return find_device("cpu", None, store, most) if most is not None else None


def places(
    learned: Learned, devices: Sequence[Device], prices: Sequence[Price], every: Sequence[Price]
) -> Iterator[Place]:
    """Each device with its link, its offers and the power it draws. ``every``: also offers that do not state their board."""
    for device in devices:
        board = device.board
        offers = tuple(place for place, price in enumerate(prices) if board is not None and price.board == board)
        unsure = len(unsure_for(tuple(every), board)) if board is not None else 0
        link_gbs = board.gpu.link_gbs if board is not None else None
        link = f"{board.gpu.link}, data sheet" if board is not None else ""
        yield Place(device.machine, device.source, link_gbs, link, offers, _watts(learned, device), unsure)


def _watts(learned: Learned, device: Device) -> dict[str, tuple[float, str]]:
    """By model where it was measured, and "" for every other."""
    models = {"", *(model_name(one.workload, one.variant) for one in learned.power if one.workload is not None)}
    found = {model: power_of(learned, device, model, None) for model in sorted(models)}
    return {model: watts for model, watts in found.items() if watts is not None and (not model or watts != found[""])}


def trace_all(
    names: Sequence[str], progress: Progress, cache: Path | None = None
) -> tuple[tuple[Model, ...], tuple[str, ...]]:
    """(models, why others are not among them). ``cache``: a file that keeps them for the next time."""
    key = _versions() if cache is not None else ""
    kept, new = _kept(cache, key), dict[str, Any]()
    found: list[tuple[str, Model | str]] = []
    try:
        with without_driver_warning():
            for place, name in enumerate(names):
                model: Model | str | None = _model_from(kept.get(name))
                if model is None:
                    progress(f"working out {name}", place, len(names))
                    model = _traced(f"torchvision:{name}")
                    new |= {name: _model_record(model)} if isinstance(model, Model) else {}
                found.append((name, model))
    finally:  # a cache that cannot be written costs time and nothing else
        if cache is not None and new:
            with suppress(OSError, PerfctlError):
                cache.parent.mkdir(parents=True, exist_ok=True)
                write_text(cache, json.dumps({"key": key, "models": kept | new}))
    models = tuple(model for _, model in found if isinstance(model, Model))
    return models, tuple(f"{name} is not among them: {why}." for name, why in found if isinstance(why, str))


def _traced(model: str) -> Model | str:
    try:
        session = Session(Request(model, optimizer="adam", memory=True))
    except ModelError as error:
        return error.message
    plain = first, second = memory_pair(session, "fp32")
    if first.problem or second.problem:
        return first.problem or second.problem or ""
    works = operations_of(first.ops, TRACED_AT[0])
    unknown = sum(work.calls for work in works if work.kind == "other")
    notes = [f"{unknown} operations have no formula and count by their bytes alone"] if unknown else []
    lines: dict[str, dict[str, tuple[MemoryLine, ...]]] | None = None
    try:
        pairs = {name: memory_pair(session, name) if name != "fp32" else plain for name in _precisions(first)}
        lines = {name: _by_optimizer(pair) for name, pair in pairs.items()}
    except by_batch.LinesError as error:
        notes.append(f"memory is not known at other batch sizes than traced: {error}")
    return Model(Network(model, model.partition(":")[0], merged(works), first.parameters), lines, tuple(notes))


def _by_optimizer(pair: tuple[Estimate, Estimate]) -> dict[str, tuple[MemoryLine, ...]]:
    """Raises LinesError where the traces have no memory, or differ in more than their sizes."""
    one, other = (found.memory_trace for found in pair)
    if one is None or other is None:
        raise by_batch.LinesError("the trace has none")
    parts = by_batch.lines_by_part(one, other, TRACED_AT)
    return {name: _with_state(parts, name, pair[0].parameters) for name in OPTIMIZERS}


def _precisions(found: Estimate) -> tuple[str, ...]:
    """A softmax reads float16 as it is and bfloat16 after a cast, so that a model with one has lines of its own for bf16."""
    return (*TRACED_IN, "bf16") if any(op.op == "aten._softmax" for op in found.ops) else TRACED_IN


def _with_state(
    parts: tuple[Sequence[MemoryLine], Sequence[MemoryLine]], optimizer: str, parameters: int
) -> tuple[MemoryLine, ...]:
    """Of a step traced with Adam, as it is with another optimizer: only Adam's own step needs memory beside its state."""
    before, step = parts
    change = FLOAT * parameters * (by_batch.STATE[optimizer] - by_batch.STATE["adam"])
    lines = (*before, *step) if optimizer == "adam" else before
    return by_batch.upper(MemoryLine(line.fixed + change, line.per_sample) for line in lines)


def _kept(cache: Path | None, key: str) -> dict[str, Any]:
    """Traced models of before. They hold for these versions of perfctl, torch and torchvision alone."""
    if cache is not None:
        with suppress(OSError, ValueError, KeyError, TypeError):  # none yet, or not what was written here
            found = json.loads(cache.read_text(encoding="utf-8"))
            return dict(found["models"]) if found["key"] == key else {}
    return {}


def _versions() -> str:
    """What a traced model depends on: the libraries, and perfctl's own code that builds and traces models."""
    digest = hashlib.sha256()
    for library in ("torch", "torchvision"):
        digest.update(f"{library} {metadata.version(library)}\n".encode())
    for package in ("perfctl.workloads", "perfctl.orchestrator.analyse"):
        for file in sorted(Path(str(resources.files(package))).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _model_record(model: Model) -> dict[str, Any]:
    network = model.network
    return {
        "name": network.name, "family": network.family, "parameters": network.parameters, "notes": model.notes,
        "works": [astuple(work) for work in network.works], "lines": model.lines,
    }  # fmt: skip


def _model_from(found: Any) -> Model | None:
    """None for what :func:`_model_record` did not make."""
    with suppress(KeyError, TypeError, ValueError):
        works, lines = tuple(Operation(*row) for row in found["works"]), found["lines"]
        if lines is not None:
            lines = {
                precision: {
                    one: tuple(MemoryLine(int(fixed), int(each)) for fixed, each in of[one]) for one in OPTIMIZERS
                }
                for precision, of in lines.items()
            }
        network = Network(str(found["name"]), str(found["family"]), works, int(found["parameters"]))
        return Model(network, lines, tuple(map(str, found["notes"])))
    return None


@cache
def families() -> dict[str, Any]:
    """Parameters of each family with their ranges; a residual network's depth with those that its blocks can make."""
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
    """Networks of the families by their parameters, worked out when they are asked for; safe for several threads."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = Lock()
        self._known = lru_cache(store_and_devices)
        self._grid = lru_cache(KEPT)(self._worked_out)

    def answer(self, query: str) -> tuple[HTTPStatus, Mapping[str, Any]]:
        """Of a request: ``model=SPEC`` gives :meth:`network`, nothing :func:`families`, everything else an error."""
        if not query:
            return HTTPStatus.OK, {"families": families()}
        key = spec = ""
        with suppress(ValueError):
            given = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=1)
            ((key, spec),) = given
        if key != "model" or len(spec) > LONGEST or not (spec.isascii() and spec.isprintable()):
            return HTTPStatus.BAD_REQUEST, {"error": "the request is not model=FAMILY:NAME=VALUE,..."}
        try:
            return HTTPStatus.OK, self.network(spec)
        except SpecError as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except PerfctlError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error), "again": True}

    def network(self, spec: str) -> dict[str, Any]:
        """What the page shows of one network: its name, the optimizer that the specification named, and its grid.

        Raises SpecError for one that cannot be built, and for a text that is none; PerfctlError for a store that cannot
        be read.
        """
        family, settings = read_settings(spec)
        asked, own = settings["optimizer"], PARAMETERS[family]["optimizer"].default
        name = canonical(family, {**settings, "optimizer": own})
        with self._lock:  # so that none is worked out twice at a time
            return {"name": name, "optimizer": asked if asked != own else None, "grid": self._grid(name)}

    def _worked_out(self, name: str) -> dict[str, Any]:
        model = planned_model(name)
        learned, devices = self._known(self._store)
        measured = tuple(one for one in learned.measured if one.case.training)
        return grid_data([model], [device.machine for device in devices], measured, learned.fits, published.load())
