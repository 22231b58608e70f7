"""Requests whose grammar is being compiled, off the core loop."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from jaxserve.engine.messages import Submit
from jaxserve.errors import InvalidRequestError, JaxserveError, OverloadedError
from jaxserve.sampling.grammar import Grammar, GrammarCompiler
from jaxserve.text.tokenizer import Tokenizer

THREADS = 4  # they hold no lock while they compile, and a slow grammar holds up but one
STACK_BYTES = 2**28  # llguidance recurses rule by rule, and an overflow would end the process
LIMIT_S = 10.0
WAIT_S = 60.0  # for a thread: none may ever be free again


@dataclass(slots=True, eq=False)
class _Job:
    """A request whose grammar is wanted.

    Args:
        since: when it came, by time.monotonic().
        began: when its compilation did.
    """

    message: Submit
    since: float = field(default_factory=time.monotonic)
    began: float | None = None

    def overdue(self) -> JaxserveError | None:
        """Why it is given up, if it is."""
        now, began = time.monotonic(), self.began
        if began is None:
            if now - self.since <= WAIT_S:
                return None
            return OverloadedError("too many grammars are being compiled: try again later")
        if now - began <= LIMIT_S:
            return None
        return InvalidRequestError(
            f"the grammar took more than {LIMIT_S:.0f} s to compile: make it simpler",
            "structured_outputs",
        )


class GrammarQueue:
    """Compiles grammars in threads; the vocabulary's tables are built at the first use. A grammar
    that takes longer than LIMIT_S is given up; its thread is busy until it has ended. One that no
    thread has begun within WAIT_S is given up, too.

    Args:
        vocab: tokens that may be drawn.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
        self._compiler: GrammarCompiler | None = None
        self._building = threading.Lock()
        self._pending: dict[str, tuple[_Job, Future[Grammar]]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def put(self, message: Submit) -> None:
        """Starts compiling a request's grammar."""
        job, before = _Job(message), threading.stack_size(STACK_BYTES)
        try:  # which may start a thread
            self._pending[message.request_id] = (job, self._pool.submit(self._run, job))
        finally:
            threading.stack_size(before)

    def take(self, timeout: float = 0.0) -> list[tuple[Submit, Future[Grammar]]]:
        """Requests whose grammar is done, well or badly; waits up to `timeout` s for the first."""
        if not self._pending:
            return []
        if timeout:
            wait([f for _, f in self._pending.values()], timeout, return_when=FIRST_COMPLETED)
        done = []
        for job, future in list(self._pending.values()):
            if not future.done() and (error := job.overdue()):
                future.cancel()
                future = Future()
                future.set_exception(error)
            if future.done():
                del self._pending[job.message.request_id]
                done.append((job.message, future))
        return done

    def cancel(self, request_id: str) -> None:
        """Forgets a request; unknown ids are ignored."""
        if entry := self._pending.pop(request_id, None):
            entry[1].cancel()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, job: _Job) -> Grammar:
        with self._building:
            if self._compiler is None:
                self._compiler = GrammarCompiler(
                    self._tokenizer.backend.to_str(), self._vocab, self._tokenizer.eos_token_ids
                )
        job.began = time.monotonic()
        params = job.message.params.structured_outputs
        assert params is not None
        return self._compiler.compile(params)
