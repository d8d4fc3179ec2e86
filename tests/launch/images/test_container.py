"""Prefixes, facts and definitions: nothing is run here, so that no container runtime is needed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.launch.catalog import require_profiler_tools
from perfctl.orchestrator.launch.images import check as images_check
from perfctl.orchestrator.launch.images import definition
from perfctl.orchestrator.launch.images import run as images_run
from perfctl.orchestrator.launch.images.definition import ImageRecipe
from perfctl.orchestrator.launch.images.run import (
    ContainerImage,
    SurroundingContainer,
    find_surrounding_container,
    open_container_image,
)
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers.base import Command
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.profilers.torch import TorchProfiler
from perfctl.orchestrator.launch.sweep import sweep
from perfctl.orchestrator.launch.sweep.folders import SweepSetting
from perfctl.orchestrator.launch.sweep.options import SweepOptions, raise_if_placement_options_set
from perfctl.orchestrator.launch.sweep.plan import plan_sweep, split_image_interpreter
from tests.launch.programs import write_program
from tests.launch.small_profiler import asked

SIF = ContainerImage("/images/x.sif", "apptainer", ("/data:/mnt:ro",), gpu=True)


@pytest.fixture
def runtimes(tmp_path, monkeypatch):
    """Put programs of these names, and no others, on PATH."""

    def put(*names):
        folder = tmp_path / "path"
        for name in names:
            write_program(folder / name, "echo version 3.9")
        monkeypatch.setenv("PATH", str(folder))

    return put


def test_the_profiler_goes_inside_with_the_program():
    command = Command(("nsys", "profile", "python3", "x.py"), "profile", {"LC_ALL": "C"})
    wrapped = SIF.wrap_command(
        command, [Path("/out/sweep"), Path("/home/ada")], Path("/home/ada/study")
    )
    assert wrapped.argv == (
        "apptainer",
        "exec",
        "--cleanenv",
        "--env",
        "PYTHONNOUSERSITE=1",
        "--nv",
        "--bind",
        "/home/ada",
        "--bind",
        "/out/sweep",
        "--bind",
        "/data:/mnt:ro",
        "--pwd",
        "/home/ada/study",
        "/images/x.sif",
        "nsys",
        "profile",
        "python3",
        "x.py",
    )
    assert wrapped.environment == {
        "LC_ALL": "C",
        "APPTAINERENV_LC_ALL": "C",
        "SINGULARITYENV_LC_ALL": "C",
    }
    assert wrapped.in_image


def test_without_a_gpu_there_is_no_nv_and_neither_root_nor_what_the_option_cannot_name_is_bound():
    prefix = replace(SIF, gpu=False, binds=()).build_command_prefix([Path("/")], Path("/"))
    assert prefix == (
        "apptainer",
        "exec",
        "--cleanenv",
        "--env",
        "PYTHONNOUSERSITE=1",
        "--pwd",
        "/",
        "/images/x.sif",
    )
    with pytest.raises(UsageError, match="cannot be bound into an image"):
        SIF.build_command_prefix([Path("/out/a:b")])


def test_tmpdir_is_bound_beside_what_the_site_binds(tmp_path, monkeypatch):
    monkeypatch.setenv("APPTAINER_BIND", "/scratch")
    monkeypatch.delenv("SINGULARITY_BIND", raising=False)
    own = {"APPTAINER_BIND": f"/scratch,{tmp_path}", "SINGULARITY_BIND": str(tmp_path)}
    assert images_run.build_tmpdir_bind_variables(tmp_path) == own
    link = tmp_path / "short" / "t"
    link.parent.mkdir()
    link.symlink_to(tmp_path)
    assert images_run.build_tmpdir_bind_variables(link)["SINGULARITY_BIND"] == str(link.parent)


def test_either_runtime_will_do_and_apptainer_is_asked_first(runtimes, tmp_path):
    runtimes()
    with pytest.raises(ToolMissing, match="apptainer or singularity is not installed"):
        open_container_image(str(tmp_path))
    runtimes("singularity")
    assert images_run.find_container_runtime() == "singularity"
    runtimes("apptainer")
    assert images_run.find_container_runtime() == "apptainer"
    assert images_run.find_container_runtime("singularity") == "singularity"


@pytest.mark.parametrize("bind", ["", ":/x", "/:x", "/:/x:rx", "/,/x", "/nowhere-at-all:/x"])
def test_binds_are_checked_before_anything_runs(runtimes, tmp_path, bind):
    runtimes("apptainer")
    (tmp_path / "x.sif").touch()
    with pytest.raises(UsageError, match="`bind`"):
        open_container_image(str(tmp_path / "x.sif"), [bind])


def test_another_image_makes_another_sweep_and_none_leaves_the_name_as_it_was(tmp_path):
    sif = tmp_path / "x.sif"
    sif.write_text("one")
    plain = asked(tmp_path)
    first = replace(plain, container=ContainerImage(str(sif), "apptainer"))
    names = {plain.name, first.name}
    sif.write_text("rebuilt")
    names.add(replace(plain, container=ContainerImage(str(sif), "apptainer")).name)
    assert len(names) == 3
    assert next(iter(sweep.list_sweep_commands(first)))[1].argv[0] == "apptainer"
    assert first.make_single_run_request(SweepSetting(16)).interpreter == "python3"


def test_what_perfctl_runs_inside_of_is_read_from_variables_and_files(tmp_path, monkeypatch):
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        monkeypatch.delenv(name, raising=False)
    assert find_surrounding_container(tmp_path) is None
    (tmp_path / ".dockerenv").touch()
    assert find_surrounding_container(tmp_path) == SurroundingContainer("docker", None)
    (tmp_path / ".singularity.d").mkdir()
    assert find_surrounding_container(tmp_path) == SurroundingContainer("apptainer", None)
    monkeypatch.setenv("SINGULARITY_CONTAINER", "/images/old.sif")
    found = find_surrounding_container(tmp_path)
    assert found is not None and found.collect_run_record_facts() == {
        "container": "singularity",
        "image": "old.sif",
    }
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/new.sif")
    assert str(find_surrounding_container(tmp_path)) == "apptainer (new.sif)"


def test_inside_an_image_missing_tools_importer_and_library_are_named_with_the_image(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/new.sif")
    target = tmp_path / "nsys-2023/target-linux-x64/nsys"
    target.parent.mkdir(parents=True)
    target.touch()
    monkeypatch.setattr(tools, "find_program", lambda name: str(target))
    monkeypatch.setattr(tools, "is_package_importable", lambda name: True)
    monkeypatch.setattr(images_check, "can_load_libcuda", lambda: False)
    with pytest.raises(
        ToolMissing, match=r"importer .* is not installed here, inside apptainer \(new.sif\)"
    ):
        require_profiler_tools(Nsys(), "cuda")
    importer = target.parent.parent / "host-linux-x64/QdstrmImporter"
    importer.parent.mkdir()
    importer.touch()
    with pytest.raises(
        ToolMissing, match=r"libcuda.so.1 is not here, inside apptainer \(new.sif\).*--nv"
    ):
        require_profiler_tools(Nsys(), "cuda")


def test_the_word_python_means_the_python_of_the_image():
    assert split_image_interpreter(("python", "train.py")) == ("python3", ("train.py",))
    assert split_image_interpreter(("/opt/conda/bin/python", "-u", "t.py")) == (
        "/opt/conda/bin/python",
        ("-u", "t.py"),
    )
    assert split_image_interpreter(("train.py",)) == (None, ("train.py",))


def test_a_base_is_an_address_a_plain_name_or_a_local_image(tmp_path):
    for base, *read in (
        ("docker://site.example/a:1", "docker", "site.example/a:1"),
        ("python:3.11-slim", "docker", "python:3.11-slim"),
        ("oras://x/y", "oras", "x/y"),
        (str(tmp_path), "localimage", str(tmp_path)),
    ):
        assert definition.parse_base_image(base) == tuple(read)
    with pytest.raises(UsageError, match="does not exist"):
        definition.parse_base_image(str(tmp_path / "x.sif"))


def test_definitions_are_the_golden_ones(golden, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(tools, "find_program", lambda name: None)
    monkeypatch.setattr(definition, "find_perfctl_source", lambda: None)
    plain = ImageRecipe(
        "docker://site.example/pytorch:24.10", ("torch", "ncu"), post=("apt-get update",)
    )
    text = definition.render_image_definition(
        plain, Path("perfctl.def"), version="1.2.3", command="perfctl image render\nFrom: x"
    )
    golden("image-plain.def", text)
    assert [line for line in text.splitlines() if line.startswith("From:")] == [
        "From: site.example/pytorch:24.10"
    ]


def test_a_wheel_and_a_folder_of_wheels_are_copied_in_and_nothing_is_fetched(tmp_path):
    wheel = tmp_path / "a b" / "perfctl-1.2.3-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    made = ImageRecipe(
        "python:3.11", ("torch",), source=wheel, wheels=tmp_path, pip_options=("--no-deps",)
    )
    text = definition.render_image_definition(made, Path("x.def"), version="1.2.3", command="x")
    place = "/opt/perfctl-install"
    assert f'"{wheel}" {place}/{wheel.name}' in text
    assert f"--no-index --find-links {place}/wheels --no-deps '{place}/{wheel.name}[torch]'" in text


def test_an_image_is_built_from_what_this_perfctl_was_installed_from(tmp_path, monkeypatch):
    """A checkout where it runs from one; else a wheel or folder that pip recorded (PEP 610); else
    the release."""
    assert definition.find_perfctl_source() == Path(__file__).resolve().parents[3]
    monkeypatch.setattr(definition, "_CHECKOUT", tmp_path / "site-packages" / "perfctl")
    wheel = tmp_path / "a b" / "perfctl-1.2.3-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    origin: dict[str, str] = {}
    installed = SimpleNamespace(read_text=lambda name: json.dumps(origin))
    monkeypatch.setattr(definition.metadata, "distribution", lambda name: installed)
    origin["url"] = wheel.as_uri()
    assert definition.find_perfctl_source() == wheel
    wheel.unlink()
    with pytest.raises(UsageError, match=r"perfctl-1\.2\.3.*which no longer exists"):
        definition.find_perfctl_source()
    origin["url"] = "git+https://site.example/perfctl"
    with pytest.raises(UsageError, match="git"):
        definition.find_perfctl_source()
    installed.read_text = lambda name: None
    assert definition.find_perfctl_source() is None
    assert (
        definition._list_files_and_pip_requirement(ImageRecipe(), "[ncu]", "1.2.3")[1]
        == "perfctl[ncu]==1.2.3"
    )


def test_the_usual_image_is_nvidias_with_its_own_torch_and_another_base_gets_one(tmp_path):
    usual = definition.render_image_definition(
        ImageRecipe(), tmp_path / "x.def", version="1.2.3", command="x"
    )
    assert f"From: {definition.NGC}:" in usual
    assert "source[ncu,nvml]'" in usual
    other = definition.render_image_definition(
        ImageRecipe("python:3.11"), tmp_path / "x.def", version="1.2.3", command="x"
    )
    assert "source[torch,ncu,nvml]'" in other
    for text in (usual, other):
        assert text.count("export PYTHONNOUSERSITE=1") == 2, (
            "while it is built, and whenever it runs"
        )


def test_a_checkout_is_copied_without_its_tests(tmp_path):
    root = Path(__file__).resolve().parents[3]
    names = {part.name for part in definition.list_checkout_build_files(root)}
    assert {"pyproject.toml", "workloads", "templates", "perfctl"} <= names
    assert not names & {"tests", ".git", "docs"}
    made = ImageRecipe("python:3.11", extras=(), source=root)
    text = definition.render_image_definition(made, Path("x.def"), version="1.2.3", command="x")
    assert "/workloads /opt/perfctl-install/source/workloads" in text
    assert "pip install /opt/perfctl-install/source\n" in text
    with pytest.raises(UsageError, match="not a wheel, sdist or checkout"):
        definition.list_checkout_build_files(tmp_path)


def test_an_extra_that_perfctl_lacks_is_refused_and_the_command_builds_the_image(tmp_path):
    out = tmp_path / "my.def"
    assert definition.write_definition_get_build_command(
        ImageRecipe("python:3.11", ("torch",)), out
    )[-2:] == (
        str(tmp_path / "my.sif"),
        str(out),
    )
    assert "/source[torch]'" in out.read_text()
    with pytest.raises(UsageError, match="has no extra 'moon'"):
        definition.write_definition_get_build_command(
            ImageRecipe(extras=("torch", "moon")), tmp_path / "x.def"
        )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"bind": ("/tmp",)}, "need an image"),
        ({"image": "nope.sif"}, "`image`: nope.sif does not exist"),
        ({"devices": "0,1", "device": "cpu"}, "do not agree"),
        ({"devices": "cpu:0", "no_store": True}, "exclude each other"),
        ({"devices": "x"}, "expected GPU numbers"),
    ],
)
def test_placements_that_make_no_sense_are_refused(options, problem):
    with pytest.raises(UsageError, match=problem):
        plan_sweep(TorchProfiler(), SweepOptions((4,), **options))


def test_an_estimate_takes_no_placement():
    with pytest.raises(UsageError, match="does not accept `devices`, `image`"):
        raise_if_placement_options_set(SweepOptions(bind=("/data",)), "an estimate")
    raise_if_placement_options_set(SweepOptions(), "an estimate")
