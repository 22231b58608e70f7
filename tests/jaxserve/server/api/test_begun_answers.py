"""What an answer begins with is decided by what its prompt ends with; a model without a template
for tools, and a parser that the operator named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.jaxserve.server.api.test_text import post

pytestmark = pytest.mark.slow

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
USER = {"role": "user", "content": "x"}


@pytest.fixture(scope="module")
def thinking(
    tiny_flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    from tests.jaxserve.server.conftest import ServerProcess

    template = tmp_path_factory.mktemp("thinking") / "thinking.jinja"
    template.write_text(THINKING)
    parsers = ("--reasoning-parser", "deepseek_r1", "--tool-call-parser", "hermes")
    server = ServerProcess.launch(*tiny_flags, *parsers, "--chat-template", str(template))
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def kinds(server: Any, **body: Any) -> set[str]:
    """Of what an answer of some letters is made."""
    answer = post(server, "/v1/chat/completions", max_tokens=4, temperature=0, **body)
    message = answer["choices"][0]["message"]
    return {kind for kind in ("content", "reasoning") if message.get(kind)}


def test_thinking_that_is_switched_off(thinking: Any) -> None:
    assert kinds(thinking, messages=[USER]) == {"reasoning"}
    off = {"enable_thinking": False}
    assert kinds(thinking, messages=[USER], chat_template_kwargs=off) == {"content"}


@pytest.mark.parametrize(
    ("begun", "kind"),
    [
        ("<think>\nWell", "reasoning"),
        ("<think>", "reasoning"),
        ("<think>\nWell.\n</think>\n\nSo", "content"),
        ("Paris", "content"),
        ("Tags like <think> are", "content"),
    ],
)
def test_the_beginning_of_an_answer_decides(thinking: Any, begun: str, kind: str) -> None:
    messages = [USER, {"role": "assistant", "content": begun}]
    assert kinds(thinking, messages=messages, continue_final_message=True) == {kind}


def test_tools_with_a_parser_that_the_operator_named(thinking: Any) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    body = {"messages": [USER], "tools": [tool], "guided_choice": [call], "max_tokens": 100}
    message = post(thinking, "/v1/chat/completions", **body)["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
