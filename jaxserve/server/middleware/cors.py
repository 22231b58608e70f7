"""Which web pages may use the server: CORS for scripts (Fetch standard, section 3.2), and Fetch
Metadata (W3C) for requests that a page sends without a script."""

from __future__ import annotations

from aiohttp import hdrs, web

from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.middleware.errors import Handler
from jaxserve.server.wire.errors import ApiError

ALLOWED_METHODS = "GET, POST, DELETE, OPTIONS"
EXPOSED_HEADERS = "X-Request-Id, X-Ignored-Fields, Retry-After"
MAX_AGE_SECONDS = "600"
# Values of Sec-Fetch-Site; "none" means that the user, not a page, caused the request.
SAME_SITE = ("same-origin", "none")


@web.middleware
async def preflight_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers CORS preflight requests; add_cors_headers() adds the allowed origin."""
    is_preflight = hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
    if request.method != hdrs.METH_OPTIONS or not is_preflight or not _allowed(request):
        return await handler(request)
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: ALLOWED_METHODS,
        hdrs.ACCESS_CONTROL_MAX_AGE: MAX_AGE_SECONDS,
    }
    # Client libraries send their own headers, so all requested headers are allowed.
    if requested := request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS):
        headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = requested
    return web.Response(status=204, headers=headers)


async def add_cors_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers to every response, streams and errors included."""
    config = request.app[SERVER_CONTEXT].config
    if not config.allowed_origins:
        return
    any_origin = "*" in config.allowed_origins
    if not any_origin:
        response.headers.add(hdrs.VARY, hdrs.ORIGIN)
    if not _allowed(request):
        return
    origin = "*" if any_origin else request.headers[hdrs.ORIGIN]
    response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
    response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED_HEADERS
    if config.allow_credentials:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_CREDENTIALS] = "true"


def refuse_cross_site(handler: Handler) -> Handler:
    """Protects a handler that needs no request body: browsers send such requests for any page,
    without a preflight request.

    Requests from the server's own pages, from allowed origins and from programs other than
    browsers are passed on.
    """

    async def guarded(request: web.Request) -> web.StreamResponse:
        if _is_cross_site(request) and not _allowed(request):
            raise ApiError(
                403,
                "pages of other sites may not send this request; add the page's origin to "
                "--allowed-origins to allow it",
                code="cross_site",
            )
        return await handler(request)

    return guarded


def _is_cross_site(request: web.Request) -> bool:
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get(hdrs.ORIGIN)
    if site is not None:  # more reliable than Host, which a proxy may change
        return site not in SAME_SITE
    return origin is not None and origin.partition("://")[2] != request.host


def _allowed(request: web.Request) -> bool:
    origins = request.app[SERVER_CONTEXT].config.allowed_origins
    origin = request.headers.get(hdrs.ORIGIN)
    return origin is not None and ("*" in origins or origin in origins)
