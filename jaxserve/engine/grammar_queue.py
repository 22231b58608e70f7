"""Requests whose grammar is being compiled, off the core loop."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from queue import SimpleQueue

from jaxserve.engine.messages import Submit
from jaxserve.errors import OverloadedError
from jaxserve.sampling.grammar import Grammar, GrammarCompiler
from jaxserve.sampling.grammar_trial import STACK_BYTES, GrammarTrial, Vocabulary
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.text.tokenizer import Tokenizer

THREADS = 2  # each with a process; a slow grammar holds up but one
WAIT_S = 60.0  # for a thread
CACHED_GRAMMARS = 128


@dataclass(slots=True, eq=False)
class _Job:
    """A grammar, and the requests that want it, each with when it came, by time.monotonic()."""

    grammar: Future[Grammar]
    requests: dict[str, tuple[Submit, float]] = field(default_factory=dict)


class GrammarQueue:
    """Compiles grammars in threads, each but once however many want it, and keeps those that were
    asked for last. A process tries them first: GrammarTrial has the reasons. The vocabulary's
    tables are built, and the processes started, at the first use. A request whose grammar no
    thread has begun within WAIT_S is given up.

    Args:
        vocab: tokens that may be drawn.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
        self._trials = [GrammarTrial(self._vocabulary) for _ in range(THREADS)]
        self._idle: SimpleQueue[GrammarTrial] = SimpleQueue()
        for trial in self._trials:
            self._idle.put(trial)
        self._compiler: GrammarCompiler | None = None
        self._building = threading.Lock()
        self._jobs: dict[StructuredOutputsParams, _Job] = {}
        self._wanted: dict[str, StructuredOutputsParams] = {}  # by each request
        self._cache: dict[StructuredOutputsParams, Future[Grammar]] = {}  # the next to go first

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._wanted)

    @property
    def request_ids(self) -> list[str]:
        """Of those."""
        return list(self._wanted)

    def put(self, message: Submit) -> Future[Grammar] | None:
        """A request's grammar, if it is there; otherwise take() will have it."""
        params = message.params.structured_outputs
        assert params is not None
        if (known := self._cache.pop(params, None)) is not None:
            self._cache[params] = known
            return known
        if params not in self._jobs:
            self._jobs[params] = _Job(self._start(params))
        self._jobs[params].requests[message.request_id] = (message, time.monotonic())
        self._wanted[message.request_id] = params
        return None

    def take(self, timeout: float = 0.0) -> list[tuple[Submit, Future[Grammar]]]:
        """Requests whose grammar is done, well or badly; waits up to `timeout` s for the first."""
        if timeout and self._wanted:
            grammars = [job.grammar for job in self._jobs.values()]
            wait(grammars, timeout, return_when=FIRST_COMPLETED)
        done: list[tuple[Submit, Future[Grammar]]] = []
        for params, job in list(self._jobs.items()):
            if job.grammar.done():
                del self._jobs[params]
                self._keep(params, job.grammar)
                done += [(message, job.grammar) for message, _ in job.requests.values()]
            elif not job.grammar.running():
                done += [(message, _given_up()) for message in _overdue(job)]
        for message, _ in done:
            self.cancel(message.request_id)
        return done

    def cancel(self, request_id: str) -> None:
        """Forgets a request; unknown ids are ignored."""
        params = self._wanted.pop(request_id, None)
        if params is None or (job := self._jobs.get(params)) is None:
            return
        del job.requests[request_id]
        if not job.requests and job.grammar.cancel():
            del self._jobs[params]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for trial in self._trials:
            trial.close()

    def _start(self, params: StructuredOutputsParams) -> Future[Grammar]:
        before = threading.stack_size(STACK_BYTES)
        try:  # it may start a thread
            return self._pool.submit(self._compile, params)
        finally:
            threading.stack_size(before)

    def _keep(self, params: StructuredOutputsParams, grammar: Future[Grammar]) -> None:
        if grammar.exception() is None:
            self._cache[params] = grammar
            if len(self._cache) > CACHED_GRAMMARS:
                del self._cache[next(iter(self._cache))]

    def _compile(self, params: StructuredOutputsParams) -> Grammar:
        with self._building:
            if self._compiler is None:
                self._compiler = GrammarCompiler(*self._vocabulary())
        trial = self._idle.get()
        try:
            trial.check(params)
        finally:
            self._idle.put(trial)
        return self._compiler.compile(params)

    def _vocabulary(self) -> Vocabulary:
        tokenizer = self._tokenizer
        return tokenizer.backend.to_str(), self._vocab, tokenizer.eos_token_ids


def _overdue(job: _Job) -> list[Submit]:
    now = time.monotonic()
    return [message for message, since in job.requests.values() if now - since > WAIT_S]


def _given_up() -> Future[Grammar]:
    future: Future[Grammar] = Future()
    future.set_exception(OverloadedError("too many grammars are being compiled: try again later"))
    return future
