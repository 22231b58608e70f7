"""Tools for models whose chat template doesn't know them: told in a message, called as JSON in
tags, the format of the parser `generic`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

_EXPLAINED = """\
You may call tools. Each line is the JSON of one:
{tools}

To call a tool, write its name and its arguments as JSON in tags, and nothing after them:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>
Its result comes back in <tool_response> tags. If no tool is needed, answer without a call."""


def with_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    takes_system: bool,
) -> list[Message]:
    """A conversation that explains the tools, and has calls and their results as text.

    Args:
        tools: as chat templates get them.
        takes_system: whether the chat template writes system messages; else the first message of
            the user has the explanation.
    """
    told: list[Message] = []
    after_result = False
    for given in messages:
        message, is_result = _as_text(given), given["role"] == "tool"
        # Many templates refuse two messages of the user in a row.
        if after_result and message["role"] == "user":
            told[-1] = told[-1] | {"content": f"{told[-1]['content']}\n{message['content']}"}
        else:
            told.append(message)
            after_result = is_result
    if tools is None:
        return told
    text = _EXPLAINED.format(tools="\n".join(json.dumps(t, ensure_ascii=False) for t in tools))
    role = "system" if takes_system else "user"
    first = next((i for i, message in enumerate(told) if message["role"] == role), None)
    if first is None or (role == "system" and first > 0):
        return [{"role": role, "content": text}, *told]
    own = told[first]["content"]
    joined = f"{own}\n\n{text}" if role == "system" else f"{text}\n\n{own}"
    told[first] = told[first] | {"content": joined}
    return told


def _as_text(message: Mapping[str, Any]) -> Message:
    if message["role"] == "tool":
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": text}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    written = [message["content"]] if message.get("content") else []
    for call in calls:
        function = call["function"]
        body = {"name": function["name"], "arguments": function["arguments"]}
        written.append(f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>")
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return kept | {"content": "\n".join(written)}
