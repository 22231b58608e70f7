"""Which web pages a browser lets at the server: CORS (Fetch standard, section 3.2), and pages that
ask without a script (W3C Fetch Metadata)."""

from __future__ import annotations

from aiohttp import hdrs, web

from jaxserve.server.context import SERVING
from jaxserve.server.wire.errors import ApiError, Handler

METHODS = "GET, POST, OPTIONS"
EXPOSED = "X-Request-Id, Retry-After"
MAX_AGE_SECONDS = "600"
OWN_SITES = ("same-origin", "none")  # of Sec-Fetch-Site; "none" is the user, not a page


@web.middleware
async def preflight_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers a browser that asks before it sends; allow_origin adds who may."""
    asks = hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
    if request.method != hdrs.METH_OPTIONS or not asks or not _allowed(request):
        return await handler(request)
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
        hdrs.ACCESS_CONTROL_MAX_AGE: MAX_AGE_SECONDS,
    }
    # Client libraries send headers of their own, so all that are asked for are allowed.
    if wanted := request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS):
        headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = wanted
    return web.Response(status=204, headers=headers)


async def allow_origin(request: web.Request, response: web.StreamResponse) -> None:
    """On each response's headers, streams and errors included."""
    config = request.app[SERVING].config
    if not config.allowed_origins:
        return
    any_origin = "*" in config.allowed_origins
    if not any_origin:
        response.headers.add(hdrs.VARY, hdrs.ORIGIN)
    if not _allowed(request):
        return
    origin = "*" if any_origin else request.headers[hdrs.ORIGIN]
    response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
    response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED
    if config.allow_credentials:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_CREDENTIALS] = "true"


def own_pages_alone(handler: Handler) -> Handler:
    """For what a request without a body does: a browser sends that for any page, and asks nobody.

    A page of ours, one that may use the server, and whatever is no browser come through.
    """

    async def guarded(request: web.Request) -> web.StreamResponse:
        if _foreign(request) and not _allowed(request):
            raise ApiError(
                403,
                "a web page of another site may not do this; --allowed-origins names those that "
                "may",
                code="cross_site",
            )
        return await handler(request)

    return guarded


def _foreign(request: web.Request) -> bool:
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get(hdrs.ORIGIN)
    if site is not None:  # the browser knows best: a proxy may have changed the host
        return site not in OWN_SITES
    return origin is not None and origin.partition("://")[2] != request.host


def _allowed(request: web.Request) -> bool:
    origins, origin = request.app[SERVING].config.allowed_origins, request.headers.get(hdrs.ORIGIN)
    return origin is not None and ("*" in origins or origin in origins)
