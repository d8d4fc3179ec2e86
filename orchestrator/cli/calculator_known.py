"""What the calculator computes with beside the models: devices, prices, and what the store's runs taught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from perfctl.orchestrator.actions.measurements import Known, known_of, power_of
from perfctl.orchestrator.actions.predict import find_device
from perfctl.orchestrator.analyse import machines
from perfctl.orchestrator.analyse.boards import BOARDS
from perfctl.orchestrator.analyse.machines import Device
from perfctl.orchestrator.analyse.prices import Price
from perfctl.orchestrator.report.calculator_data import Place


def store_and_devices(store: Path) -> tuple[Known, tuple[Device, ...]]:
    """What the store knows, and every device of the table; this machine's CPU too where the store has runs on it."""
    boards = tuple(Device(machines.of_board(board), f"published figures of the {board.gpu.name}, dense", board)
                   for board in BOARDS)  # fmt: skip
    cpu = _this_cpu(store)
    known = known_of(store, boards[0])
    if cpu is None:
        return known, boards
    its = known_of(store, cpu)
    return replace(known, fits=(*known.fits, *its.fits), notes=(*known.notes, *its.notes)), (*boards, cpu)


def _this_cpu(store: Path) -> Device | None:
    """With as many threads as most of the store's runs on it had; None where it has none: nothing is measured then."""
    from perfctl.orchestrator.actions.measurements import measurements_from_store
    from perfctl.orchestrator.launch.environment import host_facts

    name = host_facts().get("cpu") or ""
    seen = Counter(machines.threads_of(name, one.machine) for one in measurements_from_store(store).measured)
    most = next((threads for threads, _ in seen.most_common() if threads is not None), None)
    return find_device("cpu", None, store, most) if most is not None else None


def places(known: Known, devices: tuple[Device, ...], prices: tuple[Price, ...]) -> Iterator[Place]:
    """Each device with its link, its offers and the power it draws."""
    for device in devices:
        board = device.board
        offers = tuple(place for place, price in enumerate(prices) if board is not None and board in price.boards)
        link_gbs = board.sheet.link_gbs if board is not None else None
        link = f"{board.sheet.link}, data sheet" if board is not None else ""
        yield Place(device.machine, device.source, link_gbs, link, offers, _watts(known, device))


def _watts(known: Known, device: Device) -> dict[str, tuple[float, str]]:
    """By model where it was measured, and "" for every other."""
    from perfctl.orchestrator.actions.measurements import model_name

    models = {"", *(model_name(one.workload, one.variant) for one in known.power if one.workload is not None)}
    found = {model: power_of(known, device, model, None) for model in sorted(models)}
    return {model: watts for model, watts in found.items() if watts is not None and (not model or watts != found[""])}
