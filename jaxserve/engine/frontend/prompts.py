"""The forms in which LLM and AsyncLLM take prompts, settings and messages."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from jaxserve.config import EngineConfig
from jaxserve.engine.frontend.request_validation import Prompt
from jaxserve.errors import InvalidRequestError
from jaxserve.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
PromptInput = Prompt | Mapping[str, Any]


def engine_config(model: str, settings: Mapping[str, Any]) -> EngineConfig:
    """The config of an offline engine, whose queue has no limit by default.

    Raises:
        TypeError: EngineConfig has no such field.
    """
    unknown = settings.keys() - {f.name for f in fields(EngineConfig)}
    if unknown:
        raise TypeError(f"LLM has no setting {', '.join(sorted(unknown))}; see EngineConfig")
    return EngineConfig(model=model, **{"max_queued_requests": sys.maxsize} | dict(settings))


def several(prompts: PromptInput | Sequence[PromptInput]) -> list[Prompt]:
    """The prompts as text or token ids, one or many.

    Raises:
        InvalidRequestError: they are neither.
    """
    if not isinstance(prompts, str | Mapping) and not _is_list(prompts):
        raise InvalidRequestError(
            f"prompts are texts, lists of token ids or mappings; got {type(prompts).__name__}",
            "prompt",
        )
    one = isinstance(prompts, str | Mapping) or (
        len(prompts) > 0 and isinstance(prompts[0], int | np.integer)
    )
    return [as_prompt(prompt) for prompt in ([prompts] if one else prompts)]


def as_prompt(given: Any) -> Prompt:
    """One prompt as text or token ids."""
    if isinstance(given, str):
        return given
    if _is_list(given):
        return list(given)
    if not isinstance(given, Mapping):
        raise InvalidRequestError(
            f"a prompt is text or a list of token ids; got {type(given).__name__}", "prompt"
        )
    found = [given[name] for name in ("prompt", "prompt_token_ids") if given.get(name) is not None]
    if len(found) != 1 or given.keys() - {"prompt", "prompt_token_ids"}:
        raise InvalidRequestError(
            'a prompt that is a mapping has "prompt" or "prompt_token_ids", and nothing else; it '
            f"had {', '.join(map(repr, given)) or 'nothing'}",
            "prompt",
        )
    return as_prompt(found[0])


def _is_list(given: Any) -> bool:
    """Whether something is a sequence or an array, but no text and no bytes."""
    is_array = hasattr(given, "__array__") and getattr(given, "ndim", 0) > 0
    return is_array or (
        isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray)
    )


def chat_prompt(
    tokenizer: Tokenizer, messages: Sequence[Message], template: Mapping[str, Any]
) -> list[int]:
    """The token ids of a conversation.

    Args:
        template: arguments of the chat template.

    Raises:
        InvalidRequestError: the template doesn't use an argument, or refuses the messages.
    """
    for name in template:
        if not tokenizer.template_reads(name):
            raise InvalidRequestError(
                f"this model's chat template doesn't use {name}: leave it out", name
            )
    text = tokenizer.apply_chat_template(list(map(_with_text, messages)), **template)
    return tokenizer.encode(text, add_special_tokens=False)


def _with_text(message: Message) -> dict[str, Any]:
    """A message whose content is text: parts are joined by line breaks, as the server does."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return dict(message)
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise InvalidRequestError(
                'the parts of a message\'s content must be {"type": "text", "text": ...}',
                "messages",
            )
    return {**message, "content": "\n".join(part["text"] for part in content)}
