"""Items of a conversation: from the responses API's form to the form that templates expect."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.server.wire.chat.messages import ROLES, CalledFunction, join_parts, template_call
from jaxserve.server.wire.validation import parse

TEXT_TYPES = ("input_text", "output_text", "text", "refusal")


class MessageInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]
    type: Literal["message"] = "message"


class CallInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str | dict[str, Any] | None


class CallOutputInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[dict[str, Any]]


class ReasoningInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["reasoning"]
    content: list[dict[str, Any]] | None = None


def as_items(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An input as items."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def to_messages(
    given: str | list[dict[str, Any]], instructions: str | None
) -> list[dict[str, Any]]:
    """The conversation in the chat template's form.

    Raises:
        InvalidRequestError: names the item that is malformed or unsupported.
    """
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not given:
        raise InvalidRequestError("input must not be empty", "input")
    for i, item in enumerate(given):
        _append(messages, item, f"input[{i}]")
    # The assistant's messages of reasoning alone have no content yet.
    return [message | {"content": message.get("content", "")} for message in messages]


def _append(messages: list[dict[str, Any]], item: dict[str, Any], path: str) -> None:
    """Adds an item. Consecutive reasoning, text and calls become one message of the assistant."""
    kind = item.get("type") or "message"
    item = {name: value for name, value in item.items() if name != "id"} | {"type": kind}
    match kind:
        case "message":
            message = parse(item, MessageInput, {}, f"{path}.")
            text = join_parts(message.content, f"{path}.content", TEXT_TYPES)
            if message.role == "assistant":
                _assistant_message(messages, "content")["content"] = text
            else:
                messages.append({"role": ROLES[message.role], "content": text})
        case "reasoning":
            reasoning = parse(item, ReasoningInput, {}, f"{path}.")
            if reasoning.content:
                text = join_parts(reasoning.content, f"{path}.content", ("reasoning_text",))
                target = _assistant_message(messages, "reasoning_content")
                target["reasoning"] = target["reasoning_content"] = text
        case "function_call":
            call = parse(item, CallInput, {}, f"{path}.")
            function = CalledFunction(name=call.name, arguments=call.arguments)
            converted = template_call(call.call_id, function)
            _assistant_message(messages, None).setdefault("tool_calls", []).append(converted)
        case "function_call_output":
            result = parse(item, CallOutputInput, {}, f"{path}.")
            text = join_parts(result.output, f"{path}.output", TEXT_TYPES)
            messages.append({"role": "tool", "tool_call_id": result.call_id, "content": text})
        case "item_reference":
            raise InvalidRequestError(
                f"{path} refers to a stored item, and this server stores none: send the item "
                "itself, with store: false",
                f"{path}.type",
            )
        case _:
            raise InvalidRequestError(
                f"{path}: items of type {kind!r} aren't supported by this server", f"{path}.type"
            )


def _assistant_message(messages: list[dict[str, Any]], part: str | None) -> dict[str, Any]:
    """The assistant's message that a part belongs to: the last message, or a new one if the last
    is another role's or can't take the part.

    Args:
        part: its field, which the message must not have yet, nor have calls, which come after it;
            None for a call.
    """
    last = messages[-1] if messages else {}
    full = part is not None and (part in last or "tool_calls" in last)
    if last.get("role") != "assistant" or full:
        messages.append({"role": "assistant"})
    return messages[-1]
