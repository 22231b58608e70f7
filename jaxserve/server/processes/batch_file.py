"""Files in OpenAI's batch format: one request a line, and one result a line.

The output file is the only record of progress. Each result is written as one whole line, so after
the process was killed, the next run does the requests without a result and repeats none.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from jaxserve.errors import ConfigError


class BatchRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A line of the input file.

    Args:
        custom_id: chosen by the caller, unique in the file.
    """

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class BatchResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchResult(msgspec.Struct):
    """A line of the output file. Errors are in the response's body."""

    id: str
    custom_id: str
    response: BatchResponse
    error: None = None


class _FinishedLine(msgspec.Struct):
    custom_id: str


def read_requests(file: Path) -> Iterator[BatchRequest]:
    """The requests of an input file.

    Raises:
        ConfigError: names the line that is malformed.
    """
    decode = msgspec.json.Decoder(BatchRequest).decode
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                request = decode(line)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{file}, line {number}: {error}") from None
            if request.method != "POST" or not request.url.startswith("/v1/"):
                raise ConfigError(f"{file}, line {number}: only POST to /v1/... can be batched")
            if request.body.get("stream"):
                raise ConfigError(f"{file}, line {number}: a batch can't stream; leave stream out")
            yield request


def check_requests(file: Path) -> set[str]:
    """The ids of an input file.

    Raises:
        ConfigError: a line is malformed, or an id comes twice.
    """
    ids: set[str] = set()
    for request in read_requests(file):
        if request.custom_id in ids:
            raise ConfigError(f"{file}: custom_id {request.custom_id!r} comes twice")
        ids.add(request.custom_id)
    return ids


class OutputFile:
    """The results so far. An incomplete last line, left by a process that was killed, is removed.

    Raises:
        ConfigError: another process is writing the file, or it isn't a batch's output.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise ConfigError(f"{path} is being written by another process") from None
        self.done: set[str] = set()
        decode = msgspec.json.Decoder(_FinishedLine).decode
        valid_bytes = 0
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                try:
                    self.done.add(decode(line).custom_id)
                except msgspec.DecodeError as error:
                    raise ConfigError(f"{path} isn't the output of a batch: {error}") from None
                valid_bytes += len(line)
        os.truncate(self._file, valid_bytes)

    def write(self, result: BatchResult) -> None:
        line = msgspec.json.encode(result) + b"\n"
        while line:  # a full disk writes only a part, and then raises
            line = line[os.write(self._file, line) :]
        self.done.add(result.custom_id)

    def close(self) -> None:
        os.close(self._file)
