"""What typer makes of declared commands; lists of commands in ``--help``, in groups and with whole
lines; and a quick way to read values."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.options import Field, options_of

if TYPE_CHECKING:
    from perfctl.orchestrator.commands.declare import Command as Declared


HEADINGS = (
    *("Input", "What to measure", "Memory", "Generation"),
    *("Profiler", "Output", "Prices", "Cluster"),
)
"""Of options in ``--help``, in this order."""
METAVARS: Mapping[Any, str | None] = {
    bool: None,
    int: "N",
    float: "NUMBER",
    Path: "FILE",
    str: "TEXT",
}


class CommandList(TyperGroup):
    """A group of commands. Each has one whole line in the list: a line that is too long is wrapped,
    and not cut."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Heading -> names of its commands, in this order; without any, one list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What was typed."""
        for param in self.get_params(ctx):
            _read_directly(param)
        return list(super().parse_args(ctx, args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the lists."""
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        wide = max(map(len, shown), default=0)
        for heading, names in (self.sections or {"Commands": tuple(shown)}).items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(wide), line_of(shown[name])) for name in names])


def line_of(command: Any) -> str:
    """What a command does: its line in the list, else the first sentence of its help."""
    said = command.short_help or " ".join((command.help or "").partition("\n\n")[0].split())
    return str(said.partition(". ")[0].rstrip(".") + ".")


class Command(TyperCommand):
    """A command of perfctl."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments as the documentation writes them: MODEL, [PATHS]..., whatever the release of
        typer does."""
        return [
            re.sub(r"^\{(.*)\}", r"\1", piece).upper()
            for piece in super().collect_usage_pieces(ctx)
        ]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What was typed."""
        for param in self.get_params(ctx):
            _read_directly(param)
        return list(super().parse_args(ctx, args))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options below the headings of their groups."""
        groups: dict[str, list[tuple[str, str]]] = {}
        params = self.get_params(ctx)
        is_grouped = any(getattr(param, "rich_help_panel", None) for param in params)
        rest = "Output" if is_grouped else "Options"
        for param in params:
            if (record := param.get_help_record(ctx)) is not None:
                is_argument = param.param_type_name == "argument"
                group = getattr(param, "rich_help_panel", None) or rest
                groups.setdefault("Arguments" if is_argument else group, []).append(record)
        order = ("Arguments", *HEADINGS, "Options")
        for heading in sorted(groups, key=order.index):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


def _read_directly(param: Any) -> None:
    """Values that need no work are taken as they are: without this, typer imports pydantic (a
    quarter of what ``show`` took).

    That is a default, a word where one is asked for, digits where a whole number is. The rest is
    typer's, its errors too. Releases of typer that do not read values in this way are left alone.
    """
    read: Any = getattr(param, "get_runtime_param", None)
    kind = getattr(param, "type_descriptor", None)
    if read is None or kind is None or getattr(param, "_runtime_param", None) is not None:
        return
    annotation, limits = kind.annotation, kind.parameter_info

    class Direct:
        def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
            if param.nargs == -1 and isinstance(value, list | tuple):
                (item,) = get_args(annotation) or (annotation,)
                items = [_read_word(one, item, limits) for one in value]
                known: Any = None if None in items else items
            elif param.multiple or param.nargs != 1:
                is_empty = value is None and (param.multiple or param.nargs == -1)
                known = () if is_empty else None
            elif value is None or (type(value) is annotation and value == param.default):
                return value
            else:
                known = _read_word(value, annotation, limits)
            return read().coerce(value, param=param, ctx=ctx) if known is None else known

    direct = Direct()
    param.get_runtime_param = lambda: direct


def _read_word(value: Any, annotation: Any, limits: Any) -> str | int | Path | None:
    """Return the value of a word that needs no work; None if typer has to read it."""
    if limits.parser is not None or not isinstance(value, str | Path):
        return None
    if annotation is Path:
        return Path(value) if _is_free(limits) and _may_be_read(value) else None
    if type(value) is not str:
        return None
    if annotation is str:
        return value
    is_free = limits.min is None and limits.max is None and not limits.clamp
    is_number = value.isascii() and value.isdecimal() and len(value) < 16
    return int(value) if annotation is int and is_free and is_number else None


def _is_free(limits: Any) -> bool:
    """Whether a path need not exist, be of one kind or be written to."""
    asked = (
        limits.exists,
        limits.writable,
        limits.resolve_path,
        limits.allow_dash,
        limits.path_type,
    )
    return limits.file_okay and limits.dir_okay and not any(asked)


def _may_be_read(path: str | Path) -> bool:
    """Whether there is nothing of that name, or something that may be read."""
    try:
        return not os.path.lexists(path) or os.access(path, os.R_OK)
    except ValueError:
        return False


class Shown:
    """What goes on while a command works, on stderr."""

    def __init__(self, progress: Callable[[str, int, int, Path | None], None]) -> None:
        self.note, self.warning, self.error = console.note, console.warning, console.error
        self._progress = progress
        self.command_line = console.command_line()

    def progress(self, what: str, done: int, total: int, path: Path | None = None) -> None:
        self._progress(what, done, total, path)

    def ask(self, question: str, default: str) -> str | None:
        """Return what is typed; None without a terminal."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return None
        return str(typer.prompt(console.safe(question), default=default, err=True))


def function_of(command: Declared[Any, Any]) -> Callable[..., None]:
    """The function that typer calls for a declared command: its parameters are the options, then
    --format (where its view is a document too) and --json."""
    from perfctl.orchestrator.cli import options, progress
    from perfctl.orchestrator.outputs import output_of

    options_class: Any = command.options
    declared = {one.name: one for one in options_of(options_class)}

    def call(**typed: Any) -> None:
        as_json = typed.pop("as_json")
        form = console.form_of(typed.pop("form", None), as_json)
        asked = command.options(**values_of(declared, typed))
        with progress.working(is_shown=not command.has_own_progress) as steps:
            events = Shown(steps)
            result = command.run(asked, events)
        if as_json:
            record = command.record(result)
            if record is not None:
                console.as_json(record, output_of(record, _outputs_of(command)))
        else:
            console.view(command.view(result), form)
        command.check(result, events)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = parameters_of(declared)
    if command.has_document:
        parameters.append(inspect.Parameter("form", kind, annotation=options.Form, default=None))
    parameters.append(inspect.Parameter("as_json", kind, annotation=options.Json, default=False))
    schema = Annotated[bool, _schema_option(command)]
    parameters.append(inspect.Parameter("json_schema", kind, annotation=schema, default=False))
    return with_parameters(call, parameters, inspect.getdoc(command.options) or "")


def with_parameters(
    function: Callable[..., None], parameters: Sequence[inspect.Parameter], text: str
) -> Callable[..., None]:
    """Return the function with the parameters and the help that typer reads."""
    function.__doc__ = text.partition("\n\nRaises ")[0]
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def declared_by(*records: type[Any], but: Collection[str] = ()) -> dict[str, Field]:
    """Return the options of records by their names on the command line, except ``but``."""
    kinds: Sequence[Any] = records
    options = (one for kind in kinds for one in options_of(kind))
    return {one.parameter: one for one in options if one.parameter not in but}


def parameters_of(declared: Mapping[str, Field]) -> list[inspect.Parameter]:
    """Return the parameters that typer reads, by name."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[_hint(one), _parameter(one)],
            default=_typed(one),
        )
        for name, one in declared.items()
    ]


def values_of(declared: Mapping[str, Field], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of fields from what was typed for their parameters."""
    return {one.name: _value(one, typed[name]) for name, one in declared.items()}


def words_of(declared: Mapping[str, Field], typed: Mapping[str, Any]) -> list[str]:
    """Return options as one would type them; nothing for one that has its default."""
    words: list[str] = []
    for name, one in declared.items():
        value = typed[name]
        option = next((word for word in one.option.names if word.startswith("--")), None)
        option = option or f"--{one.name.replace('_', '-')}"
        if value is None or value == _typed(one):
            continue
        if isinstance(value, bool):
            words += [option] if value else []
        else:
            words += [
                f"{option}={text}" for text in (value if isinstance(value, list) else [value])
            ]
    return words


def _outputs_of(command: Declared[Any, Any]) -> list[str]:
    from perfctl.orchestrator.outputs import outputs_of

    return outputs_of(command.record) or outputs_of(command.run)


def _schema_option(command: Declared[Any, Any]) -> Any:
    """The option --json-schema, which needs no other argument of the command."""

    def print_schema(is_asked: bool) -> None:
        if is_asked:
            from perfctl.orchestrator.outputs import schema_of_any

            console.as_json(schema_of_any(_outputs_of(command)))
            raise typer.Exit

    return typer.Option(
        "--json-schema",
        callback=print_schema,
        is_eager=True,
        expose_value=False,
        help="Print the JSON Schema of what --json prints.",
    )


def _typed(field: Field) -> Any:
    """A default as one would type it: (16, 32) is "16,32"; nothing is None."""
    default = field.default
    if field.option.typed_default is not None:
        return field.option.typed_default
    if isinstance(default, tuple):
        return (",".join(map(str, default)) if field.option.parse else list(default)) or None
    return None if default is False and field.option.parse is not None else default


def _hint(field: Field) -> Any:
    """The type that typer reads: words for an option that reads them in a way of its own, a list
    for several values."""
    if field.option.parse is not None:
        return str | None
    kinds = (field.hint, *get_args(field.hint))
    several = next((kind for kind in kinds if get_origin(kind) in (Sequence, tuple)), None)
    if several is None:
        return field.hint
    item = get_args(several)[0]
    # a Python user may also give the text of a path
    kind: Any = next((kind for kind in METAVARS if kind in get_args(item)), item)
    return list[kind] | None


def _parameter(field: Field) -> Any:
    option = field.option
    kinds = (field.hint, *get_args(field.hint))
    plain = next((kind for kind in METAVARS if kind in kinds), str)
    metavar = option.metavar or ("TEXT" if option.parse is not None else METAVARS[plain])
    if option.is_argument:
        return typer.Argument(help=option.help, metavar=option.metavar)
    word = field.name.replace("_", "-")
    is_switch = plain is bool and type(None) in kinds
    names = option.names or (f"--{word}/--no-{word}" if is_switch else f"--{word}",)
    return typer.Option(
        *names,
        help=option.help,
        metavar=metavar,
        min=option.least,
        max=option.most,
        rich_help_panel=option.group,
    )


def _value(field: Field, typed: Any) -> Any:
    """What was typed as a value of the field."""
    if field.option.parse is not None and isinstance(typed, str):
        return field.option.parse(typed)
    if typed is None:
        return field.default
    return tuple(typed) if isinstance(typed, list) else typed
