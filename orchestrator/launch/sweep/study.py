"""A study as a TOML file: its options, and the sweeps that they ask for.

``templates/studies/flops.toml`` explains each key. Text in a sweep may hold {NAME}: an option of
the study, or a variable of ``[each]``.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.sweep.options import (
    DEFAULT_BATCHES,
    SweepOptions,
    choose_cpu_or_cuda,
)
from perfctl.orchestrator.options import (
    DeclaredOption,
    Option,
    list_declared_options,
    parse_batch_sizes,
    parse_budget_seconds,
)

SEEDS = ("flops", "inference", "speedup", "cost")
"""The studies that come with perfctl."""
RUNS = "perfctl-runs"
"""Folder of the runs in the folder of a study."""
_SWEPT = {field.name: field for field in list_declared_options(SweepOptions)}
_KINDS: Mapping[str, Any] = {"text": str | None, "number": int | None, "path": Path | None}
_KEYS = frozenset(
    ("line", "help", "takes_program", "options", "quick", "quick_without_gpu", "each", "sweeps")
) | {"bench", "title", "report", "chapters", "findings"}
_SWEEP_KEYS = frozenset(_SWEPT) | {
    *("label", "profiler", "without", "of_workload", "quick_ends"),
    *("arguments", "more", "model", "results"),
}


@dataclass(frozen=True, slots=True)
class StudyDefinition:
    """A study that can be asked for."""

    name: str
    """Of its folder and of its command: "flops"; the file's path for a study of the user's."""
    content: Mapping[str, Any]
    options: Mapping[str, DeclaredOption]

    @property
    def kind(self) -> str:
        """Return "flops", or the name of the user's file without its ending."""
        return Path(self.name).stem

    def is_option_of_report_page(self, option: str, *page_roles: str) -> bool:
        """Return whether the page needs the option: "only", and no run does, or "too"."""
        return self.content.get("options", {}).get(option, {}).get("for_page") in page_roles


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """What is asked of a study."""

    study: StudyDefinition
    typed: Mapping[str, Any]
    """Option -> its value, where the user named another than the default."""
    out: Path
    quick: bool = False
    source: Path | None = None
    """Run nothing: a folder, report or store to read."""
    part: str | None = None
    """Label of the only sweep to run, beside others."""
    words: tuple[str, ...] = ()
    """Options of the workload."""
    program: tuple[str, ...] | None = None
    """A program of the user's, with {batch} where the batch size goes."""
    command_line: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """Return option -> its value: what was typed, else the quick form's, else the default."""
        values = {name: field.default for name, field in self.study.options.items()}
        if self.quick:
            forms = ["quick"]
            if choose_cpu_or_cuda("auto") != "cuda":
                forms.append("quick_without_gpu")
            for form in forms:
                for name, value in self.study.content.get(form, {}).items():
                    field = self.study.options.get(name) or _SWEPT.get(name)
                    parse = field.option.parse if field is not None else None
                    if parse is not None and isinstance(value, str):
                        value = parse(value)
                    values[name] = value
        return values | dict(self.typed)

    @property
    def options_that_affect_results(self) -> dict[str, Any]:
        """Return what decides which numbers come out."""
        if self.source is not None:
            return {"from": self.source.resolve()}
        values = {
            name: value
            for name, value in self.values.items()
            if name not in ("timeout", "budget")
            and not self.study.is_option_of_report_page(name, "only")
        }
        return values | {"words": self.words, "program": self.program}


@dataclass(frozen=True, slots=True)
class StudySweep:
    """One sweep of a study."""

    label: str
    """Unique in the study: "clock", "resnet18 timed"."""
    profiler: str
    options: SweepOptions
    arguments: tuple[str, ...]
    """Words for the workload."""
    model: str | None = None
    """Of torchvision, where inference over images is measured."""
    has_results: bool = False
    """Whether results.json is written beside the runs."""


def read_study_definition(name: str) -> StudyDefinition:
    """Return a study of perfctl's own by its name, or that of a TOML file. Raises UsageError."""
    if name in SEEDS:
        file = resources.files("perfctl.templates").joinpath("studies", f"{name}.toml")
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    else:
        try:
            content = tomllib.loads(Path(name).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UsageError(f"{name}: file not found", "Check the path") from error
        except (OSError, ValueError) as error:
            raise UsageError(f"{name}: cannot be read as a study: {error}") from error
    _raise_if_keys_invalid(name, content, _KEYS, ("title", "chapters"))
    for sweep in content.get("sweeps", ()):
        _raise_if_keys_invalid(f"{name}: sweeps", sweep, _SWEEP_KEYS, ("label", "profiler"))
    for chapter in content.get("chapters", ()):
        _raise_if_keys_invalid(
            f"{name}: chapters", chapter, {"key", "title", "text", "show"}, ("show",)
        )
    declarations = content.get("options", {}).items()
    options = {key: _make_study_option(name, key, declared) for key, declared in declarations}
    return StudyDefinition(name, content, options)


def _raise_if_keys_invalid(
    location: str,
    table: Mapping[str, Any],
    allowed: Collection[str],
    required_keys: Sequence[str] = (),
) -> None:
    for key in table:
        if key not in allowed:
            raise UsageError(
                f"{location}: '{key}' is not known", f"Use {', '.join(sorted(allowed))}"
            )
    for key in required_keys:
        if key not in table:
            raise UsageError(f"{location}: '{key}' is missing")


def _make_study_option(location: str, name: str, declared: Mapping[str, Any]) -> DeclaredOption:
    """Return the option of a study: one of every sweep, or one that the file describes."""
    keys = {"default", "kind", "help", "metavar", "names", "least", "choices"} | {
        *("for_page", "fills", "pattern"),
    }
    _raise_if_keys_invalid(f"{location}: option {name}", declared, keys)
    default = declared.get("default")
    if name in _SWEPT and "kind" not in declared:
        field = _SWEPT[name]
        if default is None:
            return field
        parse = field.option.parse
        help_text = field.option.help.partition(" Default: ")[0] + f" Default: {default}."
        return replace(
            field,
            default=parse(default) if parse is not None else default,
            option=replace(field.option, help=help_text),
        )
    option = Option(
        declared.get("help", ""),
        "What to measure",
        tuple(declared.get("names", ())),
        declared.get("metavar"),
        declared.get("least"),
    )
    if isinstance(default, list):
        return DeclaredOption(name, Sequence[str], tuple(default), option)
    kind = declared.get("kind", "number" if isinstance(default, int) else "text")
    if kind == "time":
        option = replace(option, metavar="TIME", parse=parse_budget_seconds)
        return DeclaredOption(name, float | None, default, option)
    if kind not in _KINDS:
        raise UsageError(f"{location}: option {name}: kind '{kind}' is not known")
    return DeclaredOption(name, _KINDS[kind], default, option)


def raise_if_study_options_invalid(request: StudyRequest) -> None:
    """Raise UsageError for values of options that make no sense."""
    values = request.values
    for name, declared in request.study.content.get("options", {}).items():
        value, choices = values[name], declared.get("choices")
        if choices and value not in choices:
            raise UsageError(f"`{name}`: '{value}' is not known", f"Use {', '.join(choices)}")
        for text in value if "pattern" in declared else ():
            if re.fullmatch(declared["pattern"], text) is None:
                raise UsageError(f"`{name}`: '{text}' is not {declared['metavar']}")
        if (other := declared.get("fills")) and value < (most := max(values[other])):
            raise UsageError(f"`{name}` must fill a batch of {most}, got {value}")
    if request.source is None:
        return
    if request.program is not None or request.words:
        raise UsageError(
            "`source` runs nothing: it takes no program and no options of a workload",
            "Leave these out",
        )
    if not request.source.exists():
        raise UsageError(
            f"`source`: {request.source} does not exist",
            "Name a results database, a folder of runs, or a profiler report",
        )


def list_study_sweeps(request: StudyRequest) -> list[StudySweep]:
    """Return the sweeps of the study, all of the first value of ``[each]`` first. Raises
    UsageError."""
    content, values = request.study.content, request.values
    axes = [
        [(variable, value) for value in _list_variable_values(variable, source, values)]
        for variable, source in content.get("each", {}).items()
    ]
    combinations = list(product(*axes))
    if request.program is not None and len(combinations) > 1:
        raise UsageError("a program runs as it is, and its study has one network", "Leave it out")
    sweeps = [
        sweep
        for combination in combinations
        for entry in content.get("sweeps", ())
        if (sweep := _make_study_sweep_if_needed(request, entry, {**values, **dict(combination)}))
        is not None
    ]
    if len({sweep.label for sweep in sweeps}) < len(sweeps):
        raise UsageError(f"{request.study.name}: two sweeps have the same label")
    return sweeps


def _list_variable_values(
    variable: str, source: str | list[str], values: Mapping[str, Any]
) -> list[str]:
    """Return the values of a variable: those that an option lists, or those of the file."""
    if isinstance(source, list):
        return list(dict.fromkeys(_fill_placeholders(text, values) for text in source))
    if source not in values:
        raise UsageError(f"'{source}' is not an option of the study", "Add it to [options]")
    listed = [piece.strip() for piece in (values[source] or "").split(",") if piece.strip()]
    if not listed:
        raise UsageError(
            f"`{source}` names no {variable}",
            "Name them, separated by commas, or use `quick`",
        )
    if len(set(listed)) < len(listed):
        raise UsageError(f"a {variable} is repeated in {','.join(listed)}", "Name each once")
    return listed


def _fill_placeholders(text: str, values: Mapping[str, Any]) -> str:
    """Return the text with values in the place of their names; "" for one that is not given.
    Raises UsageError for a name that is not known."""
    try:
        return text.format_map(
            {name: "" if value is None else value for name, value in values.items()}
        )
    except (KeyError, ValueError, IndexError) as error:
        raise UsageError(f"'{text}': {error} is neither an option nor a variable") from error


def _fill_options_that_have_values(text: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of options, without those whose value is not given."""
    arguments: list[str] = []
    for piece in re.split(r"\s+(?=--)", text.strip()):
        names = [name for _, name, _, _ in Formatter().parse(piece) if name]
        if all(values.get(name, name) not in (None, "") for name in names):
            arguments += shlex.split(_fill_placeholders(piece, values))
    return tuple(arguments)


def _make_study_sweep_if_needed(
    request: StudyRequest, entry: Mapping[str, Any], values: Mapping[str, Any]
) -> StudySweep | None:
    """Return a sweep of the file; None where this request does without it."""
    has_program = request.program is not None
    profiler = _fill_placeholders(entry["profiler"], values)
    if profiler == "auto":
        on_gpu = choose_cpu_or_cuda(str(values.get("device") or "auto")) == "cuda"
        profiler = "nsys" if on_gpu and tools.find_program("nsys") else "torch"
    if (profiler == "none" != entry["profiler"]) or (has_program and entry.get("of_workload")):
        return None
    sizes = tuple(values.get("batches") or DEFAULT_BATCHES)
    if "batches" in entry:
        sizes = parse_batch_sizes(_fill_placeholders(entry["batches"], values))
    elif "without" in entry and not has_program:
        sizes = tuple(size for size in sizes if size != values.get(entry["without"]))
    if entry.get("quick_ends") and request.quick:
        sizes = tuple(sorted({min(sizes), max(sizes)}))
    if not sizes:
        return None
    declared = request.study.content.get("options", {})
    sweep_options = {
        name: value
        for name, value in values.items()
        if name in _SWEPT and "kind" not in declared.get(name, {})
    }
    for name, value in entry.items():
        if name in _SWEPT and name not in request.typed:
            filled = _fill_placeholders(value, values) if isinstance(value, str) else value
            sweep_options[name] = int(filled) if name in ("steps", "warmup") else filled
    device, _, also = str(sweep_options.get("device") or "auto").partition(":")
    arguments = (
        () if has_program else _fill_options_that_have_values(entry.get("arguments", ""), values)
    )
    if also == "compile":
        arguments = (*arguments, "--compile")
    elif also or entry.get("device"):
        sweep_options["precision"] = also or "fp32"
    if "more" in entry:
        arguments = (
            *arguments,
            *shlex.split(values.get(_fill_placeholders(entry["more"], values)) or ""),
        )
    if "sweep_name" in sweep_options:
        sweep_options["sweep_name"] = sweep_options["sweep_name"].replace(":", "_")
    if has_program:
        sweep_options["workload"] = None
    sweep_options |= {
        "device": device,
        "to_end": has_program or None,
        "batches": sizes,
        "out": request.out / RUNS,
        "store": request.out / "perfctl.db",
        "no_store": request.part is not None,
        "command_line": request.command_line,
    }
    return StudySweep(
        _fill_placeholders(entry["label"], {**values, "profiler": profiler}).strip(),
        profiler,
        SweepOptions(**sweep_options),
        (*arguments, *request.words),
        _fill_placeholders(entry["model"], values) if "model" in entry else None,
        bool(entry.get("results")),
    )


@dataclass(frozen=True, slots=True)
class StudyParts:
    """A study as commands that a batch system runs one by one, and the one that makes its page."""

    kind: str
    """Name of the study."""
    out: Path
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    """(label for people, words after "perfctl"). Each leaves its runs in the study's folder, and
    opens no store."""
    finish: tuple[str, ...]
    """Words after "perfctl" of what gathers the runs."""
    device: str = "cuda"
    """What the nodes must have: cuda or cpu."""


def split_study_into_parts(request: StudyRequest) -> StudyParts:
    """Return the study in parts: each sweep, or each share of a bench. Raises UsageError."""
    raise_if_study_options_invalid(request)
    study, values = request.study, request.values
    if bench := study.content.get("bench"):
        number = bench["parts"]
        labels = [f"{number_of_part}/{number}" for number_of_part in range(1, number + 1)]
        device = values.get("device") or "cpu"
    else:
        sweeps = list_study_sweeps(request)
        devices = {sweep.options.device for sweep in sweeps}
        device = "cpu" if devices == {"cpu"} else "cuda" if "cuda" in devices else "auto"
        on_cpu = values.get("device") == "cpu"
        labels = [sweep.label for sweep in sweeps if not (sweep.profiler == "ncu" and on_cpu)]
    start = ("study", study.name, "--out", str(request.out))
    typed = [name for name in request.typed if not study.is_option_of_report_page(name, "only")]
    of_page = [name for name in request.typed if study.is_option_of_report_page(name, "only")]
    options = (*_format_typed_options(request, typed), *(("--quick",) if request.quick else ()))
    program = ("--", *request.program) if request.program else ()
    each = tuple(
        (label, (*start, *options, "--part", label, *request.words, *program)) for label in labels
    )
    finish = (
        *start,
        *options,
        "--from",
        str(request.out / RUNS),
        *_format_typed_options(request, of_page),
    )
    return StudyParts(study.kind, request.out, each, finish, device)


def _format_typed_options(request: StudyRequest, options: Sequence[str]) -> Iterator[str]:
    """Yield what was typed for these options."""
    for name in options:
        field, value = request.study.options[name], request.typed[name]
        is_repeated = isinstance(value, tuple) and field.option.parse is None
        for part in value if is_repeated else (value,):
            yield field.flag
            if field.option.parse is parse_budget_seconds:
                yield f"{part:g}s"
            else:
                yield ",".join(map(str, part)) if isinstance(part, tuple) else str(part)
