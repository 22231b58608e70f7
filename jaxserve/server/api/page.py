"""GET /: the page on which people try the model and see the block pool."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

_FOLDER = Path(__file__).parents[1] / "page"
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
# Scripts, styles and connections of this server alone, nothing inline, and no frame around it.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def routes() -> list[web.RouteDef]:
    """Routes of the page and of its files, which are read now, once."""
    files = {
        file.relative_to(_FOLDER).as_posix(): file.read_bytes()
        for file in _FOLDER.rglob("*")
        if file.suffix in _TYPES
    }

    def response(name: str) -> web.Response:
        return web.Response(
            body=files[name],
            content_type=_TYPES[Path(name).suffix],
            charset="utf-8",
            headers=_HEADERS,
        )

    async def index(_: web.Request) -> web.Response:
        return response("index.html")

    async def file(request: web.Request) -> web.Response:
        if (name := request.match_info["name"]) not in files:
            raise web.HTTPNotFound
        return response(name)

    return [web.get("/", index), web.get("/page/{name:.+}", file)]
