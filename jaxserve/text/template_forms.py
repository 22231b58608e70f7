"""Finds out by trial in which forms a chat template takes messages, and gives it those.

Templates fail, or leave out what was said, if content, calls or their arguments come in another
form than the one they were written for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str | None]

# Words that no template has.
_WORD, _NAME, _KEY, _VALUE = "jaxserve-word", "jaxserve_name", "jaxserve_key", "jaxserve_value"
_ID = "jaxserve1"  # Mistral's templates take ids of nine letters and digits alone
_USER: Message = {"role": "user", "content": "x"}


@dataclass(frozen=True, slots=True)
class TemplateForms:
    """What a template takes.

    Args:
        parts: roles whose content is a list of parts, instead of a text.
        text_arguments: whether arguments of calls are JSON text, instead of objects.
        any_text: whether arguments may be a text that isn't JSON.
        empty_content: of a message of calls alone.
        separate_calls: whether a message with content and calls must be two.
    """

    parts: frozenset[str] = frozenset()
    text_arguments: bool = False
    any_text: bool = True
    empty_content: str | None = ""
    separate_calls: bool = False

    def adapted(self, messages: Sequence[Message]) -> list[Message]:
        """Messages with texts as content and objects as arguments, in the template's forms."""
        return [message for given in messages for message in self._adapt(given)]

    def _adapt(self, message: Message) -> Iterator[Message]:
        content, calls = message.get("content"), message.get("tool_calls")
        if calls:
            called = {"tool_calls": [self._call(call) for call in calls]}
            if content and self.separate_calls:
                without = {key: value for key, value in message.items() if key != "tool_calls"}
                yield without | self._content(message)
                message = {"role": message["role"], "content": ""}
            yield {**message, **self._content(message, self.empty_content), **called}
        else:
            yield {**message, **self._content(message)}

    def _content(self, message: Message, empty: str | None = "") -> dict[str, Any]:
        if "content" not in message:
            return {}
        content = message["content"] or empty
        if isinstance(content, str) and message.get("role") in self.parts:
            return {"content": [{"type": "text", "text": content}]}
        return {"content": content}

    def _call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call.get("function")
        if not isinstance(function, Mapping) or "arguments" not in function:
            return call
        arguments = function["arguments"]
        if self.text_arguments and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        elif isinstance(arguments, str) and not self.any_text:
            arguments = {"arguments": arguments}
        return {**call, "function": {**function, "arguments": arguments}}


def find_forms(render: Render) -> TemplateForms:
    """Args: render: the template's text of messages; None if it fails."""
    parts = frozenset(
        role
        for role, conversation in _conversations().items()
        if not _shows(render(conversation(_WORD)), _WORD)
        and _shows(render(conversation([{"type": "text", "text": _WORD}])), _WORD)
    )
    for empty in ("", None):
        forms = _call_forms(render, TemplateForms(parts, empty_content=empty))
        if forms is not None:
            return forms
    return TemplateForms(parts)


def _conversations() -> dict[str, Callable[[Any], list[Message]]]:
    """For each role, a conversation with given content of that role."""
    return {
        "user": lambda content: [{"role": "user", "content": content}],
        "system": lambda content: [{"role": "system", "content": content}, _USER],
        "assistant": lambda content: [_USER, {"role": "assistant", "content": content}, _USER],
        "tool": lambda content: [
            *_call_messages("", {}),
            {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": content},
        ],
    }


def _call_messages(content: str, arguments: Any) -> list[Message]:
    function = {"name": _NAME, "arguments": arguments}
    call = {"id": _ID, "type": "function", "function": function}
    return [_USER, {"role": "assistant", "content": content, "tool_calls": [call]}]


def _call_forms(render: Render, forms: TemplateForms) -> TemplateForms | None:
    """The forms of calls for a kind of empty content; None if calls aren't written with it."""

    def written(content: str, arguments: Any, forms: TemplateForms = forms) -> str | None:
        return render(forms.adapted(_call_messages(content, arguments)))

    text = json.dumps({_KEY: _VALUE})
    as_object, as_text = written("", {_KEY: _VALUE}), written("", text)
    by_text = not _shows(as_object, _NAME) or f"'{_KEY}'" in (as_object or "")
    takes_text = by_text and _shows(as_text, _NAME) and text in (as_text or "")
    if not takes_text and not _shows(as_object, _NAME):
        return None
    forms = TemplateForms(
        forms.parts, takes_text, _shows(written("", "{"), _NAME), forms.empty_content
    )
    both = written(_WORD, {_KEY: _VALUE}, forms)
    if _shows(both, _NAME):
        return forms
    separate = TemplateForms(
        forms.parts, takes_text, forms.any_text, forms.empty_content, separate_calls=True
    )
    apart = written(_WORD, {_KEY: _VALUE}, separate)
    return separate if _shows(apart, _NAME) and _shows(apart, _WORD) else forms


def _shows(text: str | None, word: str) -> bool:
    return text is not None and word in text
