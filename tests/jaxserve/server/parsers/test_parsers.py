"""What the parsers find in generated text: nothing is lost, and it doesn't depend on splits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxserve.config import ServerConfig
from jaxserve.server.parsers import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    CallOrAnswerParser,
    NamedCallParser,
    RequiredCallsParser,
    TextParser,
)

Call = tuple[str, str]  # name, arguments
Parts = tuple[str, str, list[Call]]
OFFERED: dict[str, Any] = {"f": {}, "g": {}}


def found(parser: TextParser, texts: Iterable[str]) -> list[str | Call | tuple[str]]:
    """What a parser finds in consecutive texts, in order: content, calls, and reasoning in a tuple
    of its own."""
    joined: list[Any] = []
    deltas = [delta for text in texts for delta in parser.feed(text)] + parser.finish()
    for kind, text in deltas:
        assert text
        last = joined[-1] if joined else None
        match kind:
            case "call":
                joined.append((text, ""))
            case "arguments":
                name, so_far = joined[-1]
                joined[-1] = name, so_far + text
            case "content" if isinstance(last, str):
                joined[-1] += text
            case "content":
                joined.append(text)
            case "reasoning" if isinstance(last, tuple) and len(last) == 1:
                joined[-1] = (last[0] + text,)
            case "reasoning":
                joined.append((text,))
    return joined


def parts(parser: TextParser, texts: Iterable[str]) -> Parts:
    """Reasoning, content and calls that a parser finds in consecutive texts."""
    items = found(parser, texts)
    return (
        "".join(item[0] for item in items if isinstance(item, tuple) and len(item) == 1),
        "".join(item for item in items if isinstance(item, str)),
        [item for item in items if isinstance(item, tuple) and len(item) == 2],
    )


CALL = '{"name": "f", "arguments": {"a": "}<x>\\"", "b": [1, {"c": 2}]}}'
ARGUMENTS = '{"a": "}<x>\\"", "b": [1, {"c": 2}]}'
OTHER = '{"arguments": {"x": 1}, "name": "g"}'
CUT = '{"name": "f", "arguments": {"a": "b'


def hermes(arguments: str) -> str:
    return f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'


TEXTS: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Hello <b>", "Hello <b>", []),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [("f", ARGUMENTS)]),
    (
        "hermes",
        f"Wait.\n\n<tool_call>{CALL}</tool_call>\n<tool_call>\n{OTHER}\n</tool_call>\n",
        "Wait.",
        [("f", ARGUMENTS), ("g", '{"x": 1}')],
    ),
    ("hermes", f"<tool_call>{CALL}<tool_call>{CALL}", "", [("f", ARGUMENTS)] * 2),
    ("hermes", f"<tool_call>{CALL}</tool_call> Done.", " Done.", [("f", ARGUMENTS)]),
    *[("hermes", hermes(empty), "", [("f", "{}")]) for empty in ("null", '""', "{}", '"{}"')],
    *[
        ("hermes", hermes(other), hermes(other), [])
        for other in ("[]", "12", '"x"', "NaN", "1e999")
    ],
    *[
        ("hermes", f"<tool_call>{CUT}{end}", f"<tool_call>{CUT}{end}", [])
        for end in ("", "</tool_call>")
    ],
    ("hermes", f"<tool_call>{CUT}<tool_call>{CALL}", f"<tool_call>{CUT}", [("f", ARGUMENTS)]),
    ("hermes", hermes('{"a": "</tool_call>"}'), "", [("f", '{"a": "</tool_call>"}')]),
    ("hermes", hermes('{"a": "x\ny"}'), "", [("f", '{"a": "x\\ny"}')]),
    ("hermes", hermes('{"a": "\\ud83d"}'), "", [("f", '{"a": "\ufffd"}')]),
    ("hermes", hermes('{"a": "\\ud83d\\ude00"}'), "", [("f", '{"a": "\U0001f600"}')]),
    *[
        ("hermes", text, text, [])
        for text in (hermes("{}").replace('"f"', n) for n in ('""', '"h"', "1"))
    ],
    ("hermes", "see \n<tool_call> tag", "see \n<tool_call> tag", []),
    ("hermes", "a <tool_call>  b <tool_call>", "a <tool_call>  b <tool_call>", []),
    ("hermes", 'a\n<tool_call> {"name": "f", "arg', 'a\n<tool_call> {"name": "f", "arg', []),
    ("mistral", "[TOOL_CALLS][1, 2] x", "[TOOL_CALLS][1, 2] x", []),
    ("mistral", "Hm. [TOOL_CALLS] [", "Hm. [TOOL_CALLS] [", []),
    ("mistral", '[TOOL_CALLS] [{"a": 1}, 2]', '[TOOL_CALLS] [{"a": 1}, 2]', []),
    ("mistral", f'[TOOL_CALLS][{CALL}, {{"na', ', {"na', [("f", ARGUMENTS)]),
    ("mistral", f"[TOOL_CALLS][{CALL}, 2] x", ", 2] x", [("f", ARGUMENTS)]),
    ("mistral", f"[TOOL_CALLS][{CALL}] x", " x", [("f", ARGUMENTS)]),
    ("llama3_json", '<|python_tag|> {"a": 1} b', '<|python_tag|> {"a": 1} b', []),
    ("llama3_json", OTHER.replace("g", "unknown"), OTHER.replace("g", "unknown"), []),
    ("hermes", '<tool_call>{"name": "f', '<tool_call>{"name": "f', []),
    (
        "hermes",
        '<tool_call>{"city": "Rome"}</tool_call>',
        '<tool_call>{"city": "Rome"}</tool_call>',
        [],
    ),
    ("hermes", "<tool_call>no", "<tool_call>no", []),
    ("hermes", "text \n<tool", "text \n<tool", []),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("llama3_json", " Hello {}", " Hello {}", []),
    ("llama3_json", CALL.replace("arguments", "parameters"), "", [("f", ARGUMENTS)]),
    ("llama3_json", f"<|python_tag|>{CALL}; {OTHER}", "", [("f", ARGUMENTS), ("g", '{"x": 1}')]),
    ("llama3_json", '{"city": "Rome"} it is', '{"city": "Rome"} it is', []),
    ("llama3_json", "<|python_tag|> print(1)", "<|python_tag|> print(1)", []),
    ("llama3_json", '{"na', '{"na', []),
    ("llama3_json", '{"name": "Ada"}', '{"name": "Ada"}', []),
    ("llama3_json", '{"name": "f"}', '{"name": "f"}', []),
    (
        "llama3_json",
        '{"name": "f", "parameters": {}, "age": 1}',
        '{"name": "f", "parameters": {}, "age": 1}',
        [],
    ),
    ("llama3_json", f"{CALL}; and", "; and", [("f", ARGUMENTS)]),
    ("llama3_json", f"{CALL}\n{CUT}", f"\n{CUT}", [("f", ARGUMENTS)]),
    ("llama3_json", "", "", []),
    ("mistral", "Hi [TOOL]", "Hi [TOOL]", []),
    (
        "mistral",
        f"Hm. [TOOL_CALLS] [{CALL}, {OTHER}]",
        "Hm.",
        [("f", ARGUMENTS), ("g", '{"x": 1}')],
    ),
    ("mistral", f"[TOOL_CALLS]f{ARGUMENTS}", "", [("f", ARGUMENTS)]),
    (
        "mistral",
        f"[TOOL_CALLS]f[ARGS]{ARGUMENTS}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{{}}",
        "",
        [("f", ARGUMENTS), ("g", "{}")],
    ),
    ("mistral", "[TOOL_CALLS]what", "[TOOL_CALLS]what", []),
    ("mistral", "a [TOOL_CALLS][1, 2] x", "a [TOOL_CALLS][1, 2] x", []),
    ("mistral", f"[TOOL_CALLS][{CALL}", "", [("f", ARGUMENTS)]),
    ("mistral", "[TOOL_CALLS]h[ARGS]{}", "[TOOL_CALLS]h[ARGS]{}", []),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), TEXTS)
def test_what_a_tool_parser_finds(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert parts(TOOL_PARSERS[name](OFFERED), [text]) == ("", content, calls)
    assert parts(TOOL_PARSERS[name](OFFERED), text) == (
        "",
        content,
        calls,
    )  # character by character


@pytest.mark.parametrize(
    ("prompt", "name", "text", "reasoning", "content"),
    [
        ("", "qwen3", "<think>\nwhy\n</think>\n\nso", "\nwhy\n", "\n\nso"),
        ("", "qwen3", "\n<think>a <b> </thin", "a <b> </thin", ""),
        ("", "qwen3", "so <think>", "", "so <think>"),
        ("", "qwen3", " <th", "", " <th"),
        ("...<think>\n", "qwen3", "why</think>so", "why", "so"),
        ("<think>\n\n</think>\n\n", "qwen3", "so", "", "so"),
        ("", "deepseek_r1", "why</think>so", "why", "so"),
        ("", "deepseek_r1", "<think>why</think>so</think>", "why", "so</think>"),
        ("", "deepseek_r1", "<", "<", ""),
    ],
)
def test_what_a_reasoning_parser_finds(
    prompt: str, name: str, text: str, reasoning: str, content: str
) -> None:
    make = REASONING_PARSERS[name]
    assert parts(make(prompt), [text]) == (reasoning, content, [])
    assert parts(make(prompt), text) == (reasoning, content, [])


def test_forced_calls() -> None:
    text = '[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]'
    for split in (lambda t: [t], list):
        calls = parts(RequiredCallsParser(OFFERED), split(text))
        assert calls == ("", "", [("f", '{"a": 1}'), ("g", "{}")])
        assert parts(RequiredCallsParser(OFFERED), split(text[:-3])) == (
            "",
            ', {"name": "g", "parameters": {',
            [("f", '{"a": 1}')],
        )
        assert parts(NamedCallParser("h"), split(text)) == ("", "", [("h", text)])


_D = "<\uff5ctool\u2581{}\uff5c>"
_CALLS, _CALLS_END = _D.format("calls\u2581begin"), _D.format("calls\u2581end")
_BEGIN, _END, _SEP = (_D.format(w) for w in ("call\u2581begin", "call\u2581end", "sep"))
_M = "\uff5cDSML\uff5c"
_XML = "<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=b>\n[1]\n</parameter>\n</function>"
_INVOKE = (
    '<invoke name="f"><parameter name="a">x</parameter><parameter name="b">[1]</parameter></invoke>'
)
# A call of f with WRITTEN_ARGUMENTS in each format.
WRITTEN_ARGUMENTS = {"a": "x", "b": [1]}
_OBJECT = '{"name": "f", "arguments": {"a": "x", "b": [1]}}'
WRITTEN = {
    "hermes": f"<tool_call>{_OBJECT}</tool_call>",
    "generic": f"<tool_call>\n{_OBJECT}\n</tool_call>",
    "llama3_json": f"<|python_tag|>{_OBJECT}",
    "mistral": f"[TOOL_CALLS][{_OBJECT}]",
    "qwen3_coder": f"<tool_call>\n{_XML}\n</tool_call>",
    "seed_oss": f"<seed:tool_call>{_XML}</seed:tool_call>",
    "glm45": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n<arg_key>b</arg_key>\n"
    "<arg_value>[1]</arg_value>\n</tool_call>",
    "deepseek_v3": f"{_CALLS}{_BEGIN}function{_SEP}f\n```json\n"
    f'{{"a": "x", "b": [1]}}\n```{_END}{_CALLS_END}',
    "deepseek_v31": f'{_CALLS}{_BEGIN}f{_SEP}{{"a": "x", "b": [1]}}{_END}{_CALLS_END}',
    "deepseek_v32": f'<{_M}function_calls>\n<{_M}invoke name="f">\n<{_M}parameter name="a" '
    f'string="true">x</{_M}parameter>\n<{_M}parameter name="b" string="false">[1]</{_M}parameter>\n'
    f"</{_M}invoke>\n</{_M}function_calls>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    '<|tool_call_argument_begin|>{"a": "x", "b": [1]}<|tool_call_end|><|tool_calls_section_end|>',
    "minimax": f"<tool_calls>\n{_OBJECT}\n</tool_calls>",
    "minimax_m2": f"<minimax:tool_call>\n{_INVOKE}\n</minimax:tool_call>",
    "phi4_mini_json": f"<|tool_call|>[{_OBJECT}]<|/tool_call|>",
    "granite": f"<|tool_call|>[{_OBJECT}]",
    "llama4_pythonic": '<|python_start|>[f(a="x", b=[1])]<|python_end|>',
    "olmo3": "<function_calls>f(a='x', b=[1])</function_calls>",
    "gemma": "<start_function_call>call:f{a:<escape>x<escape>,b:[1]}<end_function_call>",
    "gemma4": '<|tool_call>call:f{a:<|"|>x<|"|>,b:[1]}<tool_call|>',
    "pythonic": '[f(a="x", b=[1])]',
}


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_a_call_in_each_format(name: str) -> None:
    text = WRITTEN[name]
    before = "" if TOOL_PARSERS[name].needs_marker is False else "Let me see.\n"
    for split in ([before + text], list(before + text)):
        _, content, ((called, arguments),) = parts(TOOL_PARSERS[name](OFFERED), split)
        assert (content, called) == (before.strip(), "f")
        assert json.loads(arguments) == WRITTEN_ARGUMENTS
    # Cut off anywhere before its end, or of a tool that isn't offered, it is content as it stands.
    for cut in range(1, len(text) // 2):
        assert parts(TOOL_PARSERS[name](OFFERED), [text[:cut]]) == ("", text[:cut], [])
    for split in ([text], list(text)):
        assert parts(TOOL_PARSERS[name]({"other": {}}), split) == ("", text, [])


@pytest.mark.parametrize(
    ("name", "text", "schema", "value"),
    [
        ("qwen3_coder", "12", {"type": "string"}, "12"),
        ("qwen3_coder", "12", {"type": "integer"}, 12),
        ("qwen3_coder", "12", {"type": ["integer", "null"]}, 12),
        ("qwen3_coder", "null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("qwen3_coder", "12", {}, "12"),
        ("qwen3_coder", '{"x": 1}', {}, {"x": 1}),
        ("qwen3_coder", "many", {"type": "integer"}, "many"),
        ("qwen3_coder", "two", {"enum": ["one", "two"]}, "two"),
        ("qwen3_coder", "2", {"enum": [1, 2]}, 2),
        ("qwen3_coder", "1.5", {"type": "number"}, 1.5),
        ("qwen3_coder", "true", {"type": "boolean"}, True),
    ],
)
def test_bare_values_have_the_types_of_the_schema(
    name: str, text: str, schema: Any, value: Any
) -> None:
    offered = {"f": {"type": "object", "properties": {"a": schema}}}
    call = f"<tool_call><function=f><parameter=a>{text}</parameter></function></tool_call>"
    _, _, ((_, arguments),) = parts(TOOL_PARSERS[name](offered), [call])
    assert json.loads(arguments) == {"a": value}


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_an_answer_in_json_is_no_call(name: str) -> None:
    marker = TOOL_PARSERS[name].markers[0]

    def parser() -> TextParser:
        return CallOrAnswerParser(marker, lambda: TOOL_PARSERS[name](OFFERED))

    for answer in (CALL, json.dumps(f"{marker}{CALL}"), f"[{CALL}]", "", marker[:3]):
        for split in ([answer], list(answer)):
            assert parts(parser(), split) == ("", answer, [])
    for split in ([WRITTEN[name]], list(WRITTEN[name])):
        _, content, ((called, arguments),) = parts(parser(), split)
        assert (content, called, json.loads(arguments)) == ("", "f", WRITTEN_ARGUMENTS)


PARSERS: dict[str, Callable[[], TextParser]] = {
    **{name: lambda kind=kind: kind(OFFERED) for name, kind in TOOL_PARSERS.items()},  # type: ignore[misc]
    **{f"reasoning {name}": lambda kind=kind: kind("") for name, kind in REASONING_PARSERS.items()},  # type: ignore[misc]
    "required": lambda: RequiredCallsParser(OFFERED),
}
# What may stand before and after a call's JSON.
AROUND = {
    "generic": (r"\s*<tool_call>\s*", r"(\s*</tool_call>)?"),
    "hermes": (r"\s*<tool_call>\s*", r"(\s*</tool_call>)?"),
    "llama3_json": (r"\s*(<\|python_tag\|>|;)?\s*", ""),
    "mistral": (
        r"\s*(\[TOOL_CALLS\]\s*(\[\s*|(?P<name>\w+)\s*(\[CALL_ID\][^\[{]*)?(\[ARGS\])?\s*)|,\s*)",
        r"(\s*\])?",
    ),
    "required": (r"\s*[\[,]?\s*", r"(\s*\]\s*$)?"),
}


def check_blocks(name: str, text: str, items: list[Any]) -> None:
    """As check_calls(), for formats whose calls aren't one JSON value: between two pieces of
    content there is nothing but blocks, each of which begins with a marker."""
    kind = TOOL_PARSERS[name]
    begins = getattr(kind, "begins", ()) or kind.markers[:1]
    block = rf"\s*(?:{'|'.join(map(re.escape, begins))}).*?"
    pattern, in_calls = "", False
    for item in items:
        if isinstance(item, str):
            pattern += re.escape(item)
        elif not in_calls:
            pattern += block
        in_calls = not isinstance(item, str)
        if in_calls:
            assert item[0] in OFFERED
            assert isinstance(json.loads(item[1]), dict)
    assert re.fullmatch(rf"{pattern}\s*" if in_calls or items else pattern, text, re.DOTALL)
    if all(isinstance(item, str) for item in items):
        assert "".join(items) == text


def thought_pattern(opens: tuple[str, ...], closes: tuple[str, ...]) -> re.Pattern[str]:
    opened, closed = ("|".join(map(re.escape, tags)) for tags in (opens, closes))
    return re.compile(
        rf"(?P<open>\s*(?:{opened}))?(?P<thought>.*?)((?:{closed})(?P<rest>.*))?", re.DOTALL
    )


def check_calls(name: str, text: str, items: list[Any]) -> None:
    """Every character is content or belongs to a call of an offered tool, in the text's order."""
    before, after = map(re.compile, AROUND[name])
    at = 0
    for item in items:
        if isinstance(item, str):
            assert text.startswith(item, at)
            at += len(item)
            continue
        called_name, arguments = item
        begin = before.match(text, at)
        assert begin is not None
        written, at = json.JSONDecoder(strict=False).raw_decode(text, begin.end())
        if begin.groupdict().get("name"):
            written = {"name": begin["name"], "arguments": written}
        assert called_name == written["name"] in OFFERED
        given = written.get("arguments", written.get("parameters")) or {}
        given = json.loads(given or "{}") if isinstance(given, str) else given
        assert isinstance(given, dict)
        assert json.loads(arguments) == (given or {})
        end = after.match(text, at)
        assert end is not None
        at = end.end()
    called = any(isinstance(item, tuple) for item in items)
    assert text[at:] == "" or (called and text[at:].isspace())


def check_reasoning(name: str, text: str, items: list[Any]) -> None:
    """Every character but those of the tags is reasoning or content."""
    reasoning = "".join(item[0] for item in items if isinstance(item, tuple))
    content = "".join(item for item in items if isinstance(item, str))
    kind = REASONING_PARSERS[name]
    thought = thought_pattern(kind.opens(), kind.closes()).fullmatch(text)
    assert thought is not None
    if thought["open"] is None and name != "deepseek_r1":
        assert (reasoning, content) == ("", text)
    else:
        assert (reasoning, content) == (thought["thought"], thought["rest"] or "")


FRAGMENTS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    *("[THINK]", "[/THINK]", "<seed:think>", "Here is my thought process:", "</seed:think>"),
    *("Here is my response:", "Here's my", *WRITTEN.values()),
    *{marker for kind in TOOL_PARSERS.values() for marker in kind.markers},
    *("functools", "<function=f>", "</function>", "<parameter=a>", "</parameter>", "f(a=", ")"),
    *("call:f", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", '<invoke name="f">'),
    *("<think>", "</think>", "[", "]", ", ", ";", "\n", " ", "{", "}", '"', "\\", "f", "Hello"),
    *(CALL, OTHER, CUT, '{"name": "f", "arguments": ', '{"a": 1}', hermes("null"), "[1, 2]"),
    *(f"[TOOL_CALLS][{CALL}, {OTHER}]", '[TOOL_CALLS]f[ARGS]{"a": 1}', "f[ARGS]", '"name": ""'),
)
ANY_TEXT = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3)).map("".join)


@settings(max_examples=1500)
@given(st.sampled_from(sorted(PARSERS)), ANY_TEXT, st.data())
def test_any_text_comes_out_once(name: str, text: str, data: st.DataObject) -> None:
    """As content, reasoning or a call of an offered tool, however it is split."""
    places = st.lists(st.integers(0, len(text)), max_size=8)
    cuts = sorted({0, *data.draw(places), len(text)})
    whole = found(PARSERS[name](), [text])
    assert found(PARSERS[name](), [text[a:b] for a, b in pairwise(cuts)]) == whole
    assert found(PARSERS[name](), text) == whole
    if name in AROUND:
        check_calls(name, text, whole)
    elif name.startswith("reasoning "):
        check_reasoning(name.removeprefix("reasoning "), text, whole)
    else:
        check_blocks(name, text, whole)


@settings(max_examples=100)
@given(
    st.sampled_from(["hermes", "llama3_json", "mistral"]),
    st.dictionaries(st.text(max_size=8), st.text(max_size=20) | st.integers() | st.none()),
)
@example("hermes", {"a": "</tool_call>"})
def test_any_arguments_come_back(name: str, arguments: dict[str, object]) -> None:
    call = json.dumps({"name": "f", "arguments": arguments})
    wrapped = {
        "hermes": f"<tool_call>{call}</tool_call>",
        "llama3_json": call,
        "mistral": f"[TOOL_CALLS][{call}]",
    }
    _, content, calls = parts(TOOL_PARSERS[name](OFFERED), wrapped[name])
    assert content == ""
    assert [(f, json.loads(text)) for f, text in calls] == [("f", arguments)]


def test_every_parser_has_its_setting() -> None:
    hints = get_type_hints(ServerConfig)
    assert set(get_args(hints["tool_call_parser"])) == {"auto", "none", *TOOL_PARSERS}
    assert set(get_args(hints["reasoning_parser"])) == {"auto", "none", *REASONING_PARSERS}
