"""Items of a conversation: from the responses API's form to the chat template's."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.server.wire.chat_messages import ROLES, CalledFunction, arguments_of, join_parts
from jaxserve.server.wire.validation import parse

TEXTS = ("input_text", "output_text", "text")


class MessageInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]
    type: Literal["message"] = "message"


class CallInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[dict[str, Any]]


class ReasoningInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["reasoning"]
    content: list[dict[str, Any]] | None = None


# What an answer's items have beside, which says nothing to the model.
_ECHOED: dict[str, tuple[Any, ...]] = {
    "status": ("completed", "incomplete", "in_progress"),
    "phase": (),
    "caller": (),
    "namespace": (),
    "async": (),
    "encrypted_content": (),
    "summary": ([],),
}


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
    # Whatever is left of an assistant that only thought.
    return [message | {"content": message.get("content", "")} for message in messages]


def _append(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    """Adds an item; reasoning, text and calls in a row are one message of the assistant."""
    kind = item.get("type", "message")
    item = {name: value for name, value in item.items() if name != "id"}
    match kind:
        case "message":
            message = parse(_without_extras(item), MessageInput, _ECHOED, f"{where}.")
            text = join_parts(message.content, f"{where}.content", TEXTS)
            if message.role == "assistant":
                _assistant(messages, "content")["content"] = text
            else:
                messages.append({"role": ROLES[message.role], "content": text})
        case "reasoning":
            thought = parse(item, ReasoningInput, _ECHOED, f"{where}.")
            if thought.content:
                text = join_parts(thought.content, f"{where}.content", ("reasoning_text",))
                own = _assistant(messages, "reasoning_content")
                own["reasoning"] = own["reasoning_content"] = text
        case "function_call":
            call = parse(item, CallInput, _ECHOED, f"{where}.")
            arguments = arguments_of(
                CalledFunction(name=call.name, arguments=call.arguments), where
            )
            function = {"name": call.name, "arguments": arguments}
            calls = _assistant(messages, None).setdefault("tool_calls", [])
            calls.append({"id": call.call_id, "type": "function", "function": function})
        case "function_call_output":
            result = parse(item, CallOutputInput, _ECHOED, f"{where}.")
            text = join_parts(result.output, f"{where}.output", TEXTS)
            messages.append({"role": "tool", "tool_call_id": result.call_id, "content": text})
        case _:
            raise InvalidRequestError(
                f"{where}: items of type {kind!r} aren't supported by this server", f"{where}.type"
            )


def _assistant(messages: list[dict[str, Any]], part: str | None) -> dict[str, Any]:
    """The last message if it is the assistant's and has neither this part nor, for a part that
    comes before calls, a call; else a new one."""
    last = messages[-1] if messages else {}
    full = part is not None and (part in last or "tool_calls" in last)
    if last.get("role") != "assistant" or full:
        messages.append({"role": "assistant"})
    return messages[-1]


def _without_extras(item: dict[str, Any]) -> dict[str, Any]:
    """A message without what an answer's parts have beside their text."""
    content = item.get("content")
    if not isinstance(content, list):
        return item
    parts = [
        {name: value for name, value in part.items() if name not in ("annotations", "logprobs")}
        if isinstance(part, dict) and part.get("type") == "output_text"
        else part
        for part in content
    ]
    return item | {"content": parts}
