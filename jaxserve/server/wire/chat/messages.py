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
    content = join_parts(parsed.content, f"{path}.content", *_PART_TYPES.get(parsed.role, ()))
    converted: dict[str, Any] = {"role": ROLES[parsed.role], "content": content}
    if parsed.name is not None:
        converted["name"] = parsed.name
    if parsed.tool_call_id is not None:
        converted["tool_call_id"] = parsed.tool_call_id
    thoughts = _thoughts(parsed.content, f"{path}.content") if parsed.role == "assistant" else ""
    if reasoning := parsed.reasoning or parsed.reasoning_content or thoughts:
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
    # An assistant's message may have calls alone, and a tool may have returned nothing.
    if not message.content and message.role not in ("assistant", "tool"):
        if message.content is None:
            raise InvalidRequestError(f"{path}.content must not be null", f"{path}.content")
        if message.content == []:
            raise InvalidRequestError(f"{path}.content must not be empty", f"{path}.content")


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


class _Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str


class _TextPart(_Part, kw_only=True, forbid_unknown_fields=True):
    text: str


class _RefusalPart(_Part, kw_only=True, forbid_unknown_fields=True):
    refusal: str


class _ThinkingPart(_Part, kw_only=True, forbid_unknown_fields=True):
    thinking: str


# Parts of content that aren't text, by the type that they name.
_OTHER_PARTS: dict[str, tuple[type[_Part], str]] = {
    "refusal": (_RefusalPart, "refusal"),
    "thinking": (_ThinkingPart, "thinking"),
    "reasoning": (_TextPart, "text"),
}
_THOUGHTS = ("thinking", "reasoning")


def join_parts(
    content: str | list[dict[str, Any]] | None,
    path: str,
    text_types: tuple[str, ...] = ("text",),
    left_out: tuple[str, ...] = (),
) -> str:
    """The text of a message's content; several parts are joined by line breaks, as vLLM does.

    Args:
        text_types: types of parts that hold text.
        left_out: types of parts that don't count.
    """
    if isinstance(content, str):
        return content
    parts = [(i, part) for i, part in enumerate(content or ()) if part.get("type") not in left_out]
    return "\n".join(_part_text(part, f"{path}[{i}]", text_types) for i, part in parts)


# Parts that messages of a role may have besides texts: text_types and left_out of join_parts().
_PART_TYPES = {"assistant": (("text", "refusal"), _THOUGHTS)}


def _thoughts(content: str | list[dict[str, Any]] | None, path: str) -> str:
    """The text of the parts of an assistant's content that are its reasoning."""
    if content is None or isinstance(content, str):
        return ""
    parts = [(i, part) for i, part in enumerate(content) if part.get("type") in _THOUGHTS]
    return "\n".join(_part_text(part, f"{path}[{i}]", _THOUGHTS) for i, part in parts)


def _part_text(part: dict[str, Any], path: str, text_types: tuple[str, ...]) -> str:
    kind = part.get("type")
    if isinstance(kind, str) and kind not in text_types:
        raise InvalidRequestError(
            f"{path}: content of type {kind!r} isn't supported; send text", path
        )
    struct, field = _OTHER_PARTS.get(str(kind), (_TextPart, "text"))
    return str(getattr(parse(part, struct, {}, f"{path}."), field))
