"""A process that compiles each grammar once, to see whether it can be.

A few words can be a grammar that takes llguidance minutes or gigabytes; a thread that compiles it
can't be stopped, and what it compiles can't be sent from one process to another. So a grammar is
first compiled in a process with limits, which the kernel ends when they are passed, and only one
that is well is compiled again where it is used: that takes as long as it took here.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from jaxserve.errors import EngineError, InvalidRequestError, JaxserveError, OverloadedError
from jaxserve.sampling.grammar import GrammarCompiler
from jaxserve.sampling.params import StructuredOutputsParams

PATIENCE_S = 60.0  # by the clock
LOOK_S = 0.1  # between looks at whether the grammar is still wanted
LIMIT_BYTES = 2**30  # beyond what the process holds before
OUT_OF_MEMORY = 3  # the process's exit status
STACK_BYTES = 2**28  # llguidance recurses rule by rule, and an overflow ends the process

# What a GrammarCompiler is made of.
Vocabulary = tuple[str, int, Sequence[int]]
_Answer = tuple[str, int]  # why the grammar is refused, if it is; bytes that it takes


class TooCostlyError(InvalidRequestError):
    """A grammar takes more than a limit to compile."""


class TooSlowError(TooCostlyError):
    """It takes more processor time."""


class GrammarTrial:
    """Starts the process when it is needed, and anew once a grammar has ended it.

    Args:
        vocabulary: gives the arguments of GrammarCompiler.
        limit_s: of processor time, for one grammar.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], limit_s: int) -> None:
        self._vocabulary, self._limit_s = vocabulary, limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._closed, self._changing = False, threading.Lock()

    def check(self, params: StructuredOutputsParams, wanted: Callable[[], bool]) -> int:
        """Bytes that the grammar takes once it is compiled; 0 where nobody can tell.

        Args:
            wanted: asked again and again; once it says no, the process is ended.

        Raises:
            TooCostlyError, TooSlowError: it took more than a limit.
            InvalidRequestError: it can't be compiled.
            OverloadedError: it took too long by the clock.
            EngineError: the process can't be started, or broke, or all is being closed, or nobody
                wants the grammar any more.
        """
        if self._process is None or self._process.poll() is not None:
            self._start(wanted)
        answer = self._ask(params, wanted)
        if not answer:
            raise self._end()
        refusal, size = msgspec.json.decode(answer, type=_Answer)
        if refusal:
            raise InvalidRequestError(refusal, "structured_outputs")
        return size

    def close(self) -> None:
        """Ends the process for good; a thread in check() sees that."""
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
            raise EngineError(f"the process that tries grammars ended with status {status}")

    def _launch(self, *arguments: str) -> None:
        with self._changing:
            if self._closed:
                raise EngineError("no grammar is compiled any more: the engine ends")
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)

    def _ask(self, question: object, wanted: Callable[[], bool]) -> bytes:
        """The process's answer, a line; an empty one if it has ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        inbox, outbox = process.stdin.fileno(), process.stdout.fileno()
        until = time.monotonic() + PATIENCE_S
        unsent, answer = memoryview(msgspec.json.encode(question) + b"\n"), b""
        with suppress(BrokenPipeError):
            while unsent:
                self._await(inbox, select.POLLOUT, until, wanted)
                unsent = unsent[os.write(inbox, unsent) :]
        while not answer.endswith(b"\n"):
            self._await(outbox, select.POLLIN, until, wanted)
            if not (more := os.read(outbox, 2**16)):
                return b""
            answer += more
        return answer

    def _await(self, pipe: int, event: int, until: float, wanted: Callable[[], bool]) -> None:
        """Returns once the process takes or has something; ends it if that isn't to be awaited."""
        pipes = select.poll()
        pipes.register(pipe, event)
        while not pipes.poll(LOOK_S * 1000):
            if not wanted():
                self._kill()
                raise EngineError("nobody wants the grammar any more")
            if time.monotonic() > until:
                self._kill()
                raise OverloadedError(
                    "the machine is too busy to compile grammars: try again later"
                )

    def _end(self) -> JaxserveError:
        """Why the process has ended in the middle of a grammar; lets go of it."""
        process, kind = self._process, TooCostlyError
        assert process is not None
        with suppress(BrokenPipeError), process:
            status = process.wait()
        if status == -signal.SIGXCPU:
            kind, limit = TooSlowError, f"{self._limit_s} s of processor time"
        elif status in (OUT_OF_MEMORY, -signal.SIGABRT, -signal.SIGSEGV):  # also of the stack
            limit = f"{LIMIT_BYTES >> 20} MiB of memory"
        else:
            return EngineError(f"the process that tries grammars ended with status {status}")
        message = f"the grammar took more than {limit} to compile: make it simpler"
        return kind(message, "structured_outputs")


def _limit(kind: int, most: int) -> None:
    _, highest = resource.getrlimit(kind)
    if highest != resource.RLIM_INFINITY:
        most = min(most, highest)
    resource.setrlimit(kind, (most, highest))


def _limit_next(seconds: int) -> None:
    """Has the kernel end this process if it goes on for so long, or takes much more memory."""
    _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds)
    with suppress(FileNotFoundError):  # on macOS, which knows no such limit either
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
    """What malloc has given this process and not got back; 0 where the C library can't tell."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def _answer_all(seconds: int) -> None:
    """Answers the vocabulary, and then each grammar."""
    lines, answers = sys.stdin.buffer, sys.stdout.buffer

    def answer(refusal: str, size: int) -> None:
        answers.write(msgspec.json.encode((refusal, size)) + b"\n")
        answers.flush()

    compiler = GrammarCompiler(*msgspec.json.decode(lines.readline(), type=Vocabulary))
    _limit_next(seconds)
    answer("", 0)
    for line in lines:
        before = _heap_bytes()
        try:
            grammar = compiler.compile(msgspec.json.decode(line, type=StructuredOutputsParams))
        except InvalidRequestError as error:
            answer(str(error), 0)
        else:
            answer("", max(_heap_bytes() - before, 0))
            del grammar
        _limit_next(seconds)


def _answer_or_exit(seconds: int) -> None:
    """A thread's exception ends no process by itself."""
    try:
        _answer_all(seconds)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main(seconds: str) -> None:
    """Entry of the process, which ends when its input does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is its parent's to handle
    _limit(resource.RLIMIT_CORE, 0)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_answer_or_exit, args=(int(seconds),))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
