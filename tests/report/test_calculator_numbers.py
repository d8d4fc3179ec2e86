"""The calculator's page in Chromium gives the numbers that perfctl predict gives, to the digit, on random choices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.analyse.cost import Span
from perfctl.orchestrator.analyse.machines import Device, named
from perfctl.orchestrator.analyse.plan_memory import lines_of_plan
from perfctl.orchestrator.analyse.plan_work import operations_of_plan
from perfctl.orchestrator.analyse.predict import predict
from perfctl.orchestrator.analyse.question import Question
from perfctl.orchestrator.analyse.step_parts import roofline
from perfctl.orchestrator.analyse.step_records import StepFitted
from perfctl.orchestrator.analyse.training import Job, room_of, training
from perfctl.orchestrator.analyse.work_records import Machine, Measured, StepSpec
from perfctl.orchestrator.cli.main import run
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.report.calculator_data import Known, Place, Traced
from perfctl.orchestrator.report.calculator_view import page_view
from perfctl.orchestrator.report.page import render_calculator
from perfctl.parsers.planned import Plan
from perfctl.prediction import answer
from perfctl.workloads.plan import PARAMETERS, canonical, plan, settle
from perfctl.workloads.spec import SpecError
from tests.report import calculator_points as points

POINTS = 200


@pytest.fixture(scope="module")
def open_tab(browser: Any) -> Iterator[Any]:
    """A function that opens a page and gives its tab."""
    with browser.new_context() as context:
        troubles: list[str] = []

        def opened(file: Path) -> Any:
            tab = context.new_page()
            tab.on("pageerror", lambda error: troubles.append(str(error)))
            tab.goto(file.as_uri())
            assert troubles == []
            return tab

        yield opened
        assert troubles == []


def test_page_and_command_agree_without_measurements(open_tab: Any, tmp_path: Path) -> None:
    store = tmp_path / "none.db"
    assert run(["calculator", "--out", str(tmp_path / "c.html"), "--models", "none", "--store", str(store)]) == 0
    tab, rng = open_tab(tmp_path / "c.html"), random.Random(20)
    devices = tab.locator("#c-device option").evaluate_all("all => all.map(one => one.value)")
    choices = [points.random_choice(rng, [], devices) for _ in range(POINTS)]
    refused = 0
    for choice, said in zip(choices, tab.evaluate(points.IN_PAGE, choices), strict=True):
        question = Question(
            choice["model"], (choice["batch"],), choice["device"], None, choice["samples"], choice["epochs"],
            choice["precision"], choice["optimizer"], choice["gpus"], store=store, tariff=choice["tariff"] or None,
            overlap=choice["overlap"], efficiency=choice["efficiency"] or None,
        )  # fmt: skip
        try:
            found, _ = answer(question)
        except PerfctlError:
            refused += 1
            assert list(said) == ["refused"] and said["refused"], choice
            continue
        assert points.difference(said, points.said_of(found.subject.model, found.step, found.training)) is None, choice
    assert POINTS / 10 < refused < POINTS / 1.5, "some networks cannot be built, and some GPUs have no tensor cores"


MEASURED_ON = ("RTX 3090", "T4")
DEVICES = (*MEASURED_ON, "A100 SXM4 40 GB", "P40", "Desk CPU")
MODELS = ("torchvision:one", "torchvision:two")


@pytest.fixture(scope="module")
def devices() -> dict[str, Device]:
    cpu = Machine("Desk CPU", "cpu", {"fp32": 4e11}, 4e10, 64e9, sms=16)
    return {name: named(name) for name in DEVICES[:-1]} | {"Desk CPU": Device(cpu, "made up")}


@pytest.fixture(scope="module")
def known(devices: dict[str, Device]) -> Known:
    """Fits to made-up steps on three devices, some of these steps themselves, and two models as if traced."""
    pytest.importorskip("sklearn")
    from perfctl.orchestrator.analyse.step_fit import fit_steps

    records = {name: tuple(steps(devices[name].machine)) for name in (*MEASURED_ON, "Desk CPU")}
    fits: list[StepFitted] = [fit_steps(f"steps made up on {name}", found, devices[name].machine)
                              for name, found in records.items()]  # fmt: skip
    traced = [as_if_traced(name, spec) for name, spec in zip(MODELS, ("resnet:depth=34", "inception"), strict=True)]
    places = [
        Place(one.machine, one.source, one.board.sheet.link_gbs if one.board else None, "data sheet", (), {})
        for one in devices.values()
    ]
    measured = [one for found in records.values() for one in found[:20]]
    return Known(PARAMETERS, traced, places, fits, measured, ())


def steps(machine: Machine) -> Iterator[Measured]:
    rng = random.Random(machine.name)
    for depth in (18, 26, 34, 50, 101):
        for width in (16, 64):
            for batch in (1, 8, 64):
                for spec in (f"resnet:depth={depth},width={width}", f"vgg:depth={min(depth, 40)},width={width}"):
                    case = case_of(spec, batch, "fp32", rng.choice(["sgd", "momentum"]))
                    seconds = roofline(case, machine) * rng.uniform(1.3, 2.6) + 1e-3
                    yield Measured(case, machine.name, seconds, seconds * 0.97, seconds * 1.05, seconds / 3,
                                   seconds / 2, seconds / 6)  # fmt: skip


def as_if_traced(name: str, spec: str) -> Traced:
    planned = plan(spec)
    return Traced(name, operations_of_plan(planned), planned.parameters, lines_of_plan(planned, "sgd"))


def planned_of(model: str, optimizer: str) -> Plan:
    """The plan behind a choice. Raises SpecError where it cannot be built."""
    spec = {"torchvision:one": "resnet:depth=34", "torchvision:two": "inception"}.get(model, model)
    family, settings = settle(spec)
    return plan(canonical(family, settings | {"optimizer": optimizer}))


def case_of(model: str, batch: int, precision: str, optimizer: str) -> StepSpec:
    planned = planned_of(model, optimizer)
    name = model if model in MODELS else planned.spec
    return StepSpec(name, name.partition(":")[0], operations_of_plan(planned), batch, True, precision, optimizer,
                planned.parameters)  # fmt: skip


def test_page_and_python_agree_by_every_way_of_predicting(
    open_tab: Any, known: Known, devices: dict[str, Device], tmp_path: Path
) -> None:
    file = tmp_path / "c.html"
    view = page_view(replace(known), date="2026-11-20", version="0", prices_from="no table")
    file.write_text(render_calculator(view), encoding="utf-8")
    rng = random.Random(21)
    choices = [points.random_choice(rng, MODELS, DEVICES) for _ in range(POINTS)]
    of_record = rng.sample(known.measured, 12)
    choices += [
        points.random_choice(rng, MODELS, DEVICES)
        | {"model": one.case.model, "batch": one.case.batch, "optimizer": one.case.optimizer, "precision": "fp32",
           "device": one.machine, "gpus": 1}
        for one in of_record
    ]  # fmt: skip
    ways = set()
    for choice, said in zip(choices, open_tab(file).evaluate(points.IN_PAGE, choices), strict=True):
        try:
            expected = expected_of(choice, known, devices[choice["device"]])
        except (ValueError, SpecError):
            assert list(said) == ["refused"] and said["refused"], choice
            continue
        ways.add(said.get("way"))
        assert points.difference(said, expected) is None, choice
    assert ways == {"measured", "fitted", "transferred", "roofline"}


def expected_of(choice: dict[str, Any], known: Known, device: Device) -> dict[str, Any]:
    """Raises ValueError where there is nothing to predict."""
    case = case_of(choice["model"], choice["batch"], choice["precision"], choice["optimizer"])
    step = predict(case, device.machine, known.measured, known.fits)
    sheet = device.board.sheet if device.board else None
    job = Job(choice["batch"], choice["samples"], choice["epochs"], choice["gpus"], case.parameters,
              sheet.link_gbs if sheet else None, "", choice["overlap"], choice["efficiency"] or None)  # fmt: skip
    planned = planned_of(choice["model"], choice["optimizer"])
    lines = lines_of_plan(planned, "sgd" if choice["model"] in MODELS else choice["optimizer"])
    if choice["model"] in MODELS:
        state = 4 * case.parameters * {"sgd": 0, "momentum": 1, "adam": 2}[choice["optimizer"]]
        lines = tuple(line._replace(fixed=line.fixed + state) for line in lines)
    found = training(
        Span(step.seconds, step.low, step.high), job, backward=step.phases.get("backward"),
        room=room_of(lines, choice["batch"], device.machine.memory_bytes),
    )  # fmt: skip
    result: dict[str, Any] = points.said_of(case.model, step, found)
    return result


def test_the_page_lists_the_layers_that_the_plan_lists(open_tab: Any, known: Known, tmp_path: Path) -> None:
    file = tmp_path / "c.html"
    view = page_view(replace(known, fits=(), measured=()), date="2026-11-20", version="0", prices_from="no table")
    file.write_text(render_calculator(view), encoding="utf-8")
    rng = random.Random(22)
    specs = [points.random_spec(rng) for _ in range(400)]
    found = open_tab(file).evaluate(
        """specs => specs.map(spec => { try { const plan = perfctlCalculator.planOf(spec); return [plan.spec, plan.layers.map(
        one => [one.name, one.kind, one.of, one.given, one.gives, one.kernel, one.stride, one.padding, one.bias])]; }
        catch (error) { return error.message; } })""",
        specs,
    )
    built = 0
    for spec, said in zip(specs, found, strict=True):
        try:
            planned = plan(spec)
        except SpecError as error:
            assert said == str(error), spec
            continue
        built += 1
        assert said == [planned.spec, [[item if isinstance(item, (str, bool, int)) else list(item) for item in layer]
                                       for layer in planned.layers]], spec  # fmt: skip
    assert built > 200
