"""Messages of a conversation: from the API's form to the chat template's."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.server.wire.validation import parse

# Templates know no developer, OpenAI's newer name of the system role.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class CalledFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Args: arguments: a JSON object as text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call that the assistant made, as it is sent back."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message; `name` is handed to the chat template.

    Args:
        tool_calls: of an assistant.
        tool_call_id: of a tool's result: the call it answers.
        reasoning, reasoning_content: two names of an assistant's reasoning; templates decide
            whether the model sees it again.
    """

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


# Values that ask for nothing; null always does.
MESSAGE_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "function_call": (),
    "refusal": ("",),
    "audio": (),
    "annotations": ([],),
}


def template_message(message: dict[str, Any], where: str) -> dict[str, Any]:
    """A message as chat templates expect it: its content one string, arguments of calls objects.

    Raises:
        InvalidRequestError: names the part that is malformed or unsupported.
    """
    parsed = parse(message, ChatMessage, MESSAGE_UNSUPPORTED, f"{where}.")
    if parsed.role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role must be one of {', '.join(ROLES)}; it was {parsed.role!r}",
            f"{where}.role",
        )
    _check_role(parsed, where)
    # Many templates join strings, and would fail at null.
    content = "" if parsed.content is None else join_parts(parsed.content, f"{where}.content")
    answer: dict[str, Any] = {"role": ROLES[parsed.role], "content": content}
    if parsed.name is not None:
        answer["name"] = parsed.name
    if parsed.tool_call_id is not None:
        answer["tool_call_id"] = parsed.tool_call_id
    if reasoning := parsed.reasoning or parsed.reasoning_content:
        answer |= {"reasoning": reasoning, "reasoning_content": reasoning}
    if parsed.tool_calls:
        calls = enumerate(parsed.tool_calls)
        answer["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in calls]
    return answer


def _check_role(message: ChatMessage, where: str) -> None:
    """Refuses parts that a message of this role can't have, or lacks."""
    allowed = {
        "tool_calls": "assistant",
        "reasoning": "assistant",
        "reasoning_content": "assistant",
        "tool_call_id": "tool",
    }
    for name, role in allowed.items():
        if getattr(message, name) and message.role != role:
            raise InvalidRequestError(
                f"{where}.{name} belongs to the role {role}, not {message.role}", f"{where}.{name}"
            )
    if message.role == "tool" and message.tool_call_id is None:
        param = f"{where}.tool_call_id"
        raise InvalidRequestError(f"you must provide {param}", param)
    if message.content is None and not message.tool_calls:
        raise InvalidRequestError(f"{where}.content must not be null", f"{where}.content")


def _call(call: ToolCall, where: str) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": arguments_of(call.function, where)}
    return {"id": call.id, "type": "function", "function": function}


def arguments_of(function: CalledFunction, where: str) -> dict[str, Any]:
    param = f"{where}.function.arguments"
    try:
        arguments = json.loads(function.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{param} isn't valid JSON: {error}", param) from None
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"{param} must be a JSON object", param)
    return arguments


class _TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    text: str


def join_parts(
    content: str | list[dict[str, Any]], where: str, kinds: tuple[str, ...] = ("text",)
) -> str:
    """The text of a message's content; several parts are joined by line breaks, as vLLM does.

    Args:
        kinds: types of parts that hold text.
    """
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequestError(f"{where} must not be empty", where)
    return "\n".join(_part_text(part, f"{where}[{i}]", kinds) for i, part in enumerate(content))


def _part_text(part: dict[str, Any], where: str, kinds: tuple[str, ...]) -> str:
    kind = part.get("type")
    if isinstance(kind, str) and kind not in kinds:
        raise InvalidRequestError(
            f"{where}: content of type {kind!r} isn't supported; send text", where
        )
    return parse(part, _TextPart, {}, f"{where}.").text
