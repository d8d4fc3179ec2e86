"""Turn the rules of gitleaks into perfctl/redact/gitleaks.json.

    python scripts/accept/secret_rules.py gitleaks.toml VERSION > perfctl/redact/gitleaks.json

``gitleaks.toml`` is the file of gitleaks' own rules (config/gitleaks.toml of a release). Two kinds
of them are taken: tokens that begin with fixed letters, and values of a fixed form beside the name
of a service. Left out: IDs and public keys, which are no secrets; rules for whole files; rules that
perfctl has in another form (names of settings, headers, private keys, JSON web tokens).
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

_CONTEXT = r"""(?:[ \t\w.-]{0,20})[\s'"]{0,3}"""
_BETWEEN = r"""(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)[\x60'"\s=]{0,5}("""
_END = re.compile(
    r"\((?:\?:)?(?:\[\\x60'\"\\s;\]\|\\\\\[nr\]\|\$(?:\|\\b)?|\[\^\\w-\]\|\\z|\[\^a-zA-Z0-9\+/"
    r"\]\|\\z)\)\Z"
)
"""How gitleaks says that a token ends; here no letter or digit may follow it."""
_PUBLIC = (
    "-client-id",
    "-access-id",
    "-pub-key",
    "-pub-api-key",
    "-public-key",
    "messagebird-client-id",
)
_OTHERWISE = {
    *(
        "generic-api-key",
        "hashicorp-tf-password",
        "curl-auth-header",
        "curl-auth-user",
        "private-key",
        "jwt",
        "jwt-base64",
    ),
    *(
        "kubernetes-secret-yaml",
        "nuget-config-password",
        "freemius-secret-key",
        "sidekiq-sensitive-url",
        "slack-webhook-url",
    ),
    *(
        "microsoft-teams-webhook",
        "gitlab-session-cookie",
        "huggingface-access-token",
        "sourcegraph-access-token",
    ),
    *("linear-client-secret",),  # Linear is a layer, too
}
_FIXED = re.compile(r"(?:\(\?i\)|\(\?i:|\\b|\()*((?:[A-Za-z0-9_~-]|\\[.-])+)")
_SHORTEST = 3
"""Characters that a token must begin with."""
_WITHIN = ("atlasv1", "_mmk")
"""Keywords that are not the beginning."""


def python(pattern: str) -> str:
    """RE2's syntax as Python's: flags for the whole, classes of POSIX, the end of the text."""
    whole = "(?i:" + pattern.removeprefix("(?i)") + ")" if pattern.startswith("(?i)") else pattern
    # from here to the end of the group, or of the whole
    while found := re.search(r"\(\?i\)", whole):
        depth, end = 0, len(whole)
        for place in range(found.end(), len(whole)):
            depth += (whole[place] == "(") - (whole[place] == ")")
            if depth < 0:
                end = place
                break
        whole = f"{whole[: found.start()]}(?i:{whole[found.end() : end]}){whole[end:]}"
    return whole.replace("[[:alnum:]]", "[A-Za-z0-9]").replace(r"\z", r"\Z")


def words(rule: dict[str, Any]) -> str:
    """What a rule finds: "a GitLab token" for gitlab-pat."""
    kind = " ".join(part for part in rule["id"].split("-"))
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def service(rule: dict[str, Any]) -> list[Any] | None:
    """[words of which one is in the name, pattern of the name, pattern of the value, what it is,
    least entropy]"""
    head, found, value = rule["regex"].partition(_CONTEXT)
    if not found or _BETWEEN not in value:
        return None
    value = _END.sub("", value[value.index(_BETWEEN) + len(_BETWEEN) - 1 :].partition("|\\b(")[0])
    name = re.sub(r"\A(?:\(\?i\)|\(\?i:|\[\\w\.-\]\{0,50\}\?)+", "", head)
    flag = "(?i)" if "(?i" in head else ""
    named = [word for word in rule["keywords"] if word in name.lower()] or re.findall(
        "[a-z]{3,}", name
    )
    return [named, python(flag + name), python(flag + value), words(rule), rule.get("entropy", 0)]


def token(rule: dict[str, Any]) -> list[list[Any]]:
    """[how it begins, the whole as a pattern, what it is, least entropy], for each beginning."""
    pattern = python(_END.sub("", rule["regex"]).removeprefix(r"\b"))
    starts = (
        {_FIXED.match(rule["regex"])[1].replace("\\", "")} if _FIXED.match(rule["regex"]) else set()
    )  # type: ignore[index]
    if not starts or len(min(starts)) < _SHORTEST:
        starts = {word for word in map(_cased(rule["regex"]), rule["keywords"]) if word}
    starts = {start for start in starts if len(start) >= _SHORTEST and start not in _WITHIN}
    return [[start, pattern, words(rule), rule.get("entropy", 0)] for start in sorted(starts)]


def _cased(pattern: str) -> Any:
    def cased(word: str) -> str:
        place = pattern.lower().find(word)
        return (
            pattern[place : place + len(word)]
            if place >= 0
            else word
            if word in ("sq0atp-",)
            else ""
        )

    return cased


def main() -> None:
    rules = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rules"]
    kept = [
        rule
        for rule in rules
        if "regex" in rule and rule["id"] not in _OTHERWISE and not rule["id"].endswith(_PUBLIC)
    ]
    services = [found for rule in kept if (found := service(rule))]
    tokens = [found for rule in kept if not service(rule) for found in token(rule)]
    for pattern in (
        *(rule[1] for rule in tokens),
        *(part for rule in services for part in rule[1:3]),
    ):
        re.compile(pattern)
    missing = [rule["id"] for rule in kept if not service(rule) and not token(rule)]
    print("No fixed beginning:", ", ".join(missing) or "none", file=sys.stderr)
    about = {
        "source": f"gitleaks {sys.argv[2]}, config/gitleaks.toml",
        "licence": "MIT, gitleaks-LICENSE.txt",
    }
    lines = [f'  "{name}": {json.dumps(value)}' for name, value in about.items()]
    for name, found in (("tokens", tokens), ("services", services)):
        lines.append(f'  "{name}": [\n    ' + ",\n    ".join(map(json.dumps, found)) + "\n  ]")
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
