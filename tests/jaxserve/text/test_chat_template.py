from __future__ import annotations

from typing import Any

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.text.chat_template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]


def render(source: str, messages: Any = USER, **kwargs: Any) -> str:
    return ChatTemplate({"default": source}, {"bos_token": "<s>"}).render(messages, **kwargs)


def test_blocks_leave_no_white_space() -> None:
    source = "{{ bos_token }}\n  {% for m in messages %}\n{{ m.content }}!\n  {% endfor %}\nend"
    assert render(source) == "<s>\nHi!\nend"


def test_tojson_writes_json_for_models_not_for_html() -> None:
    tools = [{"name": "größer", "b": "<&>'", "a": 1}]
    assert render("{{ tools | tojson }}", tools=tools) == (
        '[{"name": "größer", "b": "<&>\'", "a": 1}]'
    )
    assert render(
        "{{ tools[0] | tojson(indent=1, sort_keys=True) }}", tools=[{"b": 1, "a": 2}]
    ) == ('{\n "a": 2,\n "b": 1\n}')


def test_extra_arguments_reach_the_template() -> None:
    source = "{{ enable_thinking }} {{ documents[0] }} {{ add_generation_prompt }}"
    assert render(source, enable_thinking=False, documents=["d"]) == "False d True"


def test_arguments_that_a_template_reads() -> None:
    template = ChatTemplate(
        {
            "default": "{% set deep = deep if deep is defined else true %}{{ strftime_now('%Y') }}",
            "tool_use": "{% for tool in tools %}{{ tool.name }} of documents{% endfor %}",
        },
        {},
    )
    read = ("deep", "tools", "", "tool", "name", "strftime_now", "documents", "set")
    assert [template.reads(name) for name in read] == [True, True] + [False] * 6
    assert template.mentions("of documents")
    assert not ChatTemplate({"default": "{% if %}"}, {}).reads("deep")


def test_loop_controls_and_generation_marks() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% break %}{% endfor %}"
    )
    assert render(source, [*USER, *USER]) == "Hi"


def test_strftime_now_gives_this_year() -> None:
    assert render("{{ strftime_now('%Y') }}").startswith("20")


def test_raise_exception_reaches_the_caller() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{% if %}",
        "{{ nothing.at.all }}",
        "{{ ''.__class__.mro() }}",
    ],
)
def test_an_error_in_a_template_is_a_request_error(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="chat template can't render"):
        render(source)


def test_a_template_cannot_change_the_messages() -> None:
    messages = [dict(USER[0])]
    with pytest.raises(InvalidRequestError):
        render("{{ messages.append(1) }}", messages)
    assert messages == USER
