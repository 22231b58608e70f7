"""The page in a real browser."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright

CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# Only against hanging; nothing is measured.
TIMEOUT_MS = 120_000


# Of a module, not of the session: while it is open, Playwright's event loop runs in this thread,
# and no other test could run one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium here: install it, or name it in $CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


def adding(**fields: Any) -> Callable[[Route], None]:
    """Lets a request through to the server with more fields than the page sends."""

    def send(route: Route) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | fields))

    return send


@pytest.fixture(autouse=True)
def patience() -> None:
    """However slow the machine."""
    expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens the page of a server. At the end nothing may have gone wrong in it, and nothing may
    have been asked of another host."""
    faults: list[str] = []
    contexts = []

    def open_one(url: str, connects: bool = True, allowed: str = "", **settings: Any) -> Page:
        """Args: allowed: what a line of the browser's console may contain."""

        def note(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not (allowed and allowed in message.text):
                faults.append(message.text)

        contexts.append(browser.new_context(**settings))
        page = contexts[-1].new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", note)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(f"a dialog: {dialog.message}"))
        host = urlsplit(url).netloc
        page.on(
            "request",
            lambda request: urlsplit(request.url).netloc == host or faults.append(request.url),
        )
        page.goto(url)
        if connects:
            page.get_by_text("Connected", exact=True).wait_for()
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert faults == []
