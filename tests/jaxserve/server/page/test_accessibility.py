"""The page by keyboard and for screen readers, in Chromium, with a real server and model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.jaxserve.server.page.conftest import adding

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
SERIOUS = ("serious", "critical")
MOST_TABS = 80


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


def accessible_nodes(page: Page) -> list[dict[str, Any]]:
    """What Chromium tells screen readers."""
    session = page.context.new_cdp_session(page)
    return [n for n in session.send("Accessibility.getFullAXTree")["nodes"] if not n["ignored"]]


def test_screen_readers_get_a_name_of_all_that_has_focus(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_text("Settings").click()
    page.get_by_text("This request as code").click()
    page.get_by_role("button", name="Four answers to one question").click()
    expect(page.locator("#running tr")).to_have_count(4)
    names, nameless = set(), []
    for node in accessible_nodes(page):
        focusable = any(
            p["name"] == "focusable" and p["value"]["value"] for p in node["properties"]
        )
        name = node.get("name", {}).get("value", "")
        role = node["role"]["value"]
        if focusable and role != "RootWebArea":
            names.add((role, name))
            # The name of a row are its cells.
            nameless += [node] if not name and role != "row" else []
    assert nameless == []
    for expected in (
        ("textbox", "Your message"),
        ("spinbutton", "Temperature"),
        ("combobox", "Whether it calls a tool"),
        ("application", "Block pool"),
        ("application", "Tokens of the last steps"),
        ("region", "Running requests"),
        ("region", "What happened"),
        ("link", "Metrics"),
    ):
        assert expected in names
    # One stop for all rows.
    assert page.locator("#running tr[tabindex='0']").count() == 1


def tab_to(page: Page, selector: str) -> None:
    """Presses Tab until an element has the focus, as people see by its outline."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if page.evaluate("s => document.activeElement.matches(s)", selector):
            style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert style != "none"
            return
    pytest.fail(f"the Tab key doesn't come to {selector}")


def test_all_of_it_by_keyboard(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.route("**/v1/completions", adding(ignore_eos=True, max_tokens=800))
    page.route("**/v1/chat/completions", adding(ignore_eos=True, max_tokens=800))
    tab_to(page, "#question")
    page.keyboard.type("Tell me about the sea.")
    page.keyboard.press("Enter")
    expect(page.locator(".message.assistant .text")).not_to_be_empty()
    tab_to(page, "#stop")
    page.keyboard.press("Space")
    expect(page.locator(".message.assistant .figures")).to_have_text("stopped")
    tab_to(page, "#shows button")
    page.keyboard.press("Enter")
    expect(page.locator("#running tr")).to_have_count(4)
    tab_to(page, "#pool")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#block-about")).to_contain_text("Block ")
    tab_to(page, "#running tr")
    about = page.locator("#block-about")
    expect(about).to_contain_text("four-answers-1 has ")
    page.keyboard.press("ArrowDown")
    expect(about).to_contain_text("four-answers-1 #1 has ")
    tab_to(page, "#steps")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step-about")).to_contain_text("Step ")
    # The skip link comes first, for those who want the blocks alone.
    page.reload()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/#see")
