"""What typer makes of declared commands: their parameters, their help, and what a call does.

Typer passes words on as they were typed, and :func:`parse_typed_value` reads them. An error names a
field in backquotes; :func:`replace_field_names_with_flags` prints the option instead.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.errors import FIELD, PerfctlError, replace_backquoted_fields
from perfctl.orchestrator.options import DeclaredOption

if TYPE_CHECKING:
    from perfctl.orchestrator.commands.declare import Command as Declared
    from perfctl.orchestrator.commands.declare import Group


COMMON = "Common options"
"""Heading of the options that most users need."""
HEADINGS = (
    *("Arguments", COMMON, "Input", "What to measure", "Memory", "Generation"),
    *("Dimensions", "Profiler", "Output", "Prices", "Cluster", "Options"),
)
"""Headings of options in ``--help``, in this order."""
PROGRAM = "perfctl.program"
"""Key of the words after ``--`` in what a context holds."""
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of commands that pass options that they do not know on to the workload, which checks
them before anything runs."""
METAVARS: Mapping[Any, str | None] = {
    bool: None,
    int: "N",
    float: "NUMBER",
    Path: "FILE",
    str: "TEXT",
}
"""Kind of value -> the word for it in ``--help``."""
UNBROKEN = "\u2011"
"""Hyphen at which no line ends, while the help is laid out."""
KEYWORD = inspect.Parameter.KEYWORD_ONLY
CONTEXT = inspect.Parameter("context", KEYWORD, annotation=typer.Context)
"""The parameter for what was typed."""
FORM = typer.Option(
    "--format",
    "-f",
    metavar="FORMAT",
    help="Print md (Markdown), tex (LaTeX) or html with complete tables, instead of text.",
)
JSON = typer.Option("--json", help="Print JSON.")


class UnconvertedType:
    """Reader that leaves a text as it was typed. It replaces the one that new releases of typer
    make, which import pydantic: 0.11 s of the 0.29 s of CPU time that ``perfctl runs`` would
    take. Nothing else of typer is replaced."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the text."""
        return value


def disable_type_conversion(params: Sequence[Any]) -> None:
    """Let typer pass on the words of parameters as they were typed."""
    for param in params:
        if hasattr(param, "get_runtime_param"):
            param.get_runtime_param = UnconvertedType


class CommandGroup(TyperGroup):
    """A group of commands. Each has a complete line in the list, which is wrapped if it is long."""

    sections: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Heading -> its commands, in this order, with their lines; without any, one list of all."""

    @property
    def declared_group(self) -> Group | None:
        """Return the declaration; None for the list of all commands."""
        group: Group | None = self.context_settings.get("obj")
        return group

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed."""
        disable_type_conversion(self.get_params(ctx))
        return list(
            super().parse_args(ctx, self.declared_group.read(args) if self.declared_group else args)
        )

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command of the list, or one that the group finds."""
        command = super().get_command(ctx, cmd_name)
        if command is None and self.declared_group:
            declared = self.declared_group.find(cmd_name)
            if declared is not None:
                app = typer.Typer(add_completion=False, rich_markup_mode=None)
                register_declared_command(app, cmd_name, declared.line, declared)
                command = typer.main.get_command(app)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the lists."""
        lines = {
            name: summarize_command(command)
            for name, command in self.commands.items()
            if not command.hidden
        }
        sections = self.sections or {"Commands": lines}
        width = max((len(name) for section in sections.values() for name in section), default=0)
        for heading, section in sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, line in section.items()])


def summarize_command(command: Any) -> str:
    """Return what a command does: its line in the list, else the first sentence of its help."""
    text = command.short_help or " ".join((command.help or "").partition("\n\n")[0].split())
    return str(text.partition(". ")[0].rstrip(".") + ".")


class DeclaredTyperCommand(TyperCommand):
    """A declared command."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return arguments as the documentation writes them: MODEL, [PATHS]..., in all releases of
        typer."""
        program = ["[-- COMMAND]"] if "program" in _list_command_line_parts_used(ctx.obj) else []
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"^\{(.*)\}", r"\1", piece).upper() for piece in pieces] + program

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed; a program after ``--`` goes into ``ctx.meta``."""
        if "program" in _list_command_line_parts_used(ctx.obj) and "--" in args:
            end = args.index("--")
            args, ctx.meta[PROGRAM] = args[:end], tuple(args[end + 1 :])
        disable_type_conversion(self.get_params(ctx))
        return list(super().parse_args(ctx, args))

    def get_help(self, ctx: Any) -> str:
        """Return the help; no option in a text is cut at its hyphens."""
        return str(super().get_help(ctx)).replace(UNBROKEN, "-")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options below the headings of their groups."""
        params = self.get_params(ctx)
        has_groups = any(getattr(param, "rich_help_panel", None) for param in params)
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in params:
            if (record := param.get_help_record(ctx)) is None:
                continue
            name, text = record
            heading = getattr(param, "rich_help_panel", None)
            if param.param_type_name == "argument":  # typer adds a Python type
                name, heading = name.partition(" <")[0].upper(), "Arguments"
            heading = heading or ("Output" if has_groups else "Options")
            groups.setdefault(heading, []).append((name, text))
        for heading in sorted(groups, key=HEADINGS.index):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


def _list_command_line_parts_used(command: Declared[Any, Any]) -> set[str]:
    """Return which parts of the typed line fill fields of a command."""
    return {field.option.filled_from for field in command.declared_options}


def replace_field_names_with_flags(text: str, command: Declared[Any, Any]) -> str:
    """Return ``text`` with options of ``command`` instead of fields."""
    return (
        replace_backquoted_fields(text, map_fields_to_flags(command))
        if FIELD.search(text)
        else text
    )


@cache
def map_fields_to_flags(command: Declared[Any, Any]) -> dict[str, str]:
    """Return field -> its option, or the name of its argument; with those of the built-in
    workloads, if the command passes words on."""
    flags = {
        name: field.flag
        for field in command.declared_options
        for name in (field.parameter_name, field.name)
    }
    if "rest" not in _list_command_line_parts_used(command):
        return flags
    from perfctl.workloads.models import WORKLOADS
    from perfctl.workloads.run.options import format_workload_help

    names = [
        name_
        for name in WORKLOADS
        for name_ in re.findall(r"--[a-z][a-z0-9-]*", format_workload_help(name))
    ]
    return {name_[2:].replace("-", "_"): name_ for name_ in names} | flags


class TerminalEvents:
    """What goes on while ``command`` works, on stderr."""

    def __init__(
        self, command: Declared[Any, Any], progress: Callable[[str, int, int, Path | None], None]
    ) -> None:
        self.command, self._progress = command, progress
        self.command_line = console.format_command_line()

    def note(self, text: str) -> None:
        """Print it."""
        console.print_note(replace_field_names_with_flags(text, self.command))

    def warning(self, text: str) -> None:
        """Print it as a warning."""
        self.note(f"warning: {text}")

    def error(self, text: str) -> None:
        """Print it as an error."""
        console.print_error(replace_field_names_with_flags(text, self.command))

    def progress(self, label: str, done: int, total: int, path: Path | None = None) -> None:
        """Show it on a terminal."""
        self._progress(label, done, total, path)

    def ask(self, question: str, default: str) -> str | None:
        """Return what is typed; None without a terminal."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return None
        return str(
            typer.prompt(console.escape_control_characters(question), default=default, err=True)
        )


def register_declared_command(
    app: typer.Typer,
    name: str,
    short_help: str,
    declared: Declared[Any, Any] | Group,
    *,
    is_hidden: bool = False,
) -> None:
    """Add a declared command or group; ``short_help``: its line in the list of commands."""
    from perfctl.orchestrator.commands.declare import Group

    if not isinstance(declared, Group):
        settings = {
            "obj": declared,
            **(PASS_ON if "rest" in _list_command_line_parts_used(declared) else {}),
        }
        register = app.command(
            name, short_help=short_help, cls=DeclaredTyperCommand, context_settings=settings
        )
        register(build_typer_callback(declared))
        return
    group = typer.Typer(
        name=name,
        cls=CommandGroup,
        no_args_is_help=True,
        rich_markup_mode=None,
        help=declared.help,
        context_settings={"obj": declared},
    )
    group.callback()(lambda: None)  # with one command, its word is still typed
    for subcommand_name, command in declared.commands.items():
        is_group = isinstance(command, Group)
        register_declared_command(group, subcommand_name, command.line, command, is_hidden=is_group)
    app.add_typer(group, short_help=short_help, hidden=is_hidden)


def build_typer_callback(command: Declared[Any, Any]) -> Callable[..., None]:
    """Return the function that typer calls for a declared command: its parameters are the options,
    then --format (if its view is a document too) and --json."""

    def run_typed_command(context: typer.Context, **typed: Any) -> None:
        try:
            _run_and_print(command, context, typed)
        except PerfctlError as error:
            error.name_options(map_fields_to_flags(command))
            raise

    parameters = [CONTEXT, *_build_typer_parameters(command)]
    if command.has_document:
        hint: Any = Annotated[str | None, FORM]
        parameters.append(inspect.Parameter("form", KEYWORD, annotation=hint, default=None))
    if command.has_json:
        for name, option in (("as_json", JSON), ("json_schema", _make_schema_option(command))):
            hint = Annotated[bool, option]
            parameters.append(inspect.Parameter(name, KEYWORD, annotation=hint, default=False))
    text = command.help or inspect.getdoc(command.options) or ""
    text = text.partition("\n\nRaises ")[0]
    text += f"\n\n{command.notes}" * bool(command.notes)
    if command.examples:
        text += "\n\n\b\nExamples:\n" + "\n".join(f"  {line}" for line in command.examples)
    run_typed_command.__doc__ = text.replace("-", UNBROKEN)
    run_typed_command.__annotations__ = {
        parameter.name: parameter.annotation for parameter in parameters
    }
    run_typed_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run_typed_command


def _run_and_print(
    command: Declared[Any, Any], context: typer.Context, typed: Mapping[str, Any]
) -> None:
    """Run a command with the options that were typed, and print its result."""
    from perfctl.orchestrator.cli import progress
    from perfctl.orchestrator.commands.declare import raise_if_outputs_would_overwrite

    form = console.validate_document_format(typed.get("form"), typed.get("as_json", False))
    parts = {"rest": tuple(context.args), "program": context.meta.get(PROGRAM)}
    parts["line"] = console.format_command_line()
    values = {
        field.name: parts[field.option.filled_from]
        if field.option.filled_from
        else parse_typed_value(field, typed[field.name])
        for field in command.declared_options
    }
    options = command.make_options(values)
    raise_if_outputs_would_overwrite(options)
    with progress.show_progress() as steps:
        events = TerminalEvents(command, steps)
        result = command.run(options, events)
    if not typed.get("as_json"):
        console.print_view(
            command.view(result), form, lambda text: replace_field_names_with_flags(text, command)
        )
    elif (record := command.record(result)) is not None:
        from perfctl.orchestrator.outputs import find_json_output_name

        console.print_json(record, find_json_output_name(record, list_json_output_names(command)))
    command.check(result, events)


def list_json_output_names(command: Declared[Any, Any]) -> Sequence[str]:
    """Return the names of what ``--json`` prints."""
    from perfctl.orchestrator.outputs import list_annotated_json_outputs

    return (
        command.outputs
        or list_annotated_json_outputs(command.record)
        or list_annotated_json_outputs(command.run)
    )


def _make_schema_option(command: Declared[Any, Any]) -> Any:
    """Return the option --json-schema, which needs no other argument of the command."""

    def print_schema(is_asked: bool) -> None:
        if is_asked:
            from perfctl.orchestrator.outputs import build_alternatives_schema

            console.print_json(build_alternatives_schema(list_json_output_names(command)))
            raise typer.Exit

    return typer.Option(
        "--json-schema",
        callback=print_schema,
        is_eager=True,
        expose_value=False,
        help="Print the JSON Schema of what --json prints.",
    )


def _build_typer_parameters(command: Declared[Any, Any]) -> list[inspect.Parameter]:
    """Return the parameters that typer reads; common ones come first in the help."""
    typed = [field for field in command.declared_options if not field.option.filled_from]
    groups = sorted(typed, key=lambda field: HEADINGS.index(field.option.group))
    common = [field.name for field in groups if field.option.is_common]
    ranks = {name: number for number, name in enumerate(command.common or common)}
    typed.sort(key=lambda field: ranks.get(field.name, len(ranks)))
    return [
        _build_typer_parameter(field, COMMON if field.name in ranks else field.option.group)
        for field in typed
    ]


def _build_typer_parameter(field: DeclaredOption, heading: str) -> inspect.Parameter:
    """Return an option as typer declares it."""
    option, default = field.option, _format_default_as_typed(field)
    kind = str if option.parse else field.value_type
    text = option.help
    if default not in (None, False, inspect.Parameter.empty) and "Default:" not in text:
        default_words = "on" if default is True else default
        listed = ", ".join(default_words) if isinstance(default_words, list) else default_words
        text += f" Default: {listed}."
    text = text.replace("-", UNBROKEN)
    if option.is_argument:
        declared = typer.Argument(help=text, metavar=option.metavar, show_default=False)
    else:
        declared = typer.Option(
            *field.command_line_names,
            help=text,
            metavar=option.metavar or METAVARS[kind],
            rich_help_panel=heading,
            show_default=False,
        )
    is_list = field.item_type_hint is not None and option.parse is None
    hint: Any = list[str] if is_list else bool if kind is bool else str
    annotation: Any = Annotated[hint | None, declared]
    return inspect.Parameter(field.name, KEYWORD, annotation=annotation, default=default)


def _format_default_as_typed(field: DeclaredOption) -> Any:
    """Return a default as one would type it: (16, 32) is "16,32"; nothing is None."""
    option, default = field.option, field.default
    if option.typed_default is not None:
        return option.typed_default
    if isinstance(default, tuple):
        values = list(map(str, default))
        return (",".join(values) if option.parse else values) or None
    if isinstance(default, bool) and option.parse is not None:
        return None
    if isinstance(default, float):
        return f"{default:g}"
    is_text = default not in (None, inspect.Parameter.empty) and not isinstance(default, bool)
    return str(default) if is_text else default


def parse_typed_value(field: DeclaredOption, typed: Any) -> Any:
    """Return what was typed as a value of the field. Raises UsageError."""
    if typed is None or typed == _format_default_as_typed(field) or typed == ():
        return field.default
    if isinstance(typed, list | tuple):
        return tuple(map(field.parse_value_text, typed))
    return typed if isinstance(typed, bool) else field.parse_value_text(typed)
