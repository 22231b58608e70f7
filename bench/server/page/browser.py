"""Chromium with the page of a server."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """$CHROMIUM, or the one that is installed."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise SystemExit("no Chromium here: install it, or name it in $CHROMIUM")
    arguments = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()
