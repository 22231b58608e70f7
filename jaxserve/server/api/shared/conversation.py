"""From a conversation to its prompt, and to the format of the answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams
from jaxserve.server.api.shared.generic_tools import with_tools
from jaxserve.server.context import ServerContext
from jaxserve.server.parsers import (
    CallOrAnswerParser,
    NamedCallParser,
    RequiredCallsParser,
    TextParser,
    ThinkTagParser,
    ToolParser,
)
from jaxserve.server.parsers.answer_parser import AnswerFormat
from jaxserve.server.wire.call_grammar import Reasoning
from jaxserve.server.wire.chat.messages import template_message
from jaxserve.server.wire.chat.request import ChatCompletionRequest
from jaxserve.server.wire.ignored_fields import ignore, refuses_unknown
from jaxserve.server.wire.tools import ToolUse, answer_after

TEMPLATE_ARGUMENTS = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "reasoning_effort", "self"}
)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation's prompt.

    Args:
        answer_format: what to look for in the answer's text.
        params: the request's, changed as the answer's format needs it: with special tokens in the
            text, and with a grammar that lets through calls too.
    """

    ids: list[int]
    answer_format: AnswerFormat
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input of a chat template.

    Args:
        messages: in the template's form.
        extra: further arguments of the template, from chat_template_kwargs.
        fields: arguments that are fields of the request; None for those that are absent.
        continue_final: the answer continues the last message's text.
    """

    messages: Sequence[dict[str, Any]]
    tools: ToolUse
    extra: dict[str, Any]
    fields: dict[str, Any]
    add_generation_prompt: bool = True
    continue_final: bool = False

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
        extra = {n: value for n, value in self.extra.items() if value is not None and reads(n)}
        messages, tools, mark = list(self.messages), self.tools.for_template(), ""
        # Without tools, a template that knows of them may have its own form of their results.
        own_form = tools is None and context.client.tokenizer.template_mentions("tool")
        if context.explains_tools and not own_form:
            messages = with_tools(messages, tools, context.takes_system)
        if self.continue_final:
            # Whatever the template writes after the content is cut off at a mark at its end.
            mark, last = f"mark{secrets.token_hex(8)}", messages[-1]
            messages = [*messages[:-1], last | {"content": last["content"] + mark}]
        text = context.client.tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=self.add_generation_prompt and not self.continue_final,
            tools=None if context.explains_tools else tools,
            **given | extra,
        )
        if mark not in text:
            raise InvalidRequestError(
                "continue_final_message: the model's chat template doesn't write the last "
                "message's text",
                "continue_final_message",
            )
        return text[: text.rindex(mark)] if mark else text

    @property
    def begun(self) -> str:
        """The text of the answer that the prompt ends with."""
        return str(self.messages[-1]["content"]) if self.continue_final else ""

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
        think, before, begun = context.reasoning_parser, text, self.begun
        constraint = params.structured_outputs
        if think and constraint and not (constraint.is_json or self.tools.mode == "required"):
            # Such a constraint is on the whole output, so a prompt that ends with an open tag
            # doesn't make the output's beginning reasoning.
            think, before, begun = ThinkTagParser, "", ""
        answer_format = AnswerFormat(
            reasoning=partial(think, before, begun) if think else None,
            tools=_tool_parser(self.tools, context.tool_parser, constraint),
            show_reasoning=show_reasoning,
            parallel_calls=self.tools.parallel,
            calls_finish=self.tools.named is None,
        )
        reasoning = think.reasoning_after(before.removesuffix(begun), begun) if think else None
        if reasoning is not None and reasoning.open and not context.may_reason:
            reasoning = None
        return ChatPrompt(ids, answer_format, self._params(context, params, think, reasoning))

    def _params(
        self,
        context: ServerContext,
        params: SamplingParams,
        think: type[ThinkTagParser] | None,
        reasoning: Reasoning | None,
    ) -> SamplingParams:
        """As ChatPrompt.params."""
        tokenizer = context.client.tokenizer
        calls = context.tool_parser if self.tools.mode == "auto" else None
        markers = (think.markers if think else ()) + (calls.markers if calls else ())
        special = {marker: i for i, marker in tokenizer.special_tokens_in(markers).items()}
        if special:
            params = replace(params, skip_special_tokens=False)
        answer, constraint = params.structured_outputs, params.structured_outputs
        if calls is not None and calls.layout is not None and self._may_constrain(params):
            constraint = self.tools.optional_calls(
                calls.layout, calls.markers[0], special, reasoning, answer
            )
        elif reasoning is not None and self.tools.mode == "required":
            constraint = self.tools.required_after(reasoning, special)
        elif reasoning is not None and answer is not None and answer.is_json:
            constraint = answer_after(reasoning, special, answer)
        if constraint is not answer:
            params = replace(params, structured_outputs=constraint)
        return params

    @staticmethod
    def _may_constrain(params: SamplingParams) -> bool:
        """Whether calls that the model chooses to make can be constrained: not beside a constraint
        on the whole output, in a beam search, or if the output goes on after its end."""
        if params.structured_outputs is not None:
            return params.structured_outputs.is_json
        return params.beam_search is None and not params.ignore_eos

    def _check_template(self, context: ServerContext) -> None:
        """Refuses fields that the model's template would ignore, though they change the answer.
        Further arguments that it doesn't use are named, unless the server is strict."""
        reads = context.client.tokenizer.template_reads
        for name, value in self.extra.items():
            if value is not None and not reads(name):
                if not refuses_unknown():
                    ignore(f"chat_template_kwargs.{name}")
                    continue
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
        if self.tools.mode == "auto" and context.tool_parser is None:
            raise InvalidRequestError(
                "this server takes nothing for a call (--tool-call-parser none): set tool_choice "
                "to required or to a function, or leave tools out",
                "tools",
            )


def template_arguments(given: dict[str, Any] | None) -> dict[str, Any]:
    """A request's chat_template_kwargs. Raises InvalidRequestError for one that is a field."""
    extra = given or {}
    if reserved := TEMPLATE_ARGUMENTS & extra.keys():
        raise InvalidRequestError(
            f"chat_template_kwargs may not set {', '.join(sorted(reserved))}",
            "chat_template_kwargs",
        )
    return extra


def chat_conversation(body: ChatCompletionRequest) -> Conversation:
    """The conversation of a chat completion.

    Raises:
        InvalidRequestError: a message is malformed or unsupported, or fields contradict each other.
    """
    messages = [template_message(m, f"messages[{i}]") for i, m in enumerate(body.messages)]
    extra = template_arguments(body.chat_template_kwargs)
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
    )


def _tool_parser(
    tools: ToolUse,
    model_parser: type[ToolParser] | None,
    constraint: StructuredOutputsParams | None,
) -> Callable[[], TextParser] | None:
    """Makes parsers of the answer's tool calls; None if it can't have any.

    Args:
        model_parser: parses calls in the model's own format.
        constraint: on the output. An answer in JSON isn't a call.
    """
    names = {function.name: function.schema for function in tools.functions}
    if tools.mode == "none" or (tools.mode == "auto" and model_parser is None):
        return None
    if tools.mode == "required":  # the format of the grammar of ToolUse.structured_params()
        if tools.named is not None:
            return partial(NamedCallParser, tools.named)
        return partial(RequiredCallsParser, names)
    assert model_parser is not None
    parser = partial(model_parser, names)
    if constraint is None or (model_parser.needs_marker and not constraint.is_json):
        return parser
    return partial(CallOrAnswerParser, model_parser.markers[0], parser)
