"""What people see and do on the page, in Chromium, with real servers and models."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

pytestmark = pytest.mark.slow


class CuttableProxy:
    """Passes connections on to a port of this machine, until it cuts them."""

    def __init__(self, target: int) -> None:
        self._target, self._refuse = target, False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []

    def __enter__(self) -> CuttableProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut(refuse=True)
        self._listening.close()

    def cut(self, refuse: bool) -> None:
        """Ends all connections. Args: refuse: further ones, too."""
        self._refuse = refuse
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listening.accept()
                if self._refuse:
                    one.close()
                    continue
                other = socket.create_connection(("127.0.0.1", self._target))
                self._open += [one, other]
                for pair in ((one, other), (other, one)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


OpenPage = Callable[..., Page]
SERIOUS = ("serious", "critical")


@pytest.fixture(autouse=True)
def patience() -> None:
    """However slow the machine."""
    expect.set_options(timeout=120_000)


def complete(url: str, name: str, **body: Any) -> None:
    headers = {"Content-Type": "application/json", "X-Request-Id": name}
    data = json.dumps({"model": "tiny", "ignore_eos": True, **body}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        response.read()


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


def test_python_code_runs(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_text("This request as code").click()
    page.get_by_role("button", name="Python").click()
    page.get_by_label("Your message").fill("What is the capital of France?")
    expect(page.locator("#code-text")).to_contain_text("capital")
    said: list[str] = []
    code = page.locator("#code-text").inner_text()
    exec(code, {"print": lambda text, **_: said.append(text)})
    assert "Paris" in "".join(said)


def test_four_answers_share_blocks_and_copy_one(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_role("button", name="Four answers to one question").click()
    page.wait_for_function("() => jaxserve.state.blocks.includes(4)")
    expect(page.locator("#running tr")).to_have_count(4)
    expect(page.locator("#happened")).to_contain_text("3 shared blocks copied before a write")
    # The first blocks are the same in all tables, and each has its own last.
    tables = page.evaluate("[...jaxserve.state.sequences.values()].map((s) => s.tables.get(0))")
    assert len({table[0] for table in tables}) == 1
    assert len({table[-1] for table in tables}) == 4
    # Who points at a row, or comes to it by keyboard, sees its blocks.
    page.locator("#running tr").first.focus()
    page.wait_for_function("() => document.activeElement.tagName === 'TR'")
    pool = page.get_by_role("img", name="Block pool")
    pool.focus()
    pool.press("ArrowRight")
    expect(page.locator("#block-about")).to_contain_text(re.compile("^Block 1 is "))
    expect(page.locator("#pool-summary")).to_contain_text("4 running sequences")
    expect(page.locator("#step-about")).to_contain_text("4 tokens decoded")


def test_a_crowd_waits(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_role("button", name="A crowd of 48").click()
    expect(page.locator("#waiting li").first).to_contain_text("crowd-1")
    expect(page.locator("#waiting-count")).to_have_text(re.compile(r"^\d+$"))
    expect(page.locator(".figure", has_text="Output tokens a second").locator("p")).to_have_text(
        re.compile(r"^[1-9]")
    )
    page.reload()  # who leaves frees all of it
    page.get_by_text("Connected", exact=True).wait_for()
    expect(page.locator("#running tr")).to_have_count(0)


def test_a_preemption_shows(tiny_server: Any, open_page: OpenPage) -> None:
    page = open_page(tiny_server.url)
    prompts = [f"{n}" + "x" * 499 for n in range(3)]
    threads = [
        threading.Thread(
            target=complete,
            args=(tiny_server.url, f"long-{n}"),
            kwargs={"prompt": prompt, "max_tokens": 500},
        )
        for n, prompt in enumerate(prompts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(page.locator("#happened")).to_contain_text(re.compile(r"long-\d was preempted"))


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


def test_a_key_is_asked_for_and_kept_in_memory(
    start_tiny: Callable[..., Any], open_page: OpenPage
) -> None:
    keyed = start_tiny("--api-key", "secret")
    page = open_page(keyed.url, connects=False, allowed="401")
    field = page.get_by_label("This server needs an API key")
    field.fill("wrong")
    field.press("Enter")
    field.wait_for()
    field.fill("secret")
    field.press("Enter")
    page.get_by_text("Connected", exact=True).wait_for()
    expect(page.locator("#model")).to_contain_text("tiny")
    page.get_by_label("Your message").fill("Hello")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".message.assistant .figures")).to_contain_text("ended by")
    page.get_by_text("This request as code").click()
    expect(page.locator("#code-text")).to_contain_text("$JAXSERVE_API_KEY")
    assert "secret" not in page.content()
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [
        0,
        0,
        "",
    ]
    page.reload()
    field.wait_for()  # it is gone with the page


def test_the_stream_comes_again_after_a_cut(tiny_server: Any, open_page: OpenPage) -> None:
    with CuttableProxy(urlsplit(tiny_server.url).port or 0) as proxy:
        page = open_page(f"http://127.0.0.1:{proxy.port}", allowed="net::ERR")
        page.evaluate("jaxserve.state.about.mark = true")
        proxy.cut(refuse=True)
        expect(page.locator("#connection")).to_contain_text("Trying again")
        proxy.cut(refuse=False)
        page.wait_for_function("() => !jaxserve.state.about.mark")  # all is told anew
        expect(page.locator("#connection")).to_have_text("Connected")
        complete(tiny_server.url, "after", prompt="a", max_tokens=200)
        page.wait_for_function("() => jaxserve.state.steps.length > 0")
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_is_accessible_and_fits(
    server: Any, open_page: OpenPage, scheme: str, width: int
) -> None:
    page = open_page(server.url, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.get_by_role("button", name="Four answers to one question").click()
    expect(page.locator("#running tr")).to_have_count(4)
    page.get_by_text("Settings").click()
    page.get_by_text("This request as code").click()
    found = [v for v in Axe().run(page).response["violations"] if v["impact"] in SERIOUS]
    assert found == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
