"""LangChain's own classes against a real server of a tiny model, whose output grammars force."""

from __future__ import annotations

from typing import Any, Literal

import langchain_openai
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel
from tokenizers import pre_tokenizers

TALK = [SystemMessage("Be brief."), HumanMessage("hi")]


class Weather(BaseModel):
    """What the weather is like."""

    city: Literal["Rome", "Paris"]
    warm: bool


@tool
def weather(city: Literal["Rome", "Paris"]) -> str:
    """The weather in a city."""
    return f"warm in {city}"


@pytest.fixture
def settings(tiny_server: Any) -> dict[str, Any]:
    return {"base_url": f"{tiny_server.url}/v1", "api_key": "none", "model": "tiny"}


@pytest.fixture
def chat(settings: dict[str, Any]) -> Any:
    return langchain_openai.ChatOpenAI(**settings, temperature=0, max_tokens=200, max_retries=0)


def saying(chat: Any, text: str) -> Any:
    """A chat that is made to answer so."""
    return chat.bind(extra_body={"guided_choice": [text]})


def test_invoke(chat: Any) -> None:
    answer = saying(chat, "hello there").invoke(TALK)
    assert answer.content == "hello there"
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["output_tokens"] == len("hello there") + 1  # bytes, and the end


def test_stream(chat: Any) -> None:
    chunks = list(saying(chat, "hello there").stream(TALK, stream_usage=True))
    assert len(chunks) > 2
    whole = sum(chunks[1:], chunks[0])
    assert isinstance(whole, AIMessageChunk)
    assert whole.content == "hello there"
    assert whole.usage_metadata["output_tokens"] == len("hello there") + 1


async def test_asynchronously(chat: Any) -> None:
    speaker = saying(chat, "hm")
    assert (await speaker.ainvoke(TALK)).content == "hm"
    assert "".join([chunk.content async for chunk in speaker.astream(TALK)]) == "hm"


def test_batch(chat: Any) -> None:
    answers = saying(chat, "yes").batch(["a", "b", TALK])
    assert [answer.content for answer in answers] == ["yes"] * 3


def test_tools(chat: Any) -> None:
    caller = chat.bind_tools([weather], tool_choice="required", parallel_tool_calls=False)
    answer = caller.invoke(TALK)
    (call,) = answer.tool_calls
    assert call["name"] == "weather"
    assert call["args"]["city"] in ("Rome", "Paris")
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    after = chat.bind_tools([weather], tool_choice="none").bind(stop=["\n"])
    assert after.invoke([*TALK, answer, result]).tool_calls == []
    chunks = list(caller.stream(TALK))
    assert sum(chunks[1:], chunks[0]).tool_calls[0]["args"] == call["args"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(settings: dict[str, Any], method: str) -> None:
    # A random model would go on with the space that JSON allows between any two of its parts.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    no_space = {alphabet.index(byte): -100 for byte in "ĠĉĊč"}
    chat = langchain_openai.ChatOpenAI(
        **settings, temperature=0, max_tokens=200, logit_bias=no_space
    )
    structured = chat.with_structured_output(Weather, method=method)
    assert isinstance(structured.invoke(TALK), Weather)


def test_texts_and_embeddings(settings: dict[str, Any]) -> None:
    texts = langchain_openai.OpenAI(**settings, max_tokens=4, temperature=0)
    assert texts.invoke("a", extra_body={"guided_choice": ["b"]}) == "b"
    embeddings = langchain_openai.OpenAIEmbeddings(**settings, check_embedding_ctx_length=False)
    several = embeddings.embed_documents(["one", "two"])
    assert len(several) == 2
    assert embeddings.embed_query("one") == pytest.approx(several[0], abs=1e-5)
