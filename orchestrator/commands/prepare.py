"""Prepare a machine: check it, sort a data set into class folders, define an Apptainer image."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from perfctl.orchestrator.commands.declare import (
    Command,
    CommandLine,
    Events,
    Force,
    Group,
    Option,
    make_api_function,
)
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.launch.images import definition
from perfctl.orchestrator.launch.machine.doctor import (
    MISSING,
    OK,
    TOOLS,
    WARNING,
    Finding,
    check_machine,
)
from perfctl.orchestrator.report.tables import (
    Cell,
    Table,
    build_complete_table,
    text_cell,
    text_columns,
)
from perfctl.orchestrator.report.view import View

STYLES = {OK: "better", WARNING: "news", MISSING: "no"}
ANSWERS = {OK: "yes", WARNING: "perhaps", MISSING: "no"}
STATES = {OK: "", WARNING: "warning", MISSING: "none"}
CAPTIONS = {
    "On this machine you can": ANSWERS,
    "Machine": STATES,
    "Tools": STATES,
    "Not installed": {MISSING: ""},
}
"""Table -> its words for the states."""
DATASETS = ("imagenet-val",)


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Check the hardware, profilers and permissions of this machine."""


def examine_machine(options: DoctorOptions, events: Events) -> list[Finding]:
    """Examine this machine."""
    return list(check_machine())


def build_doctor_view(findings: Sequence[Finding]) -> View:
    """Return what can be done here first, then the machine and its tools."""
    tables = []
    for caption, state_labels in CAPTIONS.items():
        rows = [finding for finding in findings if _choose_caption(finding) == caption]
        tables += [_build_findings_table(caption, rows, state_labels)] if rows else []
    return View("", tables=tuple(tables))


def _choose_caption(finding: Finding) -> str:
    if finding.name.startswith("perfctl "):
        return "On this machine you can"
    if finding.name not in TOOLS:
        return "Machine"
    return "Not installed" if finding.state == MISSING else "Tools"


def _build_findings_table(
    caption: str, findings: Sequence[Finding], state_labels: Mapping[str, str]
) -> Table:
    rows = []
    for finding in findings:
        details = "; ".join(filter(None, (finding.value, finding.detail))) or "installed"
        state = Cell(state_labels[finding.state], style=STYLES[finding.state])
        rows.append((finding.name, state, text_cell(details)))
    return build_complete_table(caption, text_columns("", "", ""), rows)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A data set that was sorted into class folders."""

    folder: Path
    images: int
    """Images in ``folder``."""
    total: int
    """Images of the complete data set."""
    existing: int
    """Images that existed before."""
    classes: int
    ignored: tuple[str, ...]
    """Names in the archive that are not images of the data set."""
    misplaced: tuple[Path, ...]
    """Images in ``folder`` that belong to another class according to the development kit."""


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Sort a data set's archive into class folders, for --data imagenet --data-dir. Repeat the
    command to continue after an interruption.

    Raises UsageError for a file that does not exist, PerfctlError for a file with unexpected
    content.
    """

    dataset: Annotated[str, Option("imagenet-val: ImageNet's validation images.", is_argument=True)]
    archive: Annotated[
        Path, Option("Archive of the images, ILSVRC2012_img_val.tar.", is_argument=True)
    ]
    _: KW_ONLY
    devkit: Annotated[Path, Option("Development kit, ILSVRC2012_devkit_t12.tar.gz.")]
    synsets: Annotated[
        Path | None, Option("File with lines 'ID WNID', instead of the kit's meta.mat.")
    ] = None
    no_verify: Annotated[bool, Option("Skip the MD5 check.")] = False
    out: Annotated[
        Path,
        Option(
            "Output folder for the class folders.",
            "Output",
            metavar="FOLDER",
        ),
    ] = Path("imagenet-val")


def sort_dataset_into_class_folders(options: PrepareOptions, events: Events) -> Prepared:
    """Sort the images, and warn of those that are missing or misplaced."""
    from perfctl.workloads.data import imagenet
    from perfctl.workloads.spec import WorkloadError

    if options.dataset not in DATASETS:
        problem = f"invalid value '{options.dataset}' for `dataset`"
        raise UsageError(problem, f"Choose {', '.join(DATASETS)}")
    for path in (options.archive, options.devkit, options.synsets):
        if path is not None and not path.is_file():
            raise UsageError(f"{path}: file not found", "Check the path")
    try:
        for path in () if options.no_verify else (options.devkit, options.archive):
            if not imagenet.verify_md5_if_published(
                path, partial(events.progress, f"MD5 of {path.name}")
            ):
                events.note(
                    f"{path.name}: the name is not a published one, so perfctl does not compare "
                    "the MD5 sum"
                )
        kit = imagenet.read_devkit(options.devkit, options.synsets)
        progress = partial(events.progress, "images")
        done = imagenet.sort_archive_into_classes(options.archive, kit, options.out, progress)
        misplaced = tuple(imagenet.find_misplaced_images(options.out, kit))
    except WorkloadError as error:
        raise PerfctlError(str(error)) from error
    prepared = Prepared(
        folder=options.out,
        images=done.image_count,
        total=done.total,
        existing=done.already,
        classes=len(kit.classes),
        ignored=tuple(done.ignored),
        misplaced=misplaced,
    )
    _warn_about_image_problems(prepared, events)
    return prepared


def _warn_about_image_problems(prepared: Prepared, events: Events) -> None:
    if prepared.ignored:
        name, *later = prepared.ignored
        further = f" and {len(later)} more" if later else ""
        events.warning(f"not an image of the validation set, ignored: {name}{further}")
    if prepared.misplaced:
        first = prepared.misplaced[0].relative_to(prepared.folder)
        events.warning(
            f"{len(prepared.misplaced)} images in {prepared.folder} belong to another class "
            f"according to the development kit ({first}, ...). Remove them, because they would "
            "count as wrong answers"
        )
    if missing := prepared.total - prepared.images:
        events.warning(f"the archive lacks {missing:,} images; accuracy counts only the others")


def build_prepared_view(prepared: Prepared) -> View:
    """Return what was written, and what to type next."""
    folder = prepared.folder
    before = f", {prepared.existing:,} of them already existed" if prepared.existing else ""
    return View(
        f"Wrote {prepared.images:,} of {prepared.total:,} images in {prepared.classes:,} class "
        f"folders to {folder}{before}",
        (f"Next: perfctl infer --models resnet18 --data imagenet --data-dir {folder}",),
    )


@dataclass(frozen=True, slots=True)
class ImageOptions(definition.ImageRecipe):
    """Write an Apptainer definition that contains perfctl.

    It also contains the workloads. perfctl prints the command that builds it. Apptainer is not
    needed.
    """

    out: Annotated[Path, Option("Definition file to write.", "Output")] = Path("perfctl.def")
    force: Force = False
    command_line: CommandLine = ""


@dataclass(frozen=True, slots=True)
class ImageDefinition:
    """The definition that was written."""

    path: Path
    build: tuple[str, ...]
    """Words of the command that builds the image."""


def write_apptainer_definition(options: ImageOptions, events: Events) -> ImageDefinition:
    """Write the definition of an image."""
    build = definition.write_definition_get_build_command(
        options, options.out, force=options.force, command_line=options.command_line
    )
    return ImageDefinition(options.out, build)


def build_apptainer_definition_view(written: ImageDefinition) -> View:
    """Return what was written and what to type next."""
    return View("", lines=(f"Wrote {written.path}", f"Next: {shlex.join(written.build)}"))


DOCTOR = Command(DoctorOptions, examine_machine, build_doctor_view, has_document=False)
doctor = make_api_function(DoctorOptions, examine_machine)
PREPARE = Command(
    PrepareOptions, sort_dataset_into_class_folders, build_prepared_view, has_document=False
)
prepare = make_api_function(PrepareOptions, sort_dataset_into_class_folders)
IMAGES = Group(
    "Build Apptainer (Singularity) images that contain perfctl.",
    {
        "render": Command(
            ImageOptions,
            write_apptainer_definition,
            build_apptainer_definition_view,
            has_document=False,
        )
    },
)
