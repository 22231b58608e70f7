"""instructor, pydantic-ai and LlamaIndex: an answer by a schema, a stream, embeddings."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.jaxserve.server.clients.conftest import Weather


def test_instructor(url: str) -> None:
    client = instructor.from_openai(
        openai.OpenAI(base_url=url, api_key="none", max_retries=0),
        mode=instructor.Mode.TOOLS,
    )
    answer: Any = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        response_model=Weather,
        max_tokens=200,
        temperature=0,
        max_retries=1,
    )
    assert answer.city in ("Rome", "Paris")


def test_pydantic_ai(url: str) -> None:
    model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=url, api_key="none"))
    settings: Any = {"extra_body": {"guided_choice": ["hello there"]}, "max_tokens": 50}
    result = Agent(model, instructions="Be brief.").run_sync("hi", model_settings=settings)
    assert result.output == "hello there"


def test_llama_index(url: str) -> None:
    forced = {"extra_body": {"guided_choice": ["hello there"]}}
    llm = OpenAILike(
        model="tiny",
        api_base=url,
        api_key="none",
        is_chat_model=True,
        max_tokens=50,
        additional_kwargs=forced,
    )
    talk = [ChatMessage(role="user", content="hi")]
    assert llm.chat(talk).message.content == "hello there"
    assert "".join(part.delta or "" for part in llm.stream_chat(talk)) == "hello there"
    embed = OpenAILikeEmbedding(model_name="tiny", api_base=url, api_key="none")
    assert len(embed.get_text_embedding("one")) == len(embed.get_text_embedding("two"))
