"""Files in OpenAI's batch format: one request a line, and one result a line.

The output file is the only record of progress. Each result is written as one whole line, so after
the process was killed, the next run does the requests without a result and repeats none that
succeeded. Requests whose result is an error are done again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from jaxserve.errors import ConfigError
from jaxserve.server.api.route_table import OPERATIONS

# Of the operations that can be batched.
URLS = tuple(
    operation.path
    for operation in OPERATIONS
    if operation.method == "POST" and operation.path.startswith("/v1/")
)


class BatchRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A line of the input file.

    Args:
        custom_id: chosen by the caller, unique in the file.
        body: as it is in the file; it is sent unchanged.
    """

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _BodyOptions(msgspec.Struct):
    """What is read of a body."""

    stream: Any = None


class _Identified(msgspec.Struct):
    """What is read of a malformed line; values of other fields are skipped."""

    custom_id: str


_DECODE_OPTIONS = msgspec.json.Decoder(_BodyOptions).decode
_DECODE_ID = msgspec.json.Decoder(_Identified).decode


class BatchResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct):
    """Why a line of the input file is no request."""

    message: str
    code: str = "invalid_request"


class BatchResult(msgspec.Struct):
    """A line of the output file. Errors of a request are in the response's body, and `error` says
    what is wrong with a line that is no request.

    Args:
        custom_id: the line's own; None if it has none.
    """

    id: str
    custom_id: str | None
    response: BatchResponse | None
    error: BatchError | None = None

    @property
    def failed(self) -> bool:
        return self.response is None or self.response.status_code != HTTPStatus.OK


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of the input file that is no request that can be run."""

    custom_id: str | None
    error: BatchError


def read_lines(file: Path) -> Iterator[BatchRequest | BadLine]:
    """The lines of an input file that aren't empty."""
    decode = msgspec.json.Decoder(BatchRequest).decode
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                request = decode(line)
                options = _DECODE_OPTIONS(request.body)
            except (msgspec.DecodeError, RecursionError) as error:
                yield BadLine(_id_of(line), BatchError(f"line {number}: {error}"))
                continue
            if request.method != "POST" or request.url not in URLS:
                message = (
                    f"line {number}: only POST to {', '.join(URLS)} can be batched; the line has "
                    f"{request.method[:20]} to {request.url[:200]}"
                )
                yield BadLine(request.custom_id, BatchError(message))
            elif options.stream:
                message = f"line {number}: a batch can't stream; leave stream out"
                yield BadLine(request.custom_id, BatchError(message))
            else:
                yield request


def _id_of(line: bytes) -> str | None:
    """The custom_id of a malformed line, where it can be read."""
    try:
        return _DECODE_ID(line).custom_id
    except (msgspec.DecodeError, RecursionError):
        return None


def check_ids(file: Path) -> tuple[set[str], int]:
    """The ids of an input file, and how many lines it has.

    Raises:
        ConfigError: an id comes twice, so that results couldn't be told apart.
    """
    ids: set[str] = set()
    count = 0
    for line in read_lines(file):
        count += 1
        if line.custom_id is None:
            continue
        if line.custom_id in ids:
            raise ConfigError(f"{file}: custom_id {line.custom_id!r} comes twice")
        ids.add(line.custom_id)
    return ids, count


class OutputFile:
    """The results so far.

    An incomplete last line, left by a process that was killed, is removed, and so are the lines of
    requests that failed: they are done again.

    done: ids of the requests that have succeeded.

    Raises:
        ConfigError: another process is writing the file, or it isn't a batch's output.
    """

    def __init__(self, path: Path) -> None:
        self._file = _locked(path)
        self.done: set[str] = set()
        try:
            self._keep_successes(path)
        except BaseException:
            self.close()
            raise

    def _keep_successes(self, path: Path) -> None:
        decode = msgspec.json.Decoder(BatchResult).decode
        kept: list[bytes] = []
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                try:
                    result = decode(line)
                except msgspec.DecodeError as error:
                    raise ConfigError(f"{path} isn't the output of a batch: {error}") from None
                if result.custom_id is not None and not result.failed:
                    self.done.add(result.custom_id)
                    kept.append(line)
        if sum(map(len, kept)) == path.stat().st_size:
            return
        # Written beside and put in its place: a process that is killed here loses nothing. The new
        # file is locked before it has the name.
        fresh = path.with_name(path.name + ".new")
        fresh.unlink(missing_ok=True)
        locked = _locked(fresh)
        with fresh.open("ab") as file:
            file.writelines(kept)
        os.replace(fresh, path)
        os.close(self._file)
        self._file = locked

    def write(self, result: BatchResult) -> None:
        line = msgspec.json.encode(result) + b"\n"
        while line:  # a full disk writes only a part, and then raises
            line = line[os.write(self._file, line) :]

    def close(self) -> None:
        os.close(self._file)


def _locked(path: Path) -> int:
    """Opens a file for appending, alone."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise ConfigError(f"{path} is being written by another process") from None
    return file
