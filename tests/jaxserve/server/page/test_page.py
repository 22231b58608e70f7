"""What people see of the engine on the page, in Chromium, with real servers and models."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.jaxserve.server.conftest import ServerProcess
from tests.jaxserve.server.page.conftest import adding

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


def complete(url: str, name: str, **body: Any) -> None:
    headers = {"Content-Type": "application/json", "X-Request-Id": name}
    data = json.dumps({"model": "tiny", "ignore_eos": True, **body}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        response.read()


def test_four_answers_share_blocks_and_copy_one(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.route("**/v1/completions", adding(max_tokens=800))
    page.get_by_role("button", name="Four answers to one question").click()
    page.wait_for_function("() => jaxserve.state.blocks.includes(4)")
    expect(page.locator("#running tr")).to_have_count(4)
    expect(page.locator("#happened .copied")).to_contain_text("3 shared blocks copied before")
    expect(page.locator("#sharing")).to_contain_text("shared, which saves")
    # The first blocks are the same in all tables, and each has its own last.
    tables = page.evaluate("[...jaxserve.state.sequences.values()].map((s) => s.tables.get(0))")
    assert len({table[0] for table in tables}) == 1
    assert len({table[-1] for table in tables}) == 4
    # Who points at a row sees its blocks, and of which others they are.
    page.locator("#running tr").nth(1).hover()
    about = page.locator("#block-about")
    expect(about).to_contain_text(re.compile(r"^four-answers-1 #1 has .* [1-9]\d* of them shared"))
    lit = page.evaluate("[...jaxserve.pool.lit]")
    assert sorted(lit) == sorted(block for block in tables[1] if block)
    pool = page.get_by_role("application", name="Block pool")
    pool.focus()
    pool.press("ArrowRight")
    expect(about).to_contain_text(re.compile("^Block 1 "))
    for shared in tables[0][:1]:
        page.evaluate("block => jaxserve.pool.show(block)", shared)
    expect(about).to_contain_text(re.compile(r"is shared by four-answers-1 \(entry 1 of"))
    expect(page.locator("#pool-summary")).to_contain_text("4 running sequences")
    steps = page.get_by_role("application", name="Tokens of the last steps")
    steps.focus()
    steps.press("ArrowLeft")
    expect(page.locator("#step-about")).to_contain_text(re.compile(r"^Step \d+: 4 tokens decoded"))


def test_a_copy_and_what_the_cache_had_are_marked(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.route("**/v1/completions", adding(max_tokens=800))
    # Marks fade, so they are noted as they come.
    page.evaluate(
        """() => {
            window.marked = new Set();
            const { state } = jaxserve;
            const mark = state.mark.bind(state);
            state.mark = (block, kind) => { window.marked.add(kind); mark(block, kind); };
        }"""
    )
    page.wait_for_function("() => jaxserve.state.unknown === 0")
    page.get_by_role("button", name="Six texts with the same beginning").click()
    page.wait_for_function("() => window.marked.has('found')")
    found = page.locator("#happened .found").first
    expect(found).to_contain_text(re.compile(r"same-beginning-1\.\d found the first \d+ tokens"))
    page.get_by_role("button", name="Stop: Six texts").click()
    expect(page.locator("#running tr")).to_have_count(0)
    page.get_by_role("button", name="Four answers to one question").click()
    page.wait_for_function("() => window.marked.has('copied')")
    expect(page.locator("#happened .copied")).to_contain_text(re.compile(r": \d+ to \d+"))


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
    happened = page.locator("#happened .preempted").first
    expect(happened).to_contain_text(re.compile(r"long-\d was preempted"))


def test_blocks_that_were_evicted_are_told(tiny_server: Any, open_page: OpenPage) -> None:
    page = open_page(tiny_server.url)
    for n in range(6):  # each leaves more in the prefix cache, until there is no room
        complete(tiny_server.url, f"left-{n}", prompt=f"{n}" + "y" * 499, max_tokens=100)
    happened = page.locator("#happened .evicted").first
    expect(happened).to_contain_text(re.compile(r"[1-9]\d* cached blocks? evicted to make room"))
    figure = page.locator(".figure", has_text="Cached blocks evicted").locator("p")
    expect(figure).to_have_text(re.compile(r"^[1-9]"))


@pytest.fixture
def windowed_server(
    tiny_flags: tuple[str, ...], tiny_llama: Path, tmp_path: Path
) -> Iterator[ServerProcess]:
    """The tiny Llama's weights as a Mistral, which has a window of 32 tokens."""
    folder = tmp_path / "windowed"
    shutil.copytree(tiny_llama, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    config |= {"sliding_window": 32, "max_position_embeddings": 1024}
    (folder / "config.json").write_text(json.dumps(config))
    server = ServerProcess.launch(str(folder), *tiny_flags[1:])
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def test_blocks_that_a_window_has_passed(
    windowed_server: ServerProcess, open_page: OpenPage
) -> None:
    page = open_page(windowed_server.url)
    expect(page.locator("#window-legend")).to_be_visible()
    body = {"prompt": "a", "max_tokens": 900}
    asks = threading.Thread(target=complete, args=(windowed_server.url, "long"), kwargs=body)
    asks.start()
    row = page.locator("#running tr")
    expect(row).to_contain_text(re.compile(r"window freed [1-9]"))
    table = page.evaluate("[...[...jaxserve.state.sequences.values()][0].tables.values()][0]")
    assert table[0] == 0  # passed, and free for others
    assert sum(map(bool, table)) <= 6
    asks.join()


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
