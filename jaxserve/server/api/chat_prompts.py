"""From a conversation to its prompt, to what its answer is to be read for, and to the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.api import generation
from jaxserve.server.api.generation import Batches, TokenCount
from jaxserve.server.context import SERVING, Serving
from jaxserve.server.parsers import Think
from jaxserve.server.parsers.answer_parser import AnswerParts
from jaxserve.server.wire.chat_messages import template_message
from jaxserve.server.wire.requests import ChatCompletionRequest, EngineRequest
from jaxserve.server.wire.tools import ToolUse
from jaxserve.server.wire.validation import parse, read_json, renaming

Body = TypeVar("Body", bound=EngineRequest)
TEMPLATE_ARGUMENTS = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "reasoning_effort", "self"}
)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the engine.

    Args:
        parts: what the answer's text is taken apart into.
        shows_special_tokens: whether that needs them to show in the text.
    """

    ids: list[int]
    parts: AnswerParts
    shows_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Begun(Generic[Body]):
    """A conversation that the engine has begun to answer."""

    serving: Serving
    body: Body
    params: SamplingParams
    prompt: ChatPrompt
    batches: Batches
    count: TokenCount


async def begin(
    request: web.Request,
    into: type[Body],
    unsupported: Mapping[str, tuple[Any, ...]],
    render: Callable[[Serving, Body, SamplingParams], ChatPrompt],
) -> Begun[Body]:
    """Reads a request for the answer to a conversation, and hands it to the engine.

    Args:
        into, unsupported: as bodies.parse().
        render: makes the prompt; called in a thread if the body is long.

    Raises:
        ApiError, InvalidRequestError: the request can't be served; named as its own fields are.
    """
    serving = request.app[SERVING]
    body = parse(await read_json(request), into, unsupported)
    serving.check_model(body.model)
    body.check()
    with renaming(body.names):
        params = serving.check_limits(body.to_sampling_params(serving.client.sampling_defaults))
        prompt = await generation.off_loop(request, render, serving, body, params)
    if prompt.shows_special_tokens:
        params = replace(params, skip_special_tokens=False)
    batches = generation.submit(serving, [prompt.ids], params, **body.scheduling())
    return Begun(serving, body, params, prompt, batches, TokenCount(len(prompt.ids)))


def render(serving: Serving, body: ChatCompletionRequest, params: SamplingParams) -> ChatPrompt:
    """The prompt, by the model's chat template.

    Raises:
        InvalidRequestError: a message is malformed or unsupported, the template refuses them or
            knows nothing of what it is given, or the prompt is too long.
    """
    return conversation(body).render(
        serving,
        params,
        bool(body.add_special_tokens),
        body.include_reasoning is not False,
    )


def conversation(body: ChatCompletionRequest) -> Conversation:
    """What the chat template is given.

    Raises:
        InvalidRequestError: a message is malformed or unsupported, or fields contradict each other.
    """
    messages = [template_message(m, f"messages[{i}]") for i, m in enumerate(body.messages)]
    extra = body.chat_template_kwargs or {}
    if taken := TEMPLATE_ARGUMENTS & extra.keys():
        raise InvalidRequestError(
            f"chat_template_kwargs may not set {', '.join(sorted(taken))}", "chat_template_kwargs"
        )
    fields = {"documents": body.documents, "reasoning_effort": body.reasoning_effort}
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt contradict each other: send one",
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


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template is given.

    Args:
        messages: in the template's form.
        extra: arguments of the template by the names that the client gave.
        fields: arguments that are fields of the request; None where it has none.
        continue_final: the answer goes on from the last message's text.
    """

    messages: Sequence[dict[str, Any]]
    tools: ToolUse
    extra: dict[str, Any]
    fields: dict[str, Any]
    add_generation_prompt: bool = True
    continue_final: bool = False

    def text(self, serving: Serving) -> str:
        """As the model reads it."""
        if not self.messages:
            raise InvalidRequestError("messages must not be empty", "messages")
        self._check_template(serving)
        given = {name: value for name, value in self.fields.items() if value is not None}
        text = serving.client.tokenizer.apply_chat_template(
            self.messages,
            add_generation_prompt=self.add_generation_prompt and not self.continue_final,
            tools=self.tools.for_template(),
            **given | self.extra,
        )
        return _cut_after(text, self.messages[-1]["content"]) if self.continue_final else text

    def render(
        self,
        serving: Serving,
        params: SamplingParams,
        add_special_tokens: bool = False,
        show_reasoning: bool = True,
    ) -> ChatPrompt:
        text = self.text(serving)
        # The template writes the special tokens itself.
        ids = serving.client.prepare(text, params, add_special_tokens)
        think, before = serving.reasoning_parser, text
        if think and params.structured_outputs:
            # A grammar knows nothing of a prompt's open tag: what it allows begins with the answer.
            think, before = Think, ""
        calls = self.tools.parser(serving.tool_parser)
        parts = AnswerParts(
            partial(think, before) if think else None,
            calls,
            show_reasoning,
            self.tools.parallel,
            self.tools.named is None,
        )
        free = serving.tool_parser if self.tools.mode == "auto" else None
        markers = (think.markers if think else ()) + (free.markers if free else ())
        shows = any(map(serving.client.tokenizer.is_special, markers))
        return ChatPrompt(ids, parts, shows)

    def _check_template(self, serving: Serving) -> None:
        """Refuses what the model's template would ignore."""
        reads = serving.client.tokenizer.template_reads
        for name in self.extra:
            if not reads(name):
                raise InvalidRequestError(
                    f"this model's chat template knows no {name}: leave it out of "
                    "chat_template_kwargs",
                    "chat_template_kwargs",
                )
        for name, value in self.fields.items():
            if value is not None and not reads(name):
                raise InvalidRequestError(
                    f"this model's chat template knows no {name}: leave it out", name
                )
        if self.tools.mode == "auto" and not (reads("tools") and serving.tool_parser):
            raise InvalidRequestError(
                "this model can't choose among tools by itself: its chat template knows none, or "
                "the server has no parser for its calls (--tool-call-parser); set tool_choice to "
                "required or to a function, or leave tools out",
                "tools",
            )


def _cut_after(text: str, final: str) -> str:
    """A rendered conversation up to the end of its last message's content, as transformers has
    it."""
    bare = final.strip()
    at = text.rfind(bare) if bare else -1
    if at < 0:
        raise InvalidRequestError(
            "continue_final_message: the last message has no text to continue from",
            "continue_final_message",
        )
    # Templates that trim the content leave nothing of the space at its end.
    whole = final.lstrip()
    return text[:at] + (whole if text.startswith(whole, at) else bare)
