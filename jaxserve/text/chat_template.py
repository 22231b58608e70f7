"""Chat templates: Jinja from the model's files, in a sandbox, with Hugging Face's functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jaxserve.errors import InvalidRequestError
from jaxserve.text.template_forms import TemplateForms, find_forms

DEFAULT, TOOL_USE = "default", "tool_use"


class ChatTemplate:
    """The templates of one model.

    Args:
        sources: Jinja by name; most models have DEFAULT alone. Empty: the model has none.
        special_tokens: variables of the templates, such as bos_token and eos_token.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens)
        self._forms: dict[str, TemplateForms] = {}  # by source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The conversation as the model's prompt text.

        Args:
            messages: content is a text, arguments of calls are objects or any text; the template
                gets them in the forms that it takes.
            kwargs: passed on to the template (documents, enable_thinking, ...).

        Raises:
            InvalidRequestError: the model has no template, or its template refuses the messages.
        """
        source = self._source(tools)
        variables = {"documents": None} | kwargs | {"add_generation_prompt": add_generation_prompt}
        try:
            return self._render(source, self._forms_of(source).adapted(messages), tools, variables)
        except InvalidRequestError:
            raise
        except Exception as error:  # a template is a program, and may fail in any way
            raise InvalidRequestError(
                f"the model's chat template can't render these messages: {error}", "messages"
            ) from error

    def _render(
        self,
        source: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        values = {**self._special_tokens, **variables, "messages": messages, "tools": tools}
        return _compile(source).render(values)

    def _forms_of(self, source: str) -> TemplateForms:
        if source not in self._forms:

            def render(messages: Sequence[Mapping[str, Any]]) -> str | None:
                try:
                    return self._render(source, messages, None, {"documents": None})
                except Exception:  # as in render()
                    return None

            self._forms[source] = find_forms(render)
        return self._forms[source]

    def replaced_by(self, source: str) -> ChatTemplate:
        """One other template, with the same special tokens."""
        return ChatTemplate({DEFAULT: source}, self._special_tokens)

    def mentions(self, word: str) -> bool:
        """Whether any of the templates contains this text."""
        return any(word in source for source in self._sources.values())

    def reads(self, name: str) -> bool:
        """Whether any of the templates reads an argument of this name."""
        return any(name in _arguments(source) for source in self._sources.values())

    def _source(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        if tools and TOOL_USE in self._sources:
            return self._sources[TOOL_USE]
        if DEFAULT not in self._sources:
            raise InvalidRequestError(
                "this model has no chat template: send a plain prompt to /v1/completions instead",
                "messages",
            )
        return self._sources[DEFAULT]


class _Generation(Extension):
    """Replaces {% generation %} ... {% endgeneration %}, marks for training, by its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=16)
def _compile(source: str) -> Template:
    return _environment().from_string(source)


@lru_cache(maxsize=16)
def _arguments(source: str) -> frozenset[str]:
    """Names of the arguments that a template reads; empty if it isn't valid Jinja."""
    try:
        return frozenset(meta.find_undeclared_variables(_environment().parse(source)))
    except TemplateSyntaxError:  # which render() reports
        return frozenset()


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    helpers: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    environment.globals |= helpers
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, and the model would see that.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise InvalidRequestError(f"the model's chat template says: {message}", "messages")


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
