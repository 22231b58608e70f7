"""Messages in the form that chat templates expect."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.server.wire.chat.messages import template_message
from jaxserve.server.wire.ignored_fields import collect_ignored


def test_messages_in_the_templates_form() -> None:
    text = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template_message({"role": "user", "content": text}, "messages[0]") == {
        "role": "user",
        "content": "a\nb",
    }
    assert template_message({"role": "developer", "content": "x", "name": "n"}, "") == {
        "role": "system",
        "content": "x",
        "name": "n",
    }


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_calls_and_results_in_the_templates_form() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"}
    assert template_message(call, "") == {
        "role": "assistant",
        "content": "",
        "reasoning": "hm",
        "reasoning_content": "hm",
        "tool_calls": [CALL | {"function": {"name": "f", "arguments": {"a": 1}}}],
    }
    result = {"role": "tool", "content": "4", "tool_call_id": "c1"}
    assert template_message(result, "") == result


def test_a_response_can_be_sent_back_as_a_message() -> None:
    from openai.types.chat import ChatCompletionMessage

    answer = ChatCompletionMessage(role="assistant", content="Paris.").model_dump()
    assert template_message(answer, "messages[1]") == {"role": "assistant", "content": "Paris."}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "reasoning": "y"}, "messages[0].reasoning"),
        ({"role": "user"}, "messages[0].content"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user", "content": []}, "messages[0].content"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{}]},
            "messages[0].tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages[0].tool_calls"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0]",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
    ],
)
def test_malformed_messages_are_refused_with_their_path(
    message: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        template_message(message, "messages[0]")
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ("null", {}),
        ("{", "{"),
        ("[]", "[]"),
        ("12", "12"),
        ("[" * 100_000, "[" * 100_000),
        (r'{"t": "\ud83d"}', {"t": "\ufffd"}),
        (r'{"t": "\ud83d\ude00"}', {"t": "\U0001f600"}),
    ],
)
def test_arguments_of_a_history_are_never_refused(arguments: Any, right: Any) -> None:
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    message = template_message({"role": "assistant", "tool_calls": [call]}, "messages[0]")
    assert message["tool_calls"][0]["function"]["arguments"] == right


def test_fields_that_clients_send_back_are_ignored_and_named() -> None:
    ignored: list[str] = []
    function = CALL["function"] | {"parsed_arguments": {"a": 1}}  # type: ignore[operator]
    with collect_ignored(ignored):
        message = template_message(
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
                "tool_calls": [CALL | {"function": function, "index": 0}],
                "parsed": None,
                "audio": None,
                "annotations": [],
                "refusal": None,
            },
            "messages[1]",
        )
    assert message["content"] == "x"
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert sorted(ignored) == [
        "messages[1].annotations",
        "messages[1].content[0].cache_control",
        "messages[1].tool_calls[0].function.parsed_arguments",
        "messages[1].tool_calls[0].index",
    ]


def test_an_answer_of_reasoning_alone_can_be_sent_back() -> None:
    message = template_message(
        {"role": "assistant", "content": None, "reasoning": "hm"}, "messages[0]"
    )
    assert (message["content"], message["reasoning_content"]) == ("", "hm")


@pytest.mark.parametrize("content", [None, [], ""])
def test_calls_and_results_may_have_no_content(content: Any) -> None:
    answer = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    assert template_message(answer, "messages[1]")["content"] == ""
    result = {"role": "tool", "tool_call_id": "c", "content": content}
    assert template_message(result, "messages[2]")["content"] == ""


def test_an_answer_in_parts_can_be_sent_back() -> None:
    parts = [
        {"type": "thinking", "thinking": "Well.", "signature": "s"},
        {"type": "reasoning", "text": "So."},
        {"type": "text", "text": "a"},
        {"type": "refusal", "refusal": "no"},
    ]
    message = template_message({"role": "assistant", "content": parts}, "messages[1]")
    assert message["content"] == "a\nno"
    assert message["reasoning_content"] == "Well.\nSo."
    for part in (parts[0], parts[3]):
        with pytest.raises(InvalidRequestError, match=part["type"]):
            template_message({"role": "user", "content": [part]}, "messages[0]")


@pytest.mark.parametrize("role", ["user", "system", "developer"])
@pytest.mark.parametrize("content", [None, []])
def test_other_roles_need_content(role: str, content: Any) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        template_message({"role": role, "content": content}, "messages[0]")
    assert raised.value.param == "messages[0].content"
