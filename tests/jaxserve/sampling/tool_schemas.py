"""200 JSON schemas for structured output: 50 hand-written tool definitions (tools.json), each in
four forms in which servers constrain a model's answer to them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

Schema = dict[str, Any]


def schemas() -> list[Schema]:
    """For each tool: its arguments; its arguments in OpenAI's strict form; a call of it; a list of
    one or two calls of it or its neighbour."""
    tools = json.loads(Path(__file__).with_name("tools.json").read_text())
    made = []
    for tool, neighbour in zip(tools, tools[1:] + tools[:1], strict=True):
        made += [tool["parameters"], strict(tool["parameters"]), call(tool)]
        both, defs = [], {}
        for schema in (call(tool), call(neighbour)):
            defs |= schema.pop("$defs")
            both.append(schema)
        items = {"anyOf": both}
        made.append({"type": "array", "items": items, "minItems": 1, "maxItems": 2, "$defs": defs})
    return made


def strict(schema: Any) -> Any:
    """All properties required, those that were optional may be null, and no others."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(value) for key, value in schema.items() if key not in ("enum", "const")}
    out |= {key: schema[key] for key in ("enum", "const") if key in schema}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        required = schema.get("required", [])
        out["properties"] = {
            name: value if name in required else {"anyOf": [value, {"type": "null"}]}
            for name, value in out["properties"].items()
        }
        out |= {"required": list(out["properties"]), "additionalProperties": False}
    return out


def call(tool: Schema) -> Schema:
    """The object that names a tool and holds its arguments."""
    arguments = copy.deepcopy(tool["parameters"])
    defs = arguments.pop("$defs", {})
    return {
        "type": "object",
        "properties": {"name": {"const": tool["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
        "$defs": defs,
    }
