"""A record of each HTTP request: its id, its times and its tokens, for the access log."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.server.wire.ignored_fields import collect_ignored
from jaxserve.server.wire.response_fields import TokenCount

ID_HEADER = "X-Request-Id"
IGNORED_HEADER = "X-Ignored-Fields"
MAX_IGNORED_HEADER = 2000  # characters
_NOT_IN_HEADER = re.compile(r"[^ -+\--~]")  # a comma separates names

access_log = logging.getLogger("jaxserve.access")
_VALID_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request.

    Args:
        id: the client's own X-Request-Id, or `request_id` in the body.
        began: on time.monotonic()'s clock.
        key_id: tells API keys apart; None without keys.
        key_salt: the salt of the API key, if keys don't share cached text.
        tokens: counted while it generates.
        body: the request's body, if prompts are logged.
        ignored: names of the fields that change nothing.
        stream_error: the status of the error that ended a stream after its headers said 200.
    """

    id: str
    began: float = field(default_factory=time.monotonic)
    key_salt: str | None = None
    key_id: str | None = None
    tokens: TokenCount | None = None
    body: Any = None
    ignored: list[str] = field(default_factory=list)
    stream_error: int | None = None

    @classmethod
    def of(cls, request: web.Request) -> RequestRecord:
        given = request.headers.get(ID_HEADER, "")
        return cls(given if _VALID_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}")

    def use_body_id(self, request: web.Request, given: str) -> None:
        """Takes the id in a request's body, unless its header has one.

        Raises:
            InvalidRequestError: it isn't valid.
        """
        if not _VALID_ID.fullmatch(given):
            raise InvalidRequestError(
                "request_id must have 1 to 128 letters, digits or any of _ . : -", "request_id"
            )
        if request.headers.get(ID_HEADER) != self.id:
            self.id = given

    def cache_salt(self, own: str | None = None) -> str | None:
        """The salt of the request's prefix cache entries; it shares text only with equal salts.

        Args:
            own: the salt in the request's body.
        """
        return own if self.key_salt is None else f"{self.key_salt}/{own or ''}"

    @property
    def ignored_header(self) -> str:
        """The names of the fields that change nothing, as the value of a header."""
        names = (_NOT_IN_HEADER.sub("?", name) for name in self.ignored)
        return ", ".join(names)[:MAX_IGNORED_HEADER]

    def log(self, request: web.Request, status: int, seconds: float) -> None:
        """Writes the access log's line, one JSON object."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "method": request.method,
            "path": request.path,
            "status": status,
            "ms": round(seconds * 1000, 1),
            "request_id": self.id,
            "remote": request.remote,
        }
        if self.tokens is not None:
            line |= {
                "prompt_tokens": self.tokens.prompt,
                "completion_tokens": self.tokens.completion,
                "cached_tokens": self.tokens.cached,
            }
        if self.ignored:
            line["ignored_fields"] = self.ignored
        if self.body is not None:
            line["body"] = self.body
        access_log.info(json.dumps(line))


RECORD: web.RequestKey[RequestRecord] = web.RequestKey("record", RequestRecord)
_current: ContextVar[RequestRecord | None] = ContextVar("jaxserve_request", default=None)


def current_record() -> RequestRecord:
    """The record of the HTTP request that this task serves; outside of one, an empty record."""
    return _current.get() or RequestRecord("none")


@contextmanager
def recorded(request: web.Request, strict_fields: bool = False) -> Iterator[RequestRecord]:
    """Makes a request's record, and the current record of its tasks.

    Args:
        strict_fields: unknown fields of the request are refused.
    """
    request[RECORD] = record = RequestRecord.of(request)
    token = _current.set(record)
    try:
        with collect_ignored(record.ignored, strict_fields):
            yield record
    finally:
        _current.reset(token)


def log_to_stderr() -> None:
    """Sets up the logs of a server process. Lines of the access log have no prefix, so that each
    is one JSON object."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access_log.handlers = [handler]
    access_log.propagate = False
    access_log.setLevel(logging.INFO)
