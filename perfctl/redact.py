"""Masks secrets in texts and command lines, truncates what is longer than any name, and names the
facts about a run's software that are kept.

What perfctl does not use is never stored (docs/explanation/security.md), so a text is searched for
few things: beginnings that only tokens have, settings and options with a telling name, logins in
URLs.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

REMOVED = "(removed)"
INVISIBLE_LETTERS = re.compile(
    "[\ufe00-\ufe0f\U000e0100-\U000e01ef\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0]"
)
"""Letters and marks that Python calls printable, and that are drawn as nothing."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_FORMULA = re.compile(r"\A(?=[\t\r\n]|[\0-\x20]*[=+\-@\uff1d\uff0b\uff0d\uff20])")
_FORMULA_BEHIND = re.compile(r"([;\t])(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""The full-width forms are treated alike."""
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_TOKENS = {
    "ghp_": r"\w{20,}",  # GitHub
    "gho_": r"\w{20,}",
    "ghs_": r"\w{20,}",
    "github_pat_": r"\w{20,}",
    "glpat-": r"[\w-]{15,}",  # GitLab
    "hf_": r"[A-Za-z0-9]{20,}",  # Hugging Face
    "sk-": r"[\w-]{20,}",  # OpenAI, Anthropic
    "AKIA": r"[A-Z0-9]{16}",  # Amazon
    "ASIA": r"[A-Z0-9]{16}",
    "AIza": r"[\w-]{35}",  # Google
    "xox": r"[abeprs]-[\w-]{10,}",  # Slack
    "eyJ": r"[\w-]{8,512}\.[\w-]{8,}(?:\.[\w-]*)?",  # JSON Web Token
    "-----BEGIN ": r"[A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[\w+/=:,\s\\]|-(?!----))*"
    r"(?:-----END [A-Z ]{0,40}-----)?",
}
"""Beginning of a token -> the rest of it."""
_WORDS = ("token", "password", "passwd", "secret", "key", "auth", "credential", "credentials")
"""One of these ends the name of a secret, or a part of it: ``api_key``, ``--hf-token``."""
_NAME = "|".join(_WORDS)
_SETTING = (
    rf"(?<![A-Za-z0-9])((?:[A-Z0-9_]{{0,60}}(?:{_NAME.upper()})|\w{{0,60}}(?i:password|passwd))"
    r"(?![A-Za-z])[A-Z0-9_]{0,60}(?:\s?=\s?\\?[\"']?|\\?[\"']?\s?:\s?\\?[\"']))"
    r"(?!\(removed\))[^\s\"'\\,;]+"
)
"""``HF_TOKEN=...`` and ``"password": "..."``; the group is what stays."""
_HEADER = r"((?:[Bb]earer|uthorization: Basic) )[\w.~+/=-]{16,}"
_OPTION = (
    rf"((?<!\S)--?(?i:[\w.-]{{0,60}}(?:{_NAME})(?![a-z])[\w.-]{{0,60}})\s+)"
    r"(?![-({]|\d{1,4}(?:\s|\Z))[^\s\"']+"
)
"""``--api-key ...`` in a command line; ``--key-dim 64`` is a size."""
_LOGIN = r"(://[^\s/:@\"'<>]{0,100}:)(?!\(removed\))[^\s/@\"'<>]{1,200}(?=@)"
_TOKEN = "|".join(beginning + rest for beginning, rest in _TOKENS.items())
SECRET = re.compile(
    rf"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?:{_TOKEN})|{_SETTING}|{_OPTION}|{_HEADER}|{_LOGIN}",
    re.ASCII,
)
"""A secret in a text; what a group matched stays, and the rest goes."""
_SIGNS = (*_TOKENS, *map(str.upper, _WORDS), "assw", "earer ", ": Basic ", "://", " -", "--")
"""One of these is in each text with a secret."""
_SECRET_NAME = re.compile(rf"[\w.:-]*(?:{_NAME})(?![a-z])[\w.:-]*", re.IGNORECASE)

LONGEST = 1 << 16
"""Characters of a text that are kept: the longest names of kernels have some 20,000. All that is
kept was searched for secrets."""
LONGEST_JSON = 1 << 22
"""Of a list or an object, which is worth nothing without its end: shapes of thousands
of tensors."""
_BEHIND = 1 << 12
"""Characters behind those that are searched with them, so that no beginning of a secret is kept."""
_CUT: ContextVar[dict[int, int] | None] = ContextVar("cut", default=None)

FACTS = frozenset(
    [
        *("python", "torch", "torchvision", "cuda", "cudnn", "hip", "perfctl", "framework"),
        *("tf32_conv", "tf32_matmul", "cudnn_benchmark", "seed", "clock", "threads"),
        *("os", "kernel", "architecture"),
        *("cpu", "cpu_model", "cpu_capability", "cpu_count", "cpu_cores", "cpu_architecture"),
        *("driver", "driver_version", "cuda_driver", "cuda_driver_version"),
        *("cuda_runtime_version", "cupti_version"),
        *("hip_runtime_version", "hip_driver_version", "roctracer_version", "rocpd_schema"),
        *("nsys", "nsys_schema", "schema_version", "dlprof", "dlprof_build", "dlprof_mode"),
        *("num_workers", "pin_memory", "amp_enabled", "cudnn_benchmark_disabled", "emit_nvtx"),
        *("detect_anomaly", "gradcheck", "gradgradcheck", "autograd_profile"),
        *("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules"),
        *("clock_base_ns", "ledger_covers", "process_groups", "rank", "world_size"),
        *("distributed_backend", "distributed_rank", "distributed_world_size"),
        *("host_peak_covers", "device_peak_covers", "step_ends_with", "layer_calls_of_steps"),
        *("input_shape", "stopped_after_steps"),
        *("model", "family", "weights", "preprocessing", "batch", "transcription"),
        *("commit", "commit_time", "uncommitted_changes"),
        *("container", "image", "place", "runs_beside", "cores"),
        *("ncu:metrics", "ncu:metrics_chosen", "ncu:not_replayed", "ncu:ranks", "ncu:layers"),
        *("ncu:extrapolated", "ncu:left_out"),
    ]
)
"""Keys of a report's environment that are stored, besides ``option:NAME``: what perfctl's own
records and its parsers state, and its pages, comparisons and causes read."""


def find_hidden_letters(text: str) -> set[str]:
    """Return the characters of a text that a reader would not see, or that a terminal obeys."""
    if text.isascii() and text.isprintable():
        return set()
    return {
        letter
        for letter in set(text)
        if INVISIBLE_LETTERS.match(letter)
        or not (letter.isprintable() or unicodedata.category(letter) == "Zs")
    }


def escape_hidden_letters(text: str, exceptions: str = "") -> str:
    """Return a text whose hidden letters, except ``exceptions``, are written as Python writes them:
    ``\\x1b``, ``\\u202e``."""
    hidden = find_hidden_letters(text) - set(exceptions)
    return text.translate(
        {ord(letter): letter.encode("unicode_escape").decode() for letter in hidden}
    )


def escape_hidden_values(value: Any) -> Any:
    """Return a JSON value whose texts and keys have no characters that cannot be seen."""
    if isinstance(value, dict):
        return {
            escape_hidden_letters(key): escape_hidden_values(part) for key, part in value.items()
        }
    if isinstance(value, list):
        return [escape_hidden_values(part) for part in value]
    return escape_hidden_letters(value) if isinstance(value, str) else value


def neutralize_text(text: str, output_format: Literal["csv", "xml", "github"]) -> str:
    """Return a text that the program which reads ``output_format`` neither runs nor refuses: a
    spreadsheet that splits at commas or semicolons, an XML parser, a runner of GitHub Actions."""
    if output_format == "csv":
        if _NUMBER.fullmatch(text):
            return text
        return _FORMULA.sub("'", _FORMULA_BEHIND.sub(r"\1'", text), count=1)
    if output_format == "xml":
        return _NO_XML.sub("\ufffd", text)
    return escape_hidden_letters(text, "\t\r\n").replace("##[", "##\\[")


def mask_secrets(text: str) -> str:
    """Return the text without its secrets; half a surrogate pair becomes "?"."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    if not can_hold_secret(text):
        return text
    return SECRET.sub(lambda found: get_unmasked_prefix(found) + REMOVED, text)


def can_hold_secret(text: str) -> bool:
    """Return False where SECRET matches nowhere; ten times faster than to search for it."""
    return any(sign in text for sign in _SIGNS)


def get_unmasked_prefix(match: re.Match[str]) -> str:
    """Return the beginning of a match that is no secret, such as a setting's name."""
    return match[match.lastindex] if match.lastindex else ""


def mask_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return an argument list without the values of secret options and settings."""
    masked = []
    option = ""
    for text in arguments:
        name, equals, _ = text.partition("=")
        if equals and _SECRET_NAME.fullmatch(name):
            masked.append(f"{name}={REMOVED}")
        elif _SECRET_NAME.fullmatch(option) and not text.startswith("-"):
            masked.append(REMOVED)
        else:
            masked.append(mask_secrets(text))
        option = text if text.startswith("-") and not equals else ""
    return tuple(masked)


def mask_command_line(command: str) -> str:
    """Return a shell's command line without secrets; as it was where it has none."""
    try:
        arguments = shlex.split(command)
    except ValueError:
        return mask_secrets(command)
    masked = mask_arguments(arguments)
    return mask_secrets(command) if masked == tuple(arguments) else shlex.join(masked)


def select_storable_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what is stored of a report's environment: FACTS and options, without secrets."""
    return {
        mask_secrets(key): REMOVED if _SECRET_NAME.fullmatch(key) else mask_secrets(value)
        for key, value in environment.items()
        if key in FACTS or key.startswith("option:")
    }


@contextmanager
def collect_truncated_text_lengths() -> Iterator[dict[int, int]]:
    """Hash -> length of each text that is cut inside the block."""
    lengths: dict[int, int] = {}
    before = _CUT.set(lengths)
    try:
        yield lengths
    finally:
        _CUT.reset(before)


def mask_and_truncate_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row by column; JSON stays JSON."""
    return {
        name: mask_and_truncate_text(value) if isinstance(value, str) else value
        for name, value in row.items()
    }


def mask_and_truncate_text(text: str) -> str:
    """Return one text as the store keeps it: without secrets, and the beginning of a long one."""
    longest = LONGEST_JSON if text.startswith(("[", "{")) else LONGEST
    if len(text) <= longest:
        return mask_secrets(text)
    if (lengths := _CUT.get()) is not None:
        lengths[hash(text)] = len(text)
    return f"{mask_secrets(text[: LONGEST + _BEHIND])[:LONGEST]} ... ({len(text):,} characters)"


def mask_and_truncate_column(column: Sequence[Any]) -> Sequence[Any]:
    """Some rows of one column; what holds no text is given back as it is, at once."""
    if not isinstance(next((value for value in column if value is not None), None), str):
        return column
    texts = {value for value in set(column) if isinstance(value, str)}
    joined = "\n".join(texts)
    if mask_secrets(joined) == joined and max(map(len, texts)) <= LONGEST:
        return column
    cleaned = {text: mask_and_truncate_text(text) for text in texts}
    return [cleaned.get(value, value) if isinstance(value, str) else value for value in column]
