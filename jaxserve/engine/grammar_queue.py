"""Requests whose grammar is being compiled, off the core loop."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from jaxserve.engine.messages import Submit
from jaxserve.sampling.grammar import Grammar, GrammarCompiler
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.text.tokenizer import Tokenizer


class GrammarQueue:
    """Compiles grammars in a thread; the vocabulary's tables are built at the first use.

    Args:
        vocab: tokens that may be drawn.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._compiler: GrammarCompiler | None = None
        self._pending: dict[str, tuple[Submit, Future[Grammar]]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def put(self, message: Submit) -> None:
        """Starts compiling a request's grammar."""
        params = message.params.structured_outputs
        assert params is not None
        self._pending[message.request_id] = (message, self._pool.submit(self._compile, params))

    def take(self, timeout: float = 0.0) -> list[tuple[Submit, Future[Grammar]]]:
        """Requests whose grammar is done, well or badly; waits up to `timeout` s for the first."""
        if not self._pending:
            return []
        if timeout:
            wait([f for _, f in self._pending.values()], timeout, return_when=FIRST_COMPLETED)
        done = [(m, future) for m, future in self._pending.values() if future.done()]
        for message, _ in done:
            del self._pending[message.request_id]
        return done

    def cancel(self, request_id: str) -> None:
        """Forgets a request; unknown ids are ignored."""
        if entry := self._pending.pop(request_id, None):
            entry[1].cancel()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, params: StructuredOutputsParams) -> Grammar:
        if self._compiler is None:
            self._compiler = GrammarCompiler(
                self._tokenizer.backend.to_str(), self._vocab, self._tokenizer.eos_token_ids
            )
        return self._compiler.compile(params)
