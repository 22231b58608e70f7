"""Messages of a conversation: from the API's form to the form that chat templates expect."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.server.wire.validation import parse
from jaxserve.text.surrogates import without_half_surrogates

# Chat templates don't know "developer", OpenAI's newer name of the system role.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class CalledFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Args: arguments: a JSON object as text. In a history it may be any text, or the object."""

    name: str
    arguments: str | dict[str, Any] | None


class ToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call by the assistant, in a response and in a later request's messages."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message; `name` is passed to the chat template.

    Args:
        tool_calls: in a message of the assistant.
        tool_call_id: in a tool's result: the id of the call it belongs to.
        reasoning, reasoning_content: two names of the assistant's reasoning; the chat template
            decides whether the model sees it again.
    """

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


# With the values that are accepted because they change nothing; null always is.
MESSAGE_UNSUPPORTED: dict[str, tuple[Any, ...]] = {"function_call": ()}


def template_message(message: dict[str, Any], path: str) -> dict[str, Any]:
    """A message as chat templates expect it: its content one string, arguments of calls objects.

    Args:
        path: where the request has the message, such as "messages[0]", for error messages.

    Raises:
        InvalidRequestError: names the field that is malformed or unsupported.
    """
    parsed = parse(message, ChatMessage, MESSAGE_UNSUPPORTED, f"{path}.")
    if parsed.role not in ROLES:
        raise InvalidRequestError(
            f"{path}.role must be one of {', '.join(ROLES)}; it was {parsed.role!r}",
            f"{path}.role",
        )
    _check_role(parsed, path)
    # Many templates concatenate strings, and fail on null.
    content = "" if parsed.content is None else join_parts(parsed.content, f"{path}.content")
    converted: dict[str, Any] = {"role": ROLES[parsed.role], "content": content}
    if parsed.name is not None:
        converted["name"] = parsed.name
    if parsed.tool_call_id is not None:
        converted["tool_call_id"] = parsed.tool_call_id
    if reasoning := parsed.reasoning or parsed.reasoning_content:
        converted |= {"reasoning": reasoning, "reasoning_content": reasoning}
    if parsed.tool_calls:
        converted["tool_calls"] = [
            template_call(call.id, call.function) for call in parsed.tool_calls
        ]
    return converted


def _check_role(message: ChatMessage, path: str) -> None:
    """Refuses fields that a message of this role can't have, or lacks."""
    allowed = {
        "tool_calls": "assistant",
        "reasoning": "assistant",
        "reasoning_content": "assistant",
        "tool_call_id": "tool",
    }
    for name, role in allowed.items():
        if getattr(message, name) and message.role != role:
            raise InvalidRequestError(
                f"{path}.{name} belongs to the role {role}, not {message.role}", f"{path}.{name}"
            )
    if message.role == "tool" and message.tool_call_id is None:
        param = f"{path}.tool_call_id"
        raise InvalidRequestError(f"you must provide {param}", param)
    if message.content is None and message.role != "assistant":
        raise InvalidRequestError(f"{path}.content must not be null", f"{path}.content")


def template_call(call_id: str, function: CalledFunction) -> dict[str, Any]:
    """A call as chat templates expect it."""
    arguments = {"name": function.name, "arguments": _arguments(function.arguments)}
    return {"id": call_id, "type": "function", "function": arguments}


def _arguments(given: str | dict[str, Any] | None) -> dict[str, Any] | str:
    """Arguments as an object. Text that isn't one, because the model wrote it so or was cut off,
    stays text; empty text and null are an object without fields."""
    arguments: Any = given
    if isinstance(given, str):
        try:
            arguments = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            return given
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        return str(given)
    replaced: dict[str, Any] = json.loads(
        without_half_surrogates(json.dumps(arguments, ensure_ascii=False))
    )
    return replaced


class _TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    text: str


def join_parts(
    content: str | list[dict[str, Any]], path: str, text_types: tuple[str, ...] = ("text",)
) -> str:
    """The text of a message's content; several parts are joined by line breaks, as vLLM does.

    Args:
        text_types: types of parts that hold text.
    """
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequestError(f"{path} must not be empty", path)
    parts = enumerate(content)
    return "\n".join(_part_text(part, f"{path}[{i}]", text_types) for i, part in parts)


def _part_text(part: dict[str, Any], path: str, text_types: tuple[str, ...]) -> str:
    kind = part.get("type")
    if isinstance(kind, str) and kind not in text_types:
        raise InvalidRequestError(
            f"{path}: content of type {kind!r} isn't supported; send text", path
        )
    return parse(part, _TextPart, {}, f"{path}.").text
