"""What people do in the page's chat, in Chromium, with real servers and models."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.jaxserve.server.page.conftest import adding

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


def test_a_question_is_answered_in_a_stream(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Your message").fill("What is the capital of France?")
    page.get_by_label("Your message").press("Enter")
    answer = page.locator(".message.assistant")
    expect(answer.locator(".text")).to_contain_text("Paris")
    expect(answer.locator(".figures")).to_contain_text("ended by stop")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    # The conversation goes on: its beginning is in the prefix cache.
    page.get_by_label("Your message").fill("And of Italy?")
    page.get_by_role("button", name="Send").click()
    last = page.locator(".message.assistant").last
    expect(last.locator(".figures")).to_contain_text(re.compile(r"\([1-9]\d* cached\)"))
    assert page.locator(".message").count() == 4


def test_an_answer_can_be_stopped(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_text("Settings").click()
    page.get_by_label("Max tokens").fill("900")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Your message").fill("Count from 1 to 1000, one number a line.")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".message.assistant .text")).to_contain_text("1")
    expect(page.locator("#running tr.own")).to_have_count(1)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".message.assistant .figures")).to_have_text("stopped")
    expect(page.locator("#running tr")).to_have_count(0)  # its blocks are free again
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".message")).to_have_count(0)


def test_settings_are_sent_and_shown_as_code(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("JSON schema").fill('{"enum": ["it\'s so"]}')
    page.get_by_label("Probabilities").check()
    page.get_by_text("This request as code").click()
    page.get_by_label("Your message").fill("Is it?")
    code = page.locator("#code-text")
    expect(code).to_contain_text("curl")
    for language, words in (
        ("Python", ["from openai import OpenAI", "temperature=0", "json_schema"]),
        ("JavaScript", ["await fetch(", '"seed": 7']),
        ("curl", ["/v1/chat/completions", '"content": "Is it?"', "it'\\''s so"]),
    ):
        page.get_by_role("button", name=language).click()
        for word in words:
            expect(code).to_contain_text(word)
    page.get_by_role("button", name="Send").click()
    answer = page.locator(".message.assistant .text")
    expect(answer).to_have_text('"it\'s so"')
    assert "%" in (answer.locator(".token").first.get_attribute("title") or "")
    page.get_by_label("JSON schema").fill("{")
    page.get_by_label("Your message").fill("again")
    page.get_by_label("Your message").press("Enter")
    expect(page.locator(".message.error")).to_contain_text("The JSON schema")


def said_in(stream: str) -> str:
    """The content of a streamed answer, as it came over HTTP."""
    events = [event.removeprefix("data: ") for event in stream.split("\n\n")]
    chunks = [json.loads(event) for event in events if event.startswith("{")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_the_code_runs(server: Any, open_page: OpenPage) -> None:
    """Python here, JavaScript in the browser, and what a shell would give to curl."""
    page = open_page(server.url)
    page.get_by_text("Settings").click()
    page.get_by_label("JSON schema").fill(json.dumps({"const": "it's `so` \\ $HOME"}))
    page.get_by_text("This request as code").click()
    page.get_by_label("Your message").fill("Isn't it?")
    code = page.locator("#code-text")
    expect(code).to_contain_text("curl")
    _, url, *options = shlex.split(code.inner_text().replace("\\\n", " "))
    data = options[options.index("-d") + 1]
    sent = urllib.request.Request(url, data.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(sent, timeout=120) as response:
        assert json.loads(said_in(response.read().decode())) == "it's `so` \\ $HOME"
    page.get_by_role("button", name="Python").click()
    said: list[str] = []
    exec(code.inner_text(), {"print": lambda text, **_: said.append(text)})
    assert json.loads("".join(said)) == "it's `so` \\ $HOME"
    page.get_by_role("button", name="JavaScript").click()
    console = "const said = []; const console = { log: (text) => said.push(text) };"
    run = f"async () => {{ {console}\n{code.inner_text()}\nreturn said.join(''); }}"
    assert json.loads(said_in(page.evaluate(run))) == "it's `so` \\ $HOME"


def test_unlikely_tokens_are_coloured(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("24")
    page.get_by_label("Probabilities").check()
    page.get_by_label("Your message").fill("Tell me about the sea.")
    page.get_by_role("button", name="Send").click()
    answer = page.locator(".message.assistant")
    expect(answer.locator(".figures").last).to_contain_text("24 tokens")
    tokens = answer.locator(".token").evaluate_all(
        "spans => spans.map((span) => [span.title, getComputedStyle(span).backgroundColor])"
    )
    assert len(tokens) == 24
    colours = {}
    for title, colour in tokens:
        (share,) = re.findall(r"^\".*?\" ([\d.]+) %", title)
        alpha = re.search(r"/ ([\d.]+)\)$", colour)
        colours[float(share)] = float(alpha[1]) if alpha else 1.0
    shares = sorted(colours)
    assert shares[0] < 50 < 90 < shares[-1]
    assert colours[shares[0]] > 0.5 > colours[shares[-1]]
    # By keyboard, too.
    text = answer.get_by_role("application", name="Tokens of the answer")
    text.focus()
    text.press("ArrowRight")
    text.press("ArrowRight")
    expect(answer.locator(".token-about")).to_have_text(tokens[1][0])
    assert "instead: " in tokens[1][0]


def test_a_seed_repeats_an_answer(tiny_server: Any, open_page: OpenPage) -> None:
    page = open_page(tiny_server.url)
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("1")
    page.get_by_label("Max tokens").fill("40")
    texts = []
    for seed in ("5", "5", "6"):
        page.get_by_label("Seed").fill(seed)
        page.get_by_label("Your message").fill("Say something.")
        page.get_by_role("button", name="Send").click()
        answer = page.locator(".message.assistant")
        expect(answer.locator(".figures")).to_contain_text("ended by")
        texts.append(answer.locator(".text").text_content())
        page.get_by_role("button", name="New conversation").click()
    assert texts[0] == texts[1] != texts[2]


def test_an_answer_fits_its_schema(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("JSON schema").fill(json.dumps(schema))
    page.get_by_label("Your message").fill("What is the capital of France?")
    page.get_by_role("button", name="Send").click()
    answer = page.locator(".message.assistant")
    expect(answer.locator(".figures")).to_contain_text("ended by")
    found = json.loads(answer.locator(".text").inner_text())
    assert found["city"] == "Paris"
    assert isinstance(found["large"], bool)


def test_calls_are_shown_and_get_results(tiny_server: Any, open_page: OpenPage) -> None:
    page = open_page(tiny_server.url)
    cities = {"type": "object", "properties": {"city": {"enum": ["Rome", "Paris"]}}}
    cities |= {"required": ["city"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "weather", "parameters": cities}}
    page.get_by_text("Settings").click()
    page.get_by_label("Tools (JSON)").fill(json.dumps([tool]))
    page.get_by_label("Whether it calls a tool").select_option("always")
    # The random model would call on and on.
    page.route("**/v1/chat/completions", adding(parallel_tool_calls=False))
    page.get_by_label("Your message").fill("How is the weather?")
    page.get_by_role("button", name="Send").click()
    answer = page.locator(".message.assistant").first
    call = re.compile(r"^weather\(\{\"city\": ?\"(Rome|Paris)\"\}\)$")
    expect(answer.get_by_role("region", name="Tool calls")).to_have_text(call)
    answer.get_by_label("What weather returns").fill("<b>rain</b>")
    page.get_by_label("Whether it calls a tool").select_option("never")
    with page.expect_request("**/v1/chat/completions") as asked:
        answer.get_by_role("button", name="Send the results").click()
    said, result = asked.value.post_data_json["messages"][-2:]
    assert result["content"] == "<b>rain</b>"
    assert result["tool_call_id"] == said["tool_calls"][0]["id"]
    expect(page.locator(".message.user").last).to_contain_text("<b>rain</b>")
    expect(page.locator(".message.assistant").last.locator(".figures")).to_contain_text("ended by")
    assert page.locator("#messages b").count() == 0


def test_reasoning_is_shown_apart(start_tiny: Callable[..., Any], open_page: OpenPage) -> None:
    server = start_tiny("--reasoning-parser", "deepseek_r1")
    page = open_page(server.url)
    # A random model doesn't reason: a grammar makes it.
    made = {"structured_outputs": {"regex": "<think><i>Hm</i>\\.</think>So\\."}}
    page.route("**/v1/chat/completions", adding(**made))
    page.get_by_label("Your message").fill("Why?")
    page.get_by_role("button", name="Send").click()
    answer = page.locator(".message.assistant")
    expect(answer.locator(".figures")).to_contain_text("ended by stop")
    expect(answer.get_by_text("Reasoning", exact=True)).to_be_visible()
    expect(answer.locator(".reasoning")).to_have_text("<i>Hm</i>.")
    expect(answer.locator(".text")).to_have_text("So.")
    assert answer.locator("i").count() == 0


def test_what_the_model_says_stays_text(tiny_server: Any, open_page: OpenPage) -> None:
    """The grammar makes the model say it."""
    page = open_page(tiny_server.url)
    hostile = "<script>alert(1)</script><img src=x onerror=alert(2)>\u202eevil\u2066"
    page.get_by_text("Settings").click()
    page.get_by_label("JSON schema").fill(json.dumps({"const": hostile}))
    for probabilities in (False, True):
        page.get_by_label("Probabilities").set_checked(probabilities)
        page.get_by_label("Your message").fill(hostile)
        page.get_by_role("button", name="Send").click()
        answer = page.locator(".message.assistant").last
        expect(answer.locator(".figures")).to_contain_text("ended by")
        assert "onerror=alert(2)>" in answer.locator(".text").inner_text()
        assert answer.locator("script, img").count() == 0
        # A mark that turns the direction of text ends with the answer.
        assert answer.locator(".text").evaluate("e => getComputedStyle(e).unicodeBidi") == "isolate"
    # A name, too, which comes from the server's settings.
    name = "<img src=x onerror=alert(3)>"
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{"id": name}]}))
    page.reload()
    expect(page.locator("#model")).to_have_text(name)
    assert page.locator("img").count() == 0


def test_a_line_of_ten_million_characters(tiny_server: Any, open_page: OpenPage) -> None:
    """No model here says so much; the browser gets it in the server's place."""
    page = open_page(tiny_server.url)

    def answer(route: Route) -> None:
        delta = {"content": "<b>" * 3_500_000}
        chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
        body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", answer)
    page.get_by_label("Your message").fill("Say much.")
    page.get_by_role("button", name="Send").click()
    text = page.locator(".message.assistant .text")
    expect(text).to_contain_text("<b><b>")
    assert text.evaluate("e => e.textContent.length") == 200_000
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
