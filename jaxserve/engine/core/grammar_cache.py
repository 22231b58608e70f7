"""GrammarCache: recently used compiled grammars, and refusals."""

from __future__ import annotations

import sys
from concurrent.futures import Future

from jaxserve.config import MIB
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.grammar import Grammar
from jaxserve.sampling.grammar_trial import TooCostlyError
from jaxserve.sampling.params import StructuredOutputsParams

MAX_ENTRIES = 128
MAX_BYTES = 512 * MIB  # of all grammars
MAX_GRAMMAR_BYTES = 64 * MIB  # of one: it grows with use, and is compiled again beyond this


class GrammarCache:
    """Compiled grammars, least recently used first out, and the error messages of grammars that
    took too long or too much memory to compile, so that those aren't compiled again."""

    def __init__(self) -> None:
        self._known: dict[StructuredOutputsParams, Grammar | str] = {}  # least recently used first

    def get(self, params: StructuredOutputsParams) -> Future[Grammar] | None:
        """The grammar or its error, if it is known, as a future that is done."""
        known = self._known.pop(params, None)
        if known is None:
            return None
        self._known[params] = known
        self._trim()  # grammars grow with use
        if params not in self._known:
            return None
        future: Future[Grammar] = Future()
        if isinstance(known, Grammar):
            future.set_result(known)
        else:
            future.set_exception(InvalidRequestError(known, "structured_outputs"))
        return future

    def put(self, params: StructuredOutputsParams, done: Future[Grammar]) -> None:
        """Keeps a compiled grammar, or the error of one that was too costly."""
        if (error := done.exception()) is None:
            self._known[params] = done.result()
        elif isinstance(error, TooCostlyError):
            self._known[params] = str(error)
        self._trim()

    def _trim(self) -> None:
        for params, known in list(self._known.items()):
            if isinstance(known, Grammar) and known.size > MAX_GRAMMAR_BYTES:
                del self._known[params]  # before it makes the others exceed MAX_BYTES
        while len(self._known) > MAX_ENTRIES or self.size > MAX_BYTES:
            del self._known[next(iter(self._known))]

    @property
    def size(self) -> float:
        """Bytes that all entries take, estimated."""
        return sum(
            _source_bytes(params) + (known.size if isinstance(known, Grammar) else 0)
            for params, known in self._known.items()
        )


def _source_bytes(params: StructuredOutputsParams) -> int:
    choice = params.choice or ()
    return sum(map(sys.getsizeof, (params.json, params.regex, params.grammar, *choice)))
