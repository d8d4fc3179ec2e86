"""Secrets that are known by their name: variables of an environment, options, fields of JSON, YAML,
XML and INI files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfctl.redact.shapes import BEFORE, NAME, REMOVED, Secret, entropy, is_login

_WORDS = (
    *(
        b"token",
        b"secret",
        b"password",
        b"passwd",
        b"passphrase",
        b"credential",
        b"api_key",
        b"apikey",
        b"api-key",
    ),
    *(
        b"access_key",
        b"accesskey",
        b"access-key",
        b"private_key",
        b"privatekey",
        b"private-key",
        b"_pwd",
        b"_pass",
        b"-pass",
    ),
)
"""The upper-case name of a variable that counts as a secret contains one of these; a lower-case one
ends with it."""
_IN_NAME = re.compile(b"|".join(map(re.escape, _WORDS)))
_STEMS = (b"token", b"secret", b"pass", b"credential", b"key", b"pwd", b"auth")
"""One of these is in each name that counts; to look for few is faster."""
_NAME_END = rb"[A-Za-z0-9_.-]{0,100}+"
_QUOTED = rb"[^\"'\\\n]{0,128}+(?:\\[^\"'\n][^\"'\\\n]{0,128}+){0,8}+"
_BARE = rb"[^\s\"'\\]{0,128}+(?:\\(?![nrt\"'u])[^\s\"'\\]{0,128}+){0,8}+"
_AFTER = re.compile(
    _NAME_END + rb"(?:"
    # a list of name and value
    rb"(?P<value_field>\\{0,3}[\"']?\s?,?\s{0,40}\\{0,3}[\"']?value\\{0,3}[\"']?\s?[:=]"
    rb"\s?(?=[\"'\\A-Za-z0-9]))"
    rb"|(?P<sign>(?:\\{0,3}[\"'])?\]?(?:[ \t]{0,8}(?:=>|:=|=(?!=)|%3[dD])[ "
    rb"\t]{0,8}|(?<=[\"'\]])\s{0,4}:\s{0,4}|:[ \t]{1,8}))"
    # "--token", "..." in a list of arguments, and cells of a CSV
    rb"|(?P<list>\\{0,3}[\"']\s{0,4},\s{0,40}(?=\\{0,3}[\"']))"
    rb"|(?P<tag>>(?=[^<>\s]{1,256}</))"
    rb"|(?P<blank>[ \t]{1,4}(?![-=:])))"
    rb"(?P<open>\\{0,3}[\"'])?(?P<value>(?(open)" + _QUOTED + rb"|" + _BARE + rb"))"
)
"""From within a name: the rest of it, what stands between, the value. Quoted, with what JSON and
shells write before a quote; else up to a blank, a quote, what separates settings, or an escaped
line end. All of it bounded."""
_QUOTED_ON = re.compile(rb"(?:[^\"'\\\n]++|\\[^\"'\n])*+")
_BARE_ON = re.compile(rb"(?:[^\s\"'\\]++|\\(?![nrt\"'u]))*+")
"""Remainder of an unquoted value that counts as a secret, however long it is."""
_REST = re.compile(_NAME_END)
_HARMLESS = re.compile(
    b"(?:true|false|none|null|nil|yes|no|on|off|t|f|y|n|enabled?|disabled?|default|always|never|"
    rb"auto|void|undefined|\$.*|\*+|x{3,}|\.+"
    # Special tokens of a tokenizer: <pad>, </s>, <|endoftext|>, [MASK].
    rb"|</?[a-z_]{1,24}>|<\|[a-z0-9_ ]{1,40}\|>|\[[A-Z_]{1,12}\]|\{\{.*|%[A-Z_]+%|<[^<>]{1,60}>?"
    rb"|0x[0-9a-f]{1,16}|\d{0,7}(?:\.\d{0,7})?)[,;)\]}]*\Z",
    re.I,
)
_COUNTS = (b"_tokens", b"tokens_per_step", b"token_limit", b"token_budget")
"""Ends of names of numbers of tokens, in lower case."""
_DESKTOP = (b"window_token", b"windowtoken", b"activation_token", b"activationtoken")
"""Ends of names of what a desktop raises a window by: no credential."""
_FEW = re.compile(
    rb"\d{1,7}(?:\.\d{1,7})?(?:e\d{1,2}|[kmgb])?(?:[ _,:x*/-]{1,2}\d{1,7}[kmgb]?){0,7}\Z", re.I
)
"""A number or a few, as settings are written: 128k, 4096x8, 1e6, 16_384, 512:1024."""
_LOOKUPS = (
    *(
        b"sort",
        b"cache",
        b"primary",
        b"foreign",
        b"public",
        b"hash",
        b"partition",
        b"group",
        b"dispatch",
        b"lookup",
        b"dict",
    ),
    *(
        b"hot",
        b"graph",
        b"guard",
        b"kernel",
        b"config",
        b"tuning",
        b"rank",
        b"registry",
        b"row",
        b"column",
        b"index",
        b"state",
    ),
    *(
        b"mon",
        b"tur",
        b"don",
        b"hoc",
        b"jec",
        b"metric",
        b"counter",
        b"attention",
        b"query",
        b"pressed",
        b"function",
    ),
)
"""Beginnings before "key" that make it no secret: what something is found by; and monkey, turkey,
donkey, hockey."""
_DIGITS, _CAPITALS = b"0123456789", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MEASURED = re.compile(rb"[\d.,+-]{1,40}(?:e[+-]?\d{1,3})?\s?[a-z%]{0,3}\Z", re.I)
_PASSES = (
    b"forward_pass",
    b"backward_pass",
    b"forward-pass",
    b"backward-pass",
    b"by_pass",
    b"by-pass",
)
_FOLDERS = re.compile(rb"(?:~|\.{1,2})?/(?:[\w.@+ -]++/?)*+(?::.*)?\Z|[A-Za-z]:\\.*\Z")
_PROSE = re.compile(
    b"(?:is|to|and|or|for|must|should|can|may|will|from|with|of|in|on|at|by|the|a|an|option|if|"
    b"when|as|not|was|has|are|be|used?"
    rb"|file|name|required|optional|string|text|value|here|[A-Z_]+)[,.;:)\]]*\Z"
)
_WORDLIKE = re.compile(rb"[A-Za-z_][A-Za-z_.\[\]-]*\Z")
_CODE = re.compile(rb"[A-Za-z_]\w*(?:\.\w+)+\Z|.*[(\[{]")


_HEADER = re.compile(
    rb"(?i:orization|-token)?[\"'\\]{0,3}\s{0,3}(?:[:=,]|=>)\s{0,3}[\"'\\]{0,3}"
    rb"(?:(?i:bearer|basic|token|apikey|digest|negotiate|aws4-hmac-sha256)(?:\s|%20|\+){1,"
    rb"3})?+(?P<value>[^\s\"'\\]{6,4096}+)"
)
"""What follows "auth" in the header of a request."""

_IN_NAMES = frozenset(bytes([byte]) for byte in NAME)


def variables(text: bytes, small: bytes) -> Iterator[Secret]:
    """Values of what is named like a secret. A name is looked at once for each stem in it, a value
    by its beginning.

    ``small``: the text in lower case.
    """
    for stem in _STEMS:
        place = small.find(stem)
        while place >= 0:
            after = place + len(stem)
            if stem == b"auth" and small.startswith(b"orization", after):
                match = _HEADER.match(text, after)
                if (
                    match
                    and not match["value"].startswith((b"$", b"<", b"{", REMOVED))
                    and not _CODE.match(match["value"])
                ):
                    yield Secret(*match.span("value"), "a header for logging in")
                    after = match.end()
            elif stem == b"key" and small[max(0, place - 1) : place] not in _IN_NAMES:
                pass  # "key" alone: of a table
            elif match := _AFTER.match(text, after):
                start = place - len(_before(text, place))
                while start < place and text[start] in b"-.":
                    start += 1
                name = text[start : _REST.match(text, after).end()]  # type: ignore[union-attr]
                if _is_found(text, start, name, match):
                    end = match.end("value")
                    more = (_BARE_ON if match["open"] is None else _QUOTED_ON).match(text, end)
                    end = more.end() if more else end
                    if match["tag"] is not None:
                        end = text.find(b"<", match.start("value"), end)
                    yield Secret(match.start("value"), end, name.decode("ascii"))
                    after = end
            place = small.find(stem, after)


def _before(text: bytes, place: int) -> bytes:
    """The part of a name that ends at ``place``."""
    before = text[max(0, place - BEFORE) : place]
    return before[len(before.rstrip(NAME + b".")) :]


def _is_found(text: bytes, start: int, name: bytes, match: re.Match[bytes]) -> bool:
    value, quoted = match["value"], match["open"] is not None
    name = name.rpartition(b".")[2] if name[-1:] != b"." else name
    dashes = text[max(0, start - 4) : start]
    # or at the beginning
    option = dashes.endswith(b"-") and dashes.rstrip(b"-")[-1:] in b" \t\n\r\"'[,;|("
    if match["blank"] is not None:
        return (
            option and not _PROSE.match(value) and is_secret(name, value, quoted=True, spoken=True)
        )
    if match["list"] is not None:
        return (option or (name.isupper() and b"_" in name)) and is_secret(name, value, quoted=True)
    if match["tag"] is not None:
        return text[max(0, start - 1) : start] == b"<" and is_secret(name, value, quoted=True)
    if match["value_field"] is not None:
        return is_secret(name, value, quoted=True)
    return is_secret(name, value, quoted=quoted, stated=b":" not in match["sign"])


def is_secret(
    name: bytes, value: bytes, *, quoted: bool, stated: bool = False, spoken: bool = False
) -> bool:
    """Return whether a variable is a secret; settings such as ``MAX_TOKENS=512`` or
    ``token: int64`` are not.

    ``quoted``: the value stood in quotes, or was an argument of its own. ``stated``: after "=", not
    ":". ``spoken``: it follows an option, as in ``--password X``.
    """
    if value.startswith(REMOVED) or REMOVED.startswith(value) or _HARMLESS.match(value):
        return False
    small = name.lower()
    if small.endswith(_DESKTOP) or (small.endswith(_COUNTS) and _FEW.match(value.rstrip(b",;)]}"))):
        return False
    if small in (b"pwd", b"oldpwd"):
        return (
            not value.startswith((b"/", b"~", b"."))
            and not _FOLDERS.match(value)
            and not _CODE.match(value)
        )
    if small.endswith((b"_pwd", b"-pwd")):
        return not _FOLDERS.match(value) and not _CODE.match(value)
    if small.removeprefix(b"_") in (b"auth", b"x-registry-auth"):
        return len(value) >= 8 and is_login(value.rstrip(b",;"))
    if name.isupper() or (name.upper() == name and b"_" in name):
        return _is_secret_variable(small, value)
    bare = small.removesuffix(b"s")
    if bare.endswith(b"tokens") or small.endswith(b"tokens"):
        return False
    is_known = small.endswith(_WORDS) or bare.endswith(_WORDS) or small == b"pass"
    if bare.endswith((b"key", b"key-data", b"key_data")) and not is_known:
        return _opens(bare) and _is_random(value)
    if not is_known or (
        small.endswith(b"pass") and (small.endswith(_PASSES) or _MEASURED.match(value))
    ):
        return False
    if b"(" in value or (not quoted and _CODE.match(value)):
        return False
    worded = b"pass" in small or b"pwd" in small
    if spoken:
        return worded or (len(value) >= 8 and not _FOLDERS.match(value))
    if len(value) < 8:
        return worded and quoted and len(value) > 7
    digits = _count(value, _DIGITS)
    return quoted or worded or digits > 2 or (stated and _is_random(value))


def _is_secret_variable(small: bytes, value: bytes) -> bool:
    if _IN_NAME.search(small.replace(b"tokeniz", b"").replace(b"askpass", b"")):
        return True
    stem, found, _ = small.rpartition(b"key")
    is_key = (
        bool(found)
        and small.endswith((b"key", b"keys"))
        and stem.endswith((b"_", b"api"))
        and _opens(small.removesuffix(b"s"))
    )
    return is_key and not _FOLDERS.match(value)


def _opens(name: bytes) -> bool:
    """Return whether a name that ends with "key" is that of a key to a lock, not of a place in
    a table."""
    stem = name.removesuffix(b"data").rstrip(b"_-").removesuffix(b"key").rstrip(b"_-")
    return bool(stem) and not stem.endswith(_LOOKUPS)


def _count(value: bytes, among: bytes) -> int:
    return len(value) - len(value.translate(None, among))


def _is_random(value: bytes) -> bool:
    """Return whether it looks generated: no words, no path, no number."""
    if (
        len(value) < 12
        or _WORDLIKE.match(value)
        or _FOLDERS.match(value)
        or b"(" in value
        or b"::" in value
    ):
        return False
    body = value.rstrip(b"=")
    digits, upper = _count(body, _DIGITS), _count(body, _CAPITALS)
    lower = len(body) - digits - upper
    return (
        digits > 0
        and digits < len(body)
        and (digits > 2 or (upper > 2 and lower > 2))
        and entropy(body) >= 3
    )
