"""A synthetic nsys export that holds a made-up process environment in every place where real
ones do."""

from __future__ import annotations

from pathlib import Path

from tests.parsers.nsys_builder import NsysBuilder, training_step

GITHUB = "ghp_" + "0123456789abcdefghijklmnopqrstuvwxyz"
PASSWORD = "correct-horse"
ENVIRONMENT = (
    "PATH=/usr/bin:/bin",
    "HOME=/home/me",
    "LD_LIBRARY_PATH=/opt/lib",
    "XDG_SEAT=seat0",
    "MY_OWN=private-life",
)
VALUES = (GITHUB, PASSWORD, "/usr/bin:/bin", "/home/me", "/opt/lib", "private-life")
"""None of these may be left anywhere in a copy."""


def with_environment(path: Path, generation: str = "2024.2") -> Path:
    """One training step of ``nsys_builder``, and the environment; each generation has the tables
    that real ones have."""
    builder = training_step(NsysBuilder(generation))
    for variable in (*ENVIRONMENT, f"FAKE_TOKEN={GITHUB}", f"DB_PASSWORD={PASSWORD}"):
        builder.string(variable)
    if generation != "2020.3":
        row = {"devStateName": "Local (CLI)"}
        columns = "globalVid devStateName name nameEnum value"
        whole = "\n".join((*ENVIRONMENT, f"FAKE_TOKEN={GITHUB}"))
        builder.row("TARGET_INFO_SYSTEM_ENV", columns, **row, name="DeviceEnvironment", value=whole)
        builder.row("TARGET_INFO_SYSTEM_ENV", columns, **row, name="CpuCores", value="2")
    if generation in ("2024.2", "2026.1"):
        for variable in (*ENVIRONMENT, f'DB_PASSWORD="{PASSWORD}"'):
            builder.row(
                "META_DATA_CAPTURE",
                "name value",
                name="PROCESS_0:ENVIRONMENT_VARIABLE",
                value=variable,
            )
        builder.row("META_DATA_CAPTURE", "name value", name="RATE_HZ", value="0")
        said = f"Launched with DB_PASSWORD={PASSWORD}"
        columns = "timestamp timestampType source severity text globalPid"
        builder.row("DIAGNOSTIC_EVENT", columns, severity=1, source=1, text=said)
    return builder.write(path)
