"""Anthropic's messages and their blocks: to the form that chat templates expect."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.server.wire.chat.messages import CalledFunction, template_call
from jaxserve.server.wire.ignored_fields import ignore
from jaxserve.server.wire.validation import parse


class MessageInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class TextInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class ThinkingInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


class PlainTextSource(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text"]
    data: str
    media_type: str | None = None


class DocumentInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A document of plain text."""

    type: Literal["document"]
    source: PlainTextSource
    title: str | None = None
    context: str | None = None


def to_messages(
    given: list[dict[str, Any]], system: str | list[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """The conversation in the chat template's form.

    Raises:
        InvalidRequestError: names the message or block that is malformed or unsupported.
    """
    messages = [] if system is None else [{"role": "system", "content": _text(system, "system")}]
    if not given:
        raise InvalidRequestError("messages must not be empty", "messages")
    names: dict[str, str] = {}  # of the tools called, by the calls' ids
    for i, message in enumerate(given):
        path = f"messages[{i}]"
        parsed = parse(message, MessageInput, {}, f"{path}.")
        if parsed.role == "assistant":
            messages.append(_assistant_message(parsed, path, names))
        elif parsed.role == "system":
            text = _text(parsed.content, f"{path}.content")
            messages.append({"role": "system", "content": text})
        else:
            messages += _user_messages(parsed, path, names)
    return messages


def _assistant_message(message: MessageInput, path: str, names: dict[str, str]) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(message.content):
        where = f"{path}.content[{i}]"
        match block.get("type"):
            case "thinking":
                thoughts.append(parse(block, ThinkingInput, {}, f"{where}.").thinking)
            case "redacted_thinking":
                ignore(where)
            case "tool_use":
                call = parse(block, ToolUseInput, {}, f"{where}.")
                names[call.id] = call.name
                function = CalledFunction(name=call.name, arguments=call.input)
                calls.append(template_call(call.id, function))
            case _:
                texts.append(_block_text(block, where))
    converted: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        converted["reasoning"] = converted["reasoning_content"] = "\n".join(thoughts)
    if calls:
        converted["tool_calls"] = calls
    return converted


def _user_messages(message: MessageInput, path: str, names: dict[str, str]) -> list[dict[str, Any]]:
    """Results of tools, each a message of its own, and what the user says."""
    if isinstance(message.content, str):
        return [{"role": "user", "content": message.content}]
    converted: list[dict[str, Any]] = []
    texts: list[str] = []
    for i, block in enumerate(message.content):
        where = f"{path}.content[{i}]"
        if block.get("type") != "tool_result":
            texts.append(_block_text(block, where))
            continue
        result = parse(block, ToolResultInput, {}, f"{where}.")
        if result.is_error:
            ignore(f"{where}.is_error")
        text = _text(result.content or "", f"{where}.content")
        tool = {"role": "tool", "tool_call_id": result.tool_use_id, "content": text}
        if (name := names.get(result.tool_use_id)) is not None:
            tool["name"] = name
        converted.append(tool)
    if texts or not converted:
        converted.append({"role": "user", "content": "\n".join(texts)})
    return converted


def _text(content: str | list[dict[str, Any]], path: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(block, f"{path}[{i}]") for i, block in enumerate(content))


def _block_text(block: dict[str, Any], path: str) -> str:
    kind = block.get("type")
    if kind == "text":
        return parse(block, TextInput, {}, f"{path}.").text
    if kind == "document":
        document = parse(block, DocumentInput, {}, f"{path}.")
        return "\n".join(filter(None, (document.title, document.context, document.source.data)))
    if kind is None:
        raise InvalidRequestError(f"you must provide {path}.type", f"{path}.type")
    raise InvalidRequestError(
        f"{path}: blocks of type {kind!r} aren't supported here; send text", path
    )
