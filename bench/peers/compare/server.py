"""A server process that can be stood still while another engine is measured."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from bench.peers.compare.engines import Engine


class ServerFailed(Exception):
    """It couldn't be started, or died; the text says why."""


class Server:
    """Starts an engine and waits until it answers.

    Args:
        folder: of the weights.
        log: file for all that it prints.
        limit_s: that it may take.

    Raises:
        ServerFailed: it ended, or didn't answer in time.
    """

    def __init__(self, engine: Engine, folder: Path, log: Path, limit_s: float) -> None:
        assert engine.program is not None
        port = _free_port()
        self.url, self._log = f"http://127.0.0.1:{port}", log
        self._doomed: list[int] = []
        began = time.perf_counter()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [engine.program, *engine.command(folder, port)],
                env=os.environ | engine.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait(began + limit_s)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.perf_counter() - began

    def pause(self) -> None:
        """Takes it, and all it has started, off the processor."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Asks it to end."""
        self._doomed = self._doomed or self.family()  # later its children are nobody's
        self.resume()
        self._process.terminate()

    def stop(self) -> None:
        """Ends it and all that it has started."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for pid in self._doomed:
            _send(pid, signal.SIGKILL)
        self._process.wait()

    def _wait(self, until: float) -> None:
        while not self._answers():
            if self._process.poll() is not None:
                raise ServerFailed(f"ended at its start: {self._last_words()}")
            if time.perf_counter() > until:
                raise ServerFailed(f"not ready in time: {self._last_words()}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=2):
                pass
            # llama.cpp lists its model before it has loaded it.
            with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _signal(self, number: int) -> None:
        for pid in self.family():
            _send(pid, number)

    def family(self) -> list[int]:
        """The process and its descendants."""
        found = [self._process.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                try:
                    found += map(int, children.read_text().split())
                except OSError:
                    continue  # the thread has just ended
        return found

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-200:] if lines else "it printed nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
