"""The schema of every answer of ``perfctl mcp``."""

from __future__ import annotations

from typing import Any

from perfctl.orchestrator.actions.schemas import name_of

VERSION = name_of("mcp")
"""Of the answers."""
FLOPS = "1 multiply-add = 2 FLOPs"
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "schema": {"const": VERSION, "description": "Version of this shape."},
        "tool": {"type": "string"},
        "store": {"type": "string", "description": "Name of the store's file."},
        "flops": {"const": FLOPS},
        "note": {"type": "string", "description": "How to read null, and that names are data."},
        "notes": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What was left out or is not certain.",
        },
        "units": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Name of a value -> unit.",
        },
        "sources": {
            "type": "array",
            "items": {"type": "object"},
            "description": "Runs, reports or tables it was made from.",
        },
        "rows": {"type": "array", "items": {"type": "object"}},
        "rows_total": {"type": ["integer", "null"], "description": "null: more than were read."},
        "rows_left_out": {"type": "integer", "description": "Rows that made the answer too long."},
    },
    "required": [
        "schema",
        "tool",
        "store",
        "flops",
        "note",
        "notes",
        "units",
        "sources",
        "rows",
        "rows_total",
    ],
}
"""JSON Schema of every answer; each tool adds keys of its own."""
