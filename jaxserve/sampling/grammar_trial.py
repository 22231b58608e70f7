"""A process that compiles each grammar first, to find out whether it takes too much time or memory.

A grammar of a few words can take llguidance minutes or gigabytes. A thread that compiles it can't
be stopped, and a compiled grammar can't be sent to another process. So each grammar is compiled
first in a process with limits, which the kernel ends when one is exceeded. Only a grammar that
compiles there is compiled again where it is used, which takes as long as it did in the trial.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from jaxserve.errors import EngineError, InvalidRequestError, JaxserveError, OverloadedError
from jaxserve.sampling.grammar import GrammarCompiler
from jaxserve.sampling.grammar_vocabulary import GrammarVocabulary
from jaxserve.sampling.params import StructuredOutputsParams

TIMEOUT_S = 60.0  # for one grammar, in elapsed time
POLL_S = 0.1  # between checks whether the grammar is still wanted
LIMIT_BYTES = 2**30  # for one grammar
OUT_OF_MEMORY = 3  # exit status of the process
STACK_BYTES = 2**28  # llguidance recurses once for each rule, and an overflow ends the process

# Why the grammar is refused, or ""; the part that is at fault; bytes that the grammar takes.
_Answer = tuple[str, str | None, int]


class TooCostlyError(InvalidRequestError):
    """Compiling the grammar takes more time or memory than is allowed."""


class TooSlowError(TooCostlyError):
    """Compiling the grammar takes more processor time than is allowed."""


class GrammarTrial:
    """Starts the process when it is needed, and again after a grammar has ended it.

    Args:
        vocabulary: returns the tokens that outputs may have.
        limit_s: processor time for one grammar, in seconds.
    """

    def __init__(self, vocabulary: Callable[[], GrammarVocabulary], limit_s: int) -> None:
        self._vocabulary, self._limit_s = vocabulary, limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._closed, self._changing = False, threading.Lock()

    def check(self, params: StructuredOutputsParams, wanted: Callable[[], bool]) -> int:
        """Bytes that the compiled grammar takes; 0 if that can't be measured here.

        Args:
            wanted: whether the grammar is still needed; called every POLL_S. After False the
                process is ended.

        Raises:
            TooCostlyError, TooSlowError: it exceeded a limit.
            InvalidRequestError: it can't be compiled.
            OverloadedError: it took longer than TIMEOUT_S.
            EngineError: the process can't be started or has crashed, close() was called, or the
                grammar isn't wanted any more.
        """
        if self._process is None or self._process.poll() is not None:
            self._start(wanted)
        answer = self._ask(params, wanted)
        if not answer:
            raise self._end()
        refusal, param, size = msgspec.json.decode(answer, type=_Answer)
        if refusal:
            raise InvalidRequestError(refusal, param)
        return size

    def close(self) -> None:
        """Ends the process, and with it a check() in another thread."""
        with self._changing:
            self._closed = True
            self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self, wanted: Callable[[], bool]) -> None:
        self._launch("-m", "jaxserve.sampling.grammar_trial", str(self._limit_s))
        if not self._ask(self._vocabulary(), wanted):
            assert self._process is not None
            status = self._process.wait()
            raise EngineError(
                f"the process that compiles grammars first ended with status {status}"
            )

    def _launch(self, *arguments: str) -> None:
        with self._changing:
            if self._closed:
                raise EngineError("no grammar is compiled any more: the engine shuts down")
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)

    def _ask(self, question: object, wanted: Callable[[], bool]) -> bytes:
        """The process's answer, a line; empty if the process has ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        to_process, from_process = process.stdin.fileno(), process.stdout.fileno()
        until = time.monotonic() + TIMEOUT_S
        unsent, answer = memoryview(msgspec.json.encode(question) + b"\n"), b""
        with suppress(BrokenPipeError):
            while unsent:
                self._wait_for(to_process, select.POLLOUT, until, wanted)
                unsent = unsent[os.write(to_process, unsent) :]
        while not answer.endswith(b"\n"):
            self._wait_for(from_process, select.POLLIN, until, wanted)
            if not (more := os.read(from_process, 2**16)):
                return b""
            answer += more
        return answer

    def _wait_for(self, pipe: int, event: int, until: float, wanted: Callable[[], bool]) -> None:
        """Waits until the pipe is ready; ends the process and raises if that is no use or takes too
        long."""
        pipes = select.poll()
        pipes.register(pipe, event)
        while not pipes.poll(POLL_S * 1000):
            if not wanted():
                self._kill()
                raise EngineError("the grammar isn't needed any more")
            if time.monotonic() > until:
                self._kill()
                raise OverloadedError(
                    "the machine is too busy to compile grammars: try again later"
                )

    def _end(self) -> JaxserveError:
        """The error that ended the process while it compiled a grammar."""
        process, kind = self._process, TooCostlyError
        assert process is not None
        with suppress(BrokenPipeError), process:
            status = process.wait()
        if status == -signal.SIGXCPU:
            kind, limit = TooSlowError, f"{self._limit_s} s of processor time"
        elif status in (OUT_OF_MEMORY, -signal.SIGABRT, -signal.SIGSEGV):  # or a stack overflow
            limit = f"{LIMIT_BYTES >> 20} MiB of memory"
        else:
            return EngineError(
                f"the process that compiles grammars first ended with status {status}"
            )
        message = f"the grammar took more than {limit} to compile: make it simpler"
        return kind(message, "structured_outputs")


def _limit(kind: int, most: int) -> None:
    _, highest = resource.getrlimit(kind)
    if highest != resource.RLIM_INFINITY:
        most = min(most, highest)
    resource.setrlimit(kind, (most, highest))


def _limit_next(seconds: int) -> None:
    """Limits the processor time and the memory of this process, from now on."""
    _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds)
    with suppress(FileNotFoundError):  # on macOS, which doesn't have this limit either
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + LIMIT_BYTES)


class _Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _heap_bytes() -> int:
    """Bytes that this process has allocated with malloc; 0 if the C library doesn't say."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def _answer_all(seconds: int) -> None:
    """Reads the vocabulary and then grammars, and writes an answer to each."""
    lines, answers = sys.stdin.buffer, sys.stdout.buffer

    def answer(refusal: str, param: str | None, size: int) -> None:
        answers.write(msgspec.json.encode((refusal, param, size)) + b"\n")
        answers.flush()

    compiler = GrammarCompiler(msgspec.json.decode(lines.readline(), type=GrammarVocabulary))
    _limit_next(seconds)
    answer("", None, 0)
    for line in lines:
        before = _heap_bytes()
        try:
            grammar = compiler.compile(msgspec.json.decode(line, type=StructuredOutputsParams))
        except InvalidRequestError as error:
            answer(str(error), error.param, 0)
        else:
            answer("", None, max(_heap_bytes() - before, 0))
            del grammar
        _limit_next(seconds)


def _answer_or_exit(seconds: int) -> None:
    """Ends the process after an exception, which in a thread would not."""
    try:
        _answer_all(seconds)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main(seconds: str) -> None:
    """Entry point of the process, which ends at the end of its input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is its parent's to handle
    _limit(resource.RLIMIT_CORE, 0)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_answer_or_exit, args=(int(seconds),))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
