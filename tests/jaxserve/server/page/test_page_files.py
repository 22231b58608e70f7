"""The page's files and their headers. No engine is needed, and no browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer

import jaxserve.server
from jaxserve.config import ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.server.api_keys import ApiKeys
from jaxserve.server.app import create_app

FOLDER = Path(jaxserve.server.__file__).with_name("page")
FILES = sorted(f.relative_to(FOLDER).as_posix() for f in FOLDER.rglob("*") if f.is_file())


def client_of(**config: Any) -> TestClient[Any, Any]:
    settings = ServerConfig(served_model_names=("m",), **config)
    return TestClient(TestServer(create_app(cast(EngineClient, None), settings, ApiKeys(["k"]))))


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in FILES)])
async def test_files_need_no_key_and_have_strict_headers(path: str) -> None:
    async with client_of() as http, http.get(path) as response:
        assert response.status == 200
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "*" not in policy
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.content_type in (
            "text/html",
            "text/css",
            "text/javascript",
            "image/svg+xml",
        )


@pytest.mark.parametrize(
    "path", ["/page/", "/page/none.js", "/page/..%2fapp.py", "/page/../app.py"]
)
async def test_nothing_else_is_there(path: str) -> None:
    async with client_of() as http, http.get(path) as response:
        assert response.status in (401, 404)


async def test_no_page() -> None:
    async with client_of(page=False) as http:
        for path in ("/", "/page/main.js"):
            async with http.get(path) as response:
                assert response.status == 404


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_scripts_never_make_html_of_text(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text
    )
    assert not re.search(r"https?://", text)
    assert not re.search(r"localStorage|sessionStorage|document\.cookie|indexedDB", text)


def test_the_html_has_nothing_inline_and_no_other_host() -> None:
    html = (FOLDER / "index.html").read_text()
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?! type=\"module\" src=)", html)
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", html)
