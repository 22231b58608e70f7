"""The prompt says what the client said: conversations by /tokenize, with templates of all kinds and
a real tokenizer of bytes; no engine is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxserve.config import ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.server.app import create_app
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer
from tests.jaxserve.text.test_template_forms import TEMPLATES

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER = {"role": "user", "content": "x"}
Prompt = Callable[..., Awaitable[str]]


@pytest.fixture
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


@pytest.fixture
async def prompt(tokenizer: Tokenizer) -> AsyncIterator[Prompt]:
    """The prompt of a chat with a template."""
    client = cast(EngineClient, SimpleNamespace(tokenizer=tokenizer, max_model_len=1024))
    config = ServerConfig(served_model_names=("m",), tool_call_parser="hermes")
    async with TestClient(TestServer(create_app(client, config))) as http:

        async def prompt(template: str, **body: Any) -> str:
            tokenizer.use_chat_template(template)
            response = await http.post("/tokenize", json=body)
            answer = await response.json()
            assert response.status == 200, answer
            return tokenizer.decode(answer["tokens"], skip_special_tokens=False)

        yield prompt


@pytest.mark.parametrize("name", TEMPLATES)
async def test_a_conversation_with_calls(prompt: Prompt, name: str) -> None:
    """As clients send it: arguments are text, content is null, a text or parts."""
    function = {"name": "f", "arguments": '{"city":"Oslo"}'}
    call = {"id": "c", "type": "function", "function": function}
    text = await prompt(
        TEMPLATES[name],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Where?"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "here"},
        ],
    )
    right = '<call>{"name": "f", "arguments": {"city": "Oslo"}}</call>'
    assert text == f"<user>Where?<assistant>{right}<tool>here"


@pytest.mark.parametrize("name", ["trimmed", "plain", "parts"])
def test_an_answer_goes_on_after_any_text(tiny_llama: Path, name: str) -> None:
    """The prompt ends with the content, whatever it is, if the template doesn't trim it."""
    from jaxserve.server.api.shared.conversation import Conversation
    from jaxserve.server.wire.tools import ToolUse

    write = {
        "plain": "{{ m.content }}",
        "trimmed": "{{ m.content | trim }}",
        "parts": "{% for p in m.content %}{{ p.text }}{% endfor %}",
    }
    tokenizer = load_tokenizer(tiny_llama)
    tokenizer.use_chat_template(CHATML.replace("{{ m.content }}", write[name]))
    context: Any = SimpleNamespace(
        client=SimpleNamespace(tokenizer=tokenizer),
        config=ServerConfig(),
        tool_parser=None,
        explains_tools=False,
    )

    @settings(max_examples=50)
    @given(st.text(max_size=12) | st.text(st.sampled_from("<|im_end>\n d"), max_size=12))
    @example("<")
    @example("<|im_end|>\n")
    @example("im")
    @example("<think>\nWell")
    @example("user\n")
    def ends_with_its_text(content: str) -> None:
        messages = [USER, {"role": "assistant", "content": content}]
        text = Conversation(messages, ToolUse(), {}, {}, continue_final=True).text(context)
        own = content.lstrip() if name == "trimmed" else content
        assert text == f"<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n{own}"

    ends_with_its_text()


@pytest.mark.parametrize("content", ["|", "<", ">", "_", "im", "end", "d", "Well, ", ""])
async def test_continued_messages_over_http(prompt: Prompt, content: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    text = await prompt(CHATML, messages=messages, continue_final_message=True)
    assert text == f"<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n{content}"


async def test_tools_reach_a_server_whose_operator_named_a_parser(prompt: Prompt) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    plain = await prompt(CHATML, messages=[USER])
    assert await prompt(CHATML, messages=[USER], tools=tools) == plain


async def test_arguments_of_the_template_that_are_null_ask_for_nothing(prompt: Prompt) -> None:
    plain = await prompt(CHATML, messages=[USER])
    nothing = {"enable_thinking": None}
    assert await prompt(CHATML, messages=[USER], chat_template_kwargs=nothing) == plain
