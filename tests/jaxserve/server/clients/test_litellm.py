"""LiteLLM as a client, and its objects as history."""

from __future__ import annotations

from typing import Any

import litellm

USER: Any = {"role": "user", "content": "hi"}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}},
    "required": ["city"],
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}


def test_a_call_and_its_result(url: str) -> None:
    asked: Any = {"model": "openai/tiny", "api_base": url, "api_key": "none", "tools": [TOOL]}
    answer = litellm.completion(
        **asked, messages=[USER], tool_choice="required", max_tokens=200, temperature=0
    )
    message = answer.choices[0].message
    (call, *_) = message.tool_calls
    assert call.function.name == "weather"
    result = {"role": "tool", "tool_call_id": call.id, "content": "warm"}
    for turn in (message, message.model_dump()):
        done = litellm.completion(**asked, messages=[USER, turn, result], max_tokens=1)
        assert done.usage.completion_tokens == 1


def test_a_stream(url: str) -> None:
    chunks = litellm.completion(
        model="openai/tiny",
        api_base=url,
        api_key="none",
        messages=[USER],
        stream=True,
        max_tokens=4,
        extra_body={"guided_choice": ["hm"]},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "hm"
