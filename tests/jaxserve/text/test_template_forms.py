"""What chat templates of several kinds make of the same conversation: nothing of it is lost."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.text.chat_template import ChatTemplate

START = "{% for m in messages %}<{{ m.role }}>"
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}"
TEMPLATES = {
    "objects": START + "{{ m.content }}" + CALLS + "{% endfor %}",
    "texts": START
    + "{{ m.content }}{% for c in m.tool_calls or [] %}"
    + '{{ \'<call>{"name": "\' + c.function.name + \'", "arguments": \' + c.function.arguments'
    + " + '}</call>' }}{% endfor %}{% endfor %}",
    "printed": START
    + "{{ m.content }}{% for c in m.tool_calls or [] %}"
    + '<call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments }}}</call>'
    + "{% endfor %}{% endfor %}",
    "items": START
    + "{{ m.content }}{% for c in m.tool_calls or [] %}"
    + '<call>{"name": "{{ c.function.name }}", "arguments": {{ "{" }}'
    + "{% for k, v in c.function.arguments.items() %}"
    + '{{ k | tojson }}: {{ v | tojson }}{{ ", " if not loop.last }}'
    + "{% endfor %}{{ '}}' }}</call>{% endfor %}{% endfor %}",
    "calls_without_content": START
    + "{% if m.content is none %}"
    + CALLS
    + "{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "parts": START
    + "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
    + CALLS
    + "{% endfor %}",
    "parts_of_users": START
    + "{% if m.role == 'user' %}{{ m.content[0]['text'] }}{% else %}{{ m.content }}{% endif %}"
    + CALLS
    + "{% endfor %}",
    "texts_alone": START
    + "{% if m.content is not string %}{{ raise_exception('a text') }}{% endif %}{{ m.content }}"
    + CALLS
    + "{% endfor %}",
    "alternating": "{% for m in messages %}{% if m.role == 'system' %}"
    + "{{ raise_exception('no system') }}{% endif %}<{{ m.role }}>{{ m.content | trim }}"
    + CALLS
    + "{% endfor %}",
}
CALL = '<call>{"name": "f", "arguments": {"city": "Köln"}}</call>'


def conversation(content: str, arguments: Any = None) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": {"city": "Köln"} if arguments is None else arguments}
    call = {"id": "c", "type": "function", "function": function}
    return [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "here"},
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_writes_texts_calls_and_results(name: str) -> None:
    template = ChatTemplate({"default": TEMPLATES[name]}, {})
    plain = template.render(conversation(""))
    assert plain == f"<user>Where?<assistant>{CALL}<tool>here"
    with_text = template.render(conversation("Hm."))
    between = "<assistant>" if name == "calls_without_content" else ""
    assert with_text == f"<user>Where?<assistant>Hm.{between}{CALL}<tool>here"
    two = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    assert template.render(two) == "<assistant>a<user>b"


@pytest.mark.parametrize("name", TEMPLATES)
def test_arguments_that_are_no_json_reach_the_template(name: str) -> None:
    template = ChatTemplate({"default": TEMPLATES[name]}, {})
    assert "lost" in template.render(conversation("", '{"lost'))


def test_a_template_s_own_refusals_stay() -> None:
    template = ChatTemplate({"default": TEMPLATES["alternating"]}, {})
    with pytest.raises(ValueError, match="no system"):
        template.render([{"role": "system", "content": "x"}])
