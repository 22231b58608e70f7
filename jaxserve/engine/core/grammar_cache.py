"""What came of the grammars that were asked for last."""

from __future__ import annotations

import sys
from concurrent.futures import Future

from jaxserve.config import MIB
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.grammar import Grammar
from jaxserve.sampling.grammar_trial import TooCostlyError
from jaxserve.sampling.params import StructuredOutputsParams

MOST = 128
MOST_BYTES = 512 * MIB  # of all
WORN_BYTES = 64 * MIB  # of one; it is compiled anew, smaller


class GrammarCache:
    """Grammars that were compiled, and why others were refused: those that took too much, lest
    they take it again."""

    def __init__(self) -> None:
        self._known: dict[StructuredOutputsParams, Grammar | str] = {}  # the next to go first

    def get(self, params: StructuredOutputsParams) -> Future[Grammar] | None:
        """The grammar or its refusal, if it is known; it is done."""
        known = self._known.pop(params, None)
        if known is None:
            return None
        self._known[params] = known
        self._trim()  # it and others may have grown
        if params not in self._known:
            return None
        future: Future[Grammar] = Future()
        if isinstance(known, Grammar):
            future.set_result(known)
        else:
            future.set_exception(InvalidRequestError(known, "structured_outputs"))
        return future

    def put(self, params: StructuredOutputsParams, done: Future[Grammar]) -> None:
        """Keeps what is worth it."""
        if (error := done.exception()) is None:
            self._known[params] = done.result()
        elif isinstance(error, TooCostlyError):
            self._known[params] = str(error)
        self._trim()

    def _trim(self) -> None:
        for params, known in list(self._known.items()):
            if isinstance(known, Grammar) and known.size > WORN_BYTES:
                del self._known[params]  # or one that grew without end would drive out all others
        while len(self._known) > MOST or self.size > MOST_BYTES:
            del self._known[next(iter(self._known))]

    @property
    def size(self) -> float:
        """About as many bytes as all take."""
        return sum(
            _source_bytes(params) + (known.size if isinstance(known, Grammar) else 0)
            for params, known in self._known.items()
        )


def _source_bytes(params: StructuredOutputsParams) -> int:
    choice = params.choice or ()
    return sum(map(sys.getsizeof, (params.json, params.regex, params.grammar, *choice)))
