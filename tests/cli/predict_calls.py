"""perfctl predict, called for a small network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NET = "vgg:depth=6,stages=3,width=16,image=32,hidden=64"


def ask(call: Callable[..., Any], *words: object) -> Any:
    said = call("predict", NET, "--json", *words)
    assert said.code == 0, said.err
    return said.json
