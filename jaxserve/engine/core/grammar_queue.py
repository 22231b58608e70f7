"""GrammarQueue: compiles grammars in threads, and holds the requests that wait for them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from queue import SimpleQueue

from jaxserve.engine.core.grammar_cache import GrammarCache
from jaxserve.engine.core.protocol import Submit
from jaxserve.errors import OverloadedError
from jaxserve.sampling.grammar import Grammar, GrammarCompiler
from jaxserve.sampling.grammar_trial import STACK_BYTES, GrammarTrial, TooSlowError
from jaxserve.sampling.grammar_vocabulary import GrammarVocabulary
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# Threads, each with a process, and the seconds of processor time that a grammar may take in one.
# A grammar that takes longer than QUICK_S is queued again for the slow thread, so that quick ones
# needn't wait for slow ones.
QUICK_THREADS, QUICK_S = 2, 1
SLOW_THREADS, SLOW_S = 1, 10
WAIT_S = 60.0  # for a free thread


@dataclass(slots=True, eq=False)
class _Job:
    """A grammar to compile.

    Args:
        requests: those that wait for it, by id, each with its time.monotonic() of arrival.
        is_slow: it is compiled by the slow thread.
    """

    params: StructuredOutputsParams
    requests: dict[str, tuple[Submit, float]] = field(default_factory=dict)
    grammar: Future[Grammar] = field(init=False)
    is_slow: bool = False

    @property
    def is_wanted(self) -> bool:
        return bool(self.requests)


class GrammarQueue:
    """Compiles each grammar once, however many requests wait for it, and caches it.

    A process compiles it first, for trial (see GrammarTrial); the processes are started when they
    are first needed. A request whose grammar no thread has begun within WAIT_S is refused.

    Args:
        vocab: tokens that may be drawn.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab
        self._compiler: GrammarCompiler | None = None
        self._building = threading.Lock()
        self._quick = _CompilePool(
            QUICK_THREADS, QUICK_S, lambda: self._vocabulary, self._shared_compiler
        )
        self._slow = _CompilePool(
            SLOW_THREADS, SLOW_S, lambda: self._vocabulary, self._shared_compiler
        )
        self._jobs: dict[StructuredOutputsParams, _Job] = {}
        self._waiting: dict[str, StructuredOutputsParams] = {}  # by each request
        self._cache = GrammarCache()

    def prepare(self) -> None:
        """Builds the vocabulary's tables now rather than at the first use: that holds the GIL,
        for a second if the vocabulary is large."""
        try:
            self._shared_compiler()
        except Exception:
            log.warning("requests with a grammar will fail", exc_info=True)

    def __len__(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    @property
    def request_ids(self) -> list[str]:
        """Ids of the requests that wait."""
        return list(self._waiting)

    def put(self, message: Submit) -> Future[Grammar] | None:
        """A request's grammar, if it is cached. Otherwise the request waits, and take() returns
        it."""
        params = message.params.structured_outputs
        assert params is not None
        if (known := self._cache.get(params)) is not None:
            return known
        job = self._jobs.get(params, _Job(params))
        job.requests[message.request_id] = (message, time.monotonic())
        if params not in self._jobs:
            job.grammar = self._quick.compile(job)
            self._jobs[params] = job
        self._waiting[message.request_id] = params
        return None

    def take(self, timeout: float = 0.0) -> list[tuple[Submit, Future[Grammar]]]:
        """Requests whose grammar is compiled or refused. If there is none, waits up to `timeout` s
        for one."""
        if timeout and self._waiting:
            grammars = [job.grammar for job in self._jobs.values()]
            wait(grammars, timeout, return_when=FIRST_COMPLETED)
        done: list[tuple[Submit, Future[Grammar]]] = []
        for params, job in list(self._jobs.items()):
            if not job.grammar.done():
                if not job.grammar.running():
                    done += [(message, _no_thread_free()) for message in _overdue(job)]
            elif not job.is_slow and isinstance(job.grammar.exception(), TooSlowError):
                job.is_slow, job.grammar = True, self._slow.compile(job)
            else:
                del self._jobs[params]
                self._cache.put(params, job.grammar)
                done += [(message, job.grammar) for message, _ in job.requests.values()]
        for message, _ in done:
            self.cancel(message.request_id)
        return done

    def cancel(self, request_id: str) -> None:
        """Removes a request; unknown ids are ignored. A grammar that no other request waits for
        isn't compiled."""
        params = self._waiting.pop(request_id, None)
        if params is None or (job := self._jobs.get(params)) is None:
            return
        del job.requests[request_id]
        if not job.is_wanted:
            job.grammar.cancel()  # if it has begun, its thread sees that it isn't wanted
            del self._jobs[params]

    def close(self) -> None:
        self._quick.close()
        self._slow.close()

    def _shared_compiler(self) -> GrammarCompiler:
        with self._building:
            if self._compiler is None:
                self._compiler = GrammarCompiler(self._vocabulary)
            return self._compiler

    @cached_property
    def _vocabulary(self) -> GrammarVocabulary:
        return self._tokenizer.grammar_vocabulary(self._vocab)


class _CompilePool:
    """Threads that compile grammars, each with a process for the trial.

    Args:
        limit_s: processor time for one grammar.
        compiler: gives the compiler that the threads share.
    """

    def __init__(
        self,
        threads: int,
        limit_s: int,
        vocabulary: Callable[[], GrammarVocabulary],
        compiler: Callable[[], GrammarCompiler],
    ) -> None:
        self._compiler = compiler
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="grammar")
        self._trials = [GrammarTrial(vocabulary, limit_s) for _ in range(threads)]
        self._idle: SimpleQueue[GrammarTrial] = SimpleQueue()
        for trial in self._trials:
            self._idle.put(trial)

    def compile(self, job: _Job) -> Future[Grammar]:
        before = threading.stack_size(STACK_BYTES)
        try:  # submit() may start a thread, with this stack size
            return self._pool.submit(self._compile, job)
        except RuntimeError:  # no thread can be started
            return _no_thread_free()
        finally:
            threading.stack_size(before)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for trial in self._trials:
            trial.close()

    def _compile(self, job: _Job) -> Grammar:
        compiler = self._compiler()
        trial = self._idle.get()
        try:
            size = trial.check(job.params, lambda: job.is_wanted)
        finally:
            self._idle.put(trial)
        grammar = compiler.compile(job.params)
        grammar.new_bytes = size
        return grammar


def _overdue(job: _Job) -> list[Submit]:
    now = time.monotonic()
    return [message for message, since in job.requests.values() if now - since > WAIT_S]


def _no_thread_free() -> Future[Grammar]:
    future: Future[Grammar] = Future()
    future.set_exception(OverloadedError("too many grammars are being compiled: try again later"))
    return future
