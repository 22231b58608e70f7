"""A process that compiles each grammar once, to see whether it can be.

A few words can be a grammar that takes llguidance minutes or gigabytes; a thread that compiles it
can't be stopped, and what it compiles can't be sent from one process to another. So a grammar is
first compiled in a process with limits, which the kernel ends when they are passed, and only one
that is well is compiled again where it is used: that takes as long as it took here.
"""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from jaxserve.errors import EngineError, InvalidRequestError, OverloadedError
from jaxserve.sampling.grammar import GrammarCompiler
from jaxserve.sampling.params import StructuredOutputsParams

LIMIT_S = 10  # of processor time, of one grammar
PATIENCE_S = 60.0  # by the clock
LIMIT_BYTES = 2**30  # beyond what the process holds before
STACK_BYTES = 2**28  # llguidance recurses rule by rule, and an overflow ends the process

# What a GrammarCompiler is made of.
Vocabulary = tuple[str, int, Sequence[int]]


class GrammarTrial:
    """Starts the process when it is needed, and anew once a grammar has ended it.

    Args:
        vocabulary: gives the arguments of GrammarCompiler.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, params: StructuredOutputsParams) -> None:
        """Returns if the grammar can be compiled.

        Raises:
            InvalidRequestError: it can't.
            OverloadedError: it took too long by the clock.
            EngineError: the process can't be started.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        answer = self._ask(params)
        if not answer:
            raise InvalidRequestError(
                f"the grammar took more than {self._end()} to compile: make it simpler",
                "structured_outputs",
            )
        if refusal := msgspec.json.decode(answer, type=str):
            raise InvalidRequestError(refusal, "structured_outputs")

    def close(self) -> None:
        """Ends the process; a thread in check() sees that."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jaxserve.sampling.grammar_trial", str(LIMIT_S)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        if not self._ask(self._vocabulary()):
            status = self._process.wait()
            raise EngineError(f"the process that tries grammars ended with status {status}")

    def _ask(self, question: object) -> bytes:
        """The process's answer, a line; an empty one if it has ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            process.stdin.flush()
        answers = select.poll()
        answers.register(process.stdout, select.POLLIN)
        if not answers.poll(PATIENCE_S * 1000):
            self.close()
            raise OverloadedError("the machine is too busy to compile grammars: try again later")
        return process.stdout.readline()

    def _end(self) -> str:
        """Which limit the process has passed; lets go of it."""
        process = self._process
        assert process is not None
        with suppress(BrokenPipeError), process:
            status = process.wait()
        if status == -signal.SIGXCPU:
            return f"{LIMIT_S} s of processor time"
        return f"{LIMIT_BYTES >> 20} MiB of memory"


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


def _answer_all(seconds: int) -> None:
    """Answers the vocabulary with an empty text, and each grammar with why it is refused."""
    lines, answers = sys.stdin.buffer, sys.stdout.buffer

    def answer(text: str) -> None:
        answers.write(msgspec.json.encode(text) + b"\n")
        answers.flush()

    compiler = GrammarCompiler(*msgspec.json.decode(lines.readline(), type=Vocabulary))
    _limit_next(seconds)
    answer("")
    for line in lines:
        try:
            compiler.compile(msgspec.json.decode(line, type=StructuredOutputsParams))
        except InvalidRequestError as error:
            answer(str(error))
        else:
            answer("")
        _limit_next(seconds)


def main(seconds: str) -> None:
    """Entry of the process, which ends when its input does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is its parent's to handle
    _limit(resource.RLIMIT_CORE, 0)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_answer_all, args=(int(seconds),))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
