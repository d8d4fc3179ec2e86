"""perfctl predict, called for a small network."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Perfctl

NET = "vgg:depth=6,stages=3,width=16,image=32,hidden=64"


def ask(perfctl: Perfctl, options: str) -> Any:
    said = perfctl(f"predict {NET} --json {options}")
    assert said.code == 0, said.err
    return said.json
