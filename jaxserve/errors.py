"""All errors, in one hierarchy. Each message says what to change."""

from __future__ import annotations


class JaxserveError(Exception):
    """Base of every error that jaxserve raises on purpose."""


class ConfigError(JaxserveError, ValueError):
    """A setting is out of range, or two settings contradict each other."""


class ModelError(JaxserveError):
    """A model can't be found, read or served."""


class ModelNotFoundError(ModelError):
    """No folder, file or hub repository goes by that name."""


class UnsupportedModelError(ModelError):
    """The checkpoint is readable, but asks for something jaxserve doesn't implement."""


class CheckpointError(ModelError):
    """A checkpoint is damaged, truncated or doesn't match its config; names the tensor."""


class InvalidRequestError(JaxserveError, ValueError):
    """The request can't be served as written (HTTP 400).

    Args:
        message: what is wrong and what to change.
        param: the request field at fault, in the API's own spelling, or None.
        code: OpenAI's machine-readable code for this error, if there is one.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class UnprocessableError(JaxserveError):
    """Each field of the request is valid, but together they allow no token (HTTP 422)."""


class OverloadedError(JaxserveError):
    """The queue is full: the same request may succeed later (HTTP 429 or 503)."""


class EngineError(JaxserveError):
    """This one request failed in the engine; others go on (HTTP 500)."""


class EngineDeadError(JaxserveError):
    """The engine process has ended: nothing can be served until it is restarted (HTTP 503)."""


class ShuttingDownError(JaxserveError):
    """The server was stopped before the request had ended (HTTP 503)."""
