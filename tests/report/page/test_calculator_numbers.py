"""The calculator's page in Chromium against Python, off the grid: times within 0.5%, memory and
sentences the same."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from perfctl.orchestrator.commands.predict import predict_training_or_inference
from perfctl.orchestrator.counts.hardware.machines import Device, Machine, find_device
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.estimate.memory import get_default_reserve_bytes
from perfctl.orchestrator.predict import published
from perfctl.orchestrator.predict.answer import Question
from perfctl.orchestrator.predict.cost import (
    Span,
    TrainingJob,
    compute_tensor_memory_need,
    compute_training_cost,
)
from perfctl.orchestrator.predict.models import subjects
from perfctl.orchestrator.predict.models.calculator import (
    SAME_BYTES,
    CalculatorModel,
    build_family_calculator_model,
)
from perfctl.orchestrator.predict.operations import StepMeasurement
from perfctl.orchestrator.predict.predict import predict_from_best_source
from perfctl.orchestrator.predict.step_parts import compute_step_floor_seconds
from perfctl.orchestrator.report.calculator import (
    CalculatorContents,
    ListedDevice,
    build_calculator_page,
)
from perfctl.orchestrator.report.page.page import render_view_as_html
from perfctl.workloads.models.plan import format_canonical_spec, parse_spec_settings
from tests.report import calculator_points as points

POINTS = 120
MOST = 0.005
FAMILIES = ("vgg", "resnet", "inception", "mlp")


@pytest.fixture(scope="module")
def open_tab(browser):
    """A function that opens a page and gives its tab."""
    with browser.new_context() as context:
        troubles: list[str] = []

        def opened(file):
            tab = context.new_page()
            tab.on("pageerror", lambda error: troubles.append(str(error)))
            tab.goto(file.as_uri())
            tab.wait_for_selector("html[data-answered]:not([data-busy])", state="attached")
            assert troubles == []
            return tab

        yield opened
        assert troubles == []


@pytest.fixture
def traced(monkeypatch):
    """One network for each family and optimizer is traced for PyTorch's allocator; the others go as
    without torch.

    The page knows the tensors' memory only, whichever of them is asked for.
    """
    real, seen = subjects._trace_step_memory_or_reason, set()

    def storages(spec, optimizer, *rest):
        key = (spec.partition(":")[0], optimizer)
        if key in seen:
            return None, ()
        seen.add(key)
        return real(spec, optimizer, *rest)

    monkeypatch.setattr(subjects, "_trace_step_memory_or_reason", storages)
    return seen


def test_page_and_command_agree_without_measurements(
    open_tab, calculator_page, tmp_path, traced, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # without a results database
    tab, rng = open_tab(calculator_page), random.Random(20)
    devices = tab.locator("#c-device option").evaluate_all("all => all.map(one => one.value)")
    choices = [points.random_choice(rng, FAMILIES, devices) for _ in range(POINTS)]
    refused, bounded, errors = 0, 0, []
    for choice, said in zip(choices, tab.evaluate(points.IN_PAGE, choices), strict=True):
        question = Question(
            choice["model"],
            batch=choice["batch"],
            device=choice["device"],
            dataset_size=choice["samples"],
            epochs=choice["epochs"],
            precision=choice["precision"],
            optimizer=choice["optimizer"],
            gpus=choice["gpus"],
            tariff=choice["tariff"] or None,
            overlap=choice["overlap"],
            efficiency=choice["efficiency"] or None,
        )
        try:
            found = predict_training_or_inference(question)
        except PerfctlError as error:
            refused += 1
            assert said == {
                "refused": error.message.removeprefix(f"--gpus {choice['gpus']}: ")
            } or (choice["gpus"] > 1 and "reach each other is not known" in said["refused"]), choice
            continue
        room, machine = found.training.room, found.device.machine
        by_tensors = compute_tensor_memory_need(
            found.subject.lines or (),
            choice["batch"],
            machine.memory_bytes,
            get_default_reserve_bytes(machine.kind),
        )
        if room is not None and room.largest is not None and by_tensors.largest is not None:
            assert room.largest <= by_tensors.largest, "the page's largest batch is a bound"
            bounded += room.largest < by_tensors.largest
        expected = points.said_of(found.step, replace(found.training, room=by_tensors))
        assert (said["memory"], said["steps"]) == (expected["memory"], expected["steps"]), choice
        errors.append((*points.error(said, expected), str(choice)))
    assert 0 < refused < POINTS / 2, "some GPUs have no tensor cores"
    assert len(traced) > len(FAMILIES) and bounded, "the allocator's replay was among them"
    assert max(errors)[0] < MOST, max(errors)


MEASURED_ON = ("RTX 3090", "T4")
DEVICES = (*MEASURED_ON, "A100 SXM4 40 GB", "P40", "Desk CPU")
MODELS = ("resnet:depth=34", "inception", "vgg:width=16", "resnet:depth=26,width=16")


@pytest.fixture(scope="module")
def devices():
    cpu = Machine("Desk CPU", "cpu", {"fp32": 4e11}, 4e10, 64e9, sms=16)
    return {name: find_device(name) for name in DEVICES[:-1]} | {"Desk CPU": Device(cpu, "made up")}


@pytest.fixture(scope="module")
def known(devices):
    """Fits to made-up steps on three devices, and some of these steps themselves."""
    pytest.importorskip("sklearn")
    from perfctl.orchestrator.predict.fit import fit_step_time_model

    records = {name: tuple(steps(devices[name].machine)) for name in (*MEASURED_ON, "Desk CPU")}
    fits = [
        fit_step_time_model(f"steps made up on {name}", found, devices[name].machine)
        for name, found in records.items()
    ]
    models: list[CalculatorModel] = [build_family_calculator_model(spec) for spec in MODELS]
    places = [
        ListedDevice(
            one.machine,
            one.source,
            one.board.gpu.link_gbs if one.board else None,
            "data sheet",
            (),
            {},
        )
        for one in devices.values()
    ]
    measured = [one for found in records.values() for one in found[:20]]
    return CalculatorContents(models, places, fits, measured, (), published.load_shipped_fit("gpu"))


@pytest.fixture(scope="module")
def view(known):
    """What the page with all of them shows."""
    return build_calculator_page(known, date="2026-11-20", version="0")


@pytest.fixture(scope="module")
def written(view):
    return render_view_as_html(view, "calculator.html")


def steps(machine):
    rng = random.Random(machine.name)
    for depth in (18, 26, 34, 50, 101):
        for width in (16, 64):
            for batch in (1, 8, 64):
                for spec in (
                    f"resnet:depth={depth},width={width}",
                    f"vgg:depth={min(depth, 40)},width={width}",
                ):
                    case = case_of(spec, batch, "fp32", rng.choice(["sgd", "momentum"]))
                    seconds = (
                        compute_step_floor_seconds(case, machine) * rng.uniform(1.3, 2.6) + 1e-3
                    )
                    yield StepMeasurement(
                        case,
                        machine.name,
                        seconds,
                        seconds * 0.97,
                        seconds * 1.05,
                        seconds / 3,
                        seconds / 2,
                        seconds / 6,
                    )


def case_of(model, batch, precision, optimizer):
    return model_of(model).network.make_step_spec(batch, precision, optimizer)


model_of = cache(build_family_calculator_model)


def test_page_and_python_agree_by_every_way_of_predicting(
    open_tab, known, written, devices, tmp_path
):
    file = tmp_path / "c.html"
    file.write_text(written, encoding="utf-8")
    rng = random.Random(21)
    choices = [points.random_choice(rng, MODELS, DEVICES) for _ in range(2 * POINTS)]
    mine = [one for one in known.measured if canonical_of(one.case.model) in MODELS]
    choices += [
        points.random_choice(rng, MODELS, DEVICES)
        | {
            "model": canonical_of(one.case.model),
            "batch": one.case.batch,
            "optimizer": one.case.optimizer,
            "precision": "fp32",
            "device": one.machine,
            "gpus": 1,
        }
        for one in mine
    ]
    ways, errors = set(), []
    for choice, said in zip(choices, open_tab(file).evaluate(points.IN_PAGE, choices), strict=True):
        try:
            expected = expected_of(choice, known, devices[choice["device"]])
        except ValueError as error:
            assert (
                str(error) in said["refused"] or "reach each other is not known" in said["refused"]
            ), choice
            continue
        ways.add(said["way"])
        assert (said["memory"], said["steps"]) == (expected["memory"], expected["steps"]), choice
        errors.append((*points.error(said, expected), str(choice)))
    assert ways == {"measured", "fitted", "published"}
    assert max(errors)[0] < MOST, max(errors)


def test_where_the_time_goes_is_where_the_layers_shares_say(
    open_tab, known, view, devices, tmp_path
):
    file = tmp_path / "c.html"
    grid = view.data["grid"] | {"measured": []}
    file.write_text(
        render_view_as_html(replace(view, data={**view.data, "grid": grid}), "calculator.html"),
        encoding="utf-8",
    )
    rng = random.Random(22)
    choices = [
        points.random_choice(rng, MODELS, DEVICES) | {"precision": "fp32"} for _ in range(40)
    ]
    found = open_tab(file).evaluate(
        """choices => choices.map(one => { const page = perfctlCalculator, choice = { ...page.firstChoice(), ...one };
        return page.splitOf(page.networks.get(choice.model), choice); })""",
        choices,
    )
    for choice, works in zip(choices, found, strict=True):
        case = case_of(choice["model"], choice["batch"], "fp32", choice["optimizer"])
        shares = predict_from_best_source(
            case, devices[choice["device"]].machine, (), known.fits, known.published
        ).shares
        amounts = {work: sum(limits.values()) for work, limits in works.items()}
        total = sum(amounts.values())
        for work, kind in (
            ("the optimizer", "optimizer"),
            ("normalisations", "norm"),
            ("activations", "activation"),
        ):
            expected = sum(share.share for share in shares if share.kind == kind)
            assert amounts.get(work, 0.0) / total == pytest.approx(expected, abs=0.02), (
                choice,
                work,
            )
        convolutions = sum(share.share for share in shares if share.kind == "conv")
        mine = sum(amount for work, amount in amounts.items() if "convolutions" in work)
        assert mine / total == pytest.approx(convolutions, abs=0.02), choice


def canonical_of(model):
    """Without the optimizer that a measured step's name carries."""
    family, settings = parse_spec_settings(model)
    return format_canonical_spec(family, {**settings, "optimizer": "sgd"})


def expected_of(choice, known, device):
    """Raises ValueError where there is nothing to predict."""
    case = case_of(choice["model"], choice["batch"], choice["precision"], choice["optimizer"])
    machine = device.machine
    step = predict_from_best_source(case, machine, known.measured, known.fits, known.published)
    sheet = device.board.gpu if device.board else None
    job = TrainingJob(
        choice["batch"],
        choice["samples"],
        choice["epochs"],
        choice["gpus"],
        case.parameters,
        sheet.link_gbs if sheet else None,
        "",
        choice["overlap"],
        choice["efficiency"] or None,
    )
    lines = (model_of(choice["model"]).lines or {})[
        SAME_BYTES.get(choice["precision"], choice["precision"])
    ]
    found = compute_training_cost(
        Span(step.seconds, step.low, step.high),
        job,
        backward_seconds=step.phases.get("backward") if step.way != "published" else None,
        memory=compute_tensor_memory_need(
            lines[choice["optimizer"]],
            choice["batch"],
            machine.memory_bytes,
            get_default_reserve_bytes(machine.kind),
        ),
    )
    result: dict[str, Any] = points.said_of(step, found)
    return result


def test_a_page_of_a_store_with_fits_stays_small(written):
    assert len(written.encode()) < 4e5
