"""From a conversation to its prompt, and to the format of the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.context import ServerContext
from jaxserve.server.parsers import (
    NamedCallParser,
    RequiredCallsParser,
    TextParser,
    ThinkTagParser,
    ToolParser,
)
from jaxserve.server.parsers.answer_parser import AnswerFormat
from jaxserve.server.wire.chat.messages import template_message
from jaxserve.server.wire.chat.request import ChatCompletionRequest
from jaxserve.server.wire.ignored_fields import ignore
from jaxserve.server.wire.tools import ToolUse

TEMPLATE_ARGUMENTS = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "reasoning_effort", "self"}
)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation's prompt.

    Args:
        answer_format: what to look for in the answer's text.
        keep_special_tokens: whether the answer must be decoded with special tokens for that.
    """

    ids: list[int]
    answer_format: AnswerFormat
    keep_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input of a chat template.

    Args:
        messages: in the template's form.
        extra: further arguments of the template, from chat_template_kwargs.
        fields: arguments that are fields of the request; None for those that are absent.
        answers_by_schema: the output follows a response format, so nothing in it is a call, unless
            a call is required, which comes before the format.
        continue_final: the answer continues the last message's text.
    """

    messages: Sequence[dict[str, Any]]
    tools: ToolUse
    extra: dict[str, Any]
    fields: dict[str, Any]
    add_generation_prompt: bool = True
    continue_final: bool = False
    answers_by_schema: bool = False

    def text(self, context: ServerContext) -> str:
        """The text that the chat template makes of it."""
        if not self.messages:
            raise InvalidRequestError("messages must not be empty", "messages")
        reads = context.client.tokenizer.template_reads
        self._check_template(context)
        given = {name: value for name, value in self.fields.items() if value}
        if "reasoning_effort" in given and not reads("reasoning_effort"):
            ignore("reasoning_effort")
            del given["reasoning_effort"]
        text = context.client.tokenizer.apply_chat_template(
            self.messages,
            add_generation_prompt=self.add_generation_prompt and not self.continue_final,
            tools=self.tools.for_template(),
            **given | self.extra,
        )
        return _truncate_after(text, self.messages[-1]["content"]) if self.continue_final else text

    def render(
        self,
        context: ServerContext,
        params: SamplingParams,
        add_special_tokens: bool = False,
        show_reasoning: bool = True,
    ) -> ChatPrompt:
        text = self.text(context)
        # By default without special tokens, because the template writes them.
        ids = context.client.prepare(text, params, add_special_tokens)
        think, before = context.reasoning_parser, text
        if think and params.structured_outputs:
            # A grammar constrains the output alone, so a prompt that ends with an open tag doesn't
            # make the output's beginning reasoning.
            think, before = ThinkTagParser, ""
        answer_format = AnswerFormat(
            reasoning=partial(think, before) if think else None,
            tools=None if self.answers_by_schema else _tool_parser(self.tools, context.tool_parser),
            show_reasoning=show_reasoning,
            parallel_calls=self.tools.parallel,
            calls_finish=self.tools.named is None,
        )
        reads_calls = self.tools.mode == "auto" and not self.answers_by_schema
        calls = context.tool_parser if reads_calls else None
        markers = (think.markers if think else ()) + (calls.markers if calls else ())
        keep_special_tokens = any(map(context.client.tokenizer.is_special, markers))
        return ChatPrompt(ids, answer_format, keep_special_tokens)

    def _check_template(self, context: ServerContext) -> None:
        """Refuses arguments that the model's template would ignore."""
        reads = context.client.tokenizer.template_reads
        for name in self.extra:
            if not reads(name):
                raise InvalidRequestError(
                    f"this model's chat template doesn't use {name}: leave it out of "
                    "chat_template_kwargs",
                    "chat_template_kwargs",
                )
        for name, value in self.fields.items():
            if value and name != "reasoning_effort" and not reads(name):
                raise InvalidRequestError(
                    f"this model's chat template doesn't use {name}: leave it out", name
                )
        if self.tools.mode == "auto" and not (reads("tools") and context.tool_parser):
            raise InvalidRequestError(
                "this model can't choose among tools by itself: its chat template doesn't use "
                "tools, or the server has no parser for its calls (--tool-call-parser); set "
                "tool_choice to required or to a function, or leave tools out",
                "tools",
            )


def chat_conversation(body: ChatCompletionRequest) -> Conversation:
    """The conversation of a chat completion.

    Raises:
        InvalidRequestError: a message is malformed or unsupported, or fields contradict each other.
    """
    messages = [template_message(m, f"messages[{i}]") for i, m in enumerate(body.messages)]
    extra = body.chat_template_kwargs or {}
    if reserved := TEMPLATE_ARGUMENTS & extra.keys():
        raise InvalidRequestError(
            f"chat_template_kwargs may not set {', '.join(sorted(reserved))}",
            "chat_template_kwargs",
        )
    fields = {"documents": body.documents, "reasoning_effort": body.reasoning_effort}
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt contradict each other: send one of "
            "them",
            "continue_final_message",
        )
    return Conversation(
        messages,
        body.tool_use(),
        extra,
        fields,
        body.add_generation_prompt is not False,
        bool(body.continue_final_message),
        _has_schema(body) and body.tool_use().mode == "auto",
    )


def _has_schema(body: ChatCompletionRequest) -> bool:
    return body.response_format is not None and body.response_format.type != "text"


def _tool_parser(
    tools: ToolUse, model_parser: type[ToolParser] | None
) -> Callable[[], TextParser] | None:
    """Makes parsers of the answer's tool calls; None if it can't have any.

    Args:
        model_parser: parses calls in the model's own format.
    """
    names = [function.name for function in tools.functions]
    match tools.mode:
        case "none":
            return None
        case "auto":
            return None if model_parser is None else partial(model_parser, names)
        case "required":  # the format of the grammar that ToolUse.structured_params() sets
            if tools.named is None:
                return partial(RequiredCallsParser, names)
            return partial(NamedCallParser, tools.named)


def _truncate_after(text: str, final: str) -> str:
    """A rendered conversation up to the end of its last message's content, by the rule of
    transformers' continue_final_message."""
    stripped = final.strip()
    at = text.rfind(stripped) if stripped else -1
    if at < 0:
        raise InvalidRequestError(
            "continue_final_message: the last message has no text to continue from",
            "continue_final_message",
        )
    # White space at the content's end is kept, unless the template has removed it.
    whole = final.lstrip()
    return text[:at] + (whole if text.startswith(whole, at) else stripped)
