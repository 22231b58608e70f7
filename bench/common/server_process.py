"""A server in a process of its own: started, paused, watched and stopped by benchmarks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

READY_S, EXIT_S = 300.0, 60.0
ENGINE_MODULE = "jaxserve.engine.core.engine_process"


class ServerFailed(Exception):
    """The server could not be started; the text says why."""


class ServerProcess:
    """Starts a server on a free port of 127.0.0.1 and waits until it answers.

    Args:
        command: its command line, given the port.
        environment: variables to set beside this process's own.
        log: file for all that it prints; None drops stdout and passes stderr on to ours.
        ready_s: seconds within which it must answer.

    Raises:
        ServerFailed: it ended, or did not answer in time.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        ready_s: float = READY_S,
    ) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._doomed: list[int] = []
        began = time.perf_counter()
        with open(log or os.devnull, "wb") as output:
            self._process = subprocess.Popen(
                command(self.port),
                env=os.environ | dict(environment or {}),
                stdout=output,
                stderr=None if log is None else subprocess.STDOUT,
            )
        try:
            self._wait_ready(began + ready_s)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.perf_counter() - began

    @classmethod
    def jaxserve(cls, *flags: str) -> ServerProcess:
        """`jaxserve serve` with these flags."""
        serve = [sys.executable, "-m", "jaxserve.cli.main", "serve", *flags]
        return cls(lambda port: [*serve, "--port", str(port)])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def engine_pid(self) -> int:
        """The process id of the engine of a jaxserve server."""
        return next(pid for pid in self.family() if ENGINE_MODULE in command_line(pid))

    def family(self) -> list[int]:
        """Process ids of the server and of all that it has started."""
        found = [self.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):  # the thread has just ended
                    found += map(int, children.read_text().split())
        return found

    def pause(self) -> None:
        """Stops the server and its children from running until resume()."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._doomed = self._doomed or self.family()  # its children lose their parent later
        self.resume()
        self._process.terminate()

    def wait(self, limit_s: float = EXIT_S) -> int:
        """The exit status, once the server has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, within `limit_s` seconds.
        """
        return self._process.wait(limit_s)

    def stop(self, limit_s: float = 10.0) -> None:
        """Sends SIGTERM, and after `limit_s` seconds SIGKILL to the server and its children."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        for pid in self._doomed:
            _send(pid, signal.SIGKILL)
        self._process.wait()

    def _wait_ready(self, until: float) -> None:
        while not self._answers():
            if self._process.poll() is not None:
                raise ServerFailed(f"ended while it started: {self._last_line()}")
            if time.perf_counter() > until:
                raise ServerFailed(f"not ready in time: {self._last_line()}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        # llama.cpp lists its model before it has loaded it.
        with contextlib.suppress(urllib.error.URLError, OSError):
            for path in ("/v1/models", "/health"):
                with urllib.request.urlopen(f"{self.url}{path}", timeout=2):
                    pass
            return True
        return False

    def _signal(self, number: int) -> None:
        for pid in self.family():
            _send(pid, number)

    def _last_line(self) -> str:
        if self._log is None:
            return "its messages are above"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-200:] if lines else "it printed nothing"


def command_line(pid: int) -> list[str]:
    """The arguments of a process; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
