"""Servers in environments that aren't the usual one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxserve.config import cache_dir

pytestmark = pytest.mark.slow

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "temperature": 0}


def answer(server: Any) -> str:
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions",
        json.dumps(CHAT | {"logprobs": True, "top_logprobs": 3}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        choice = json.loads(response.read())["choices"][0]
    return str(choice["message"]["content"])


NO_PASSWD_ENTRY = """import pwd
def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
"""


def test_a_user_without_home_and_passwd_entry(
    tiny_server: Any,
    start_tiny: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As in a container that is started under a bare number."""
    (tmp_path / "sitecustomize.py").write_text(NO_PASSWD_ENTRY)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("JAXSERVE_CACHE", str(cache_dir()))  # so that nothing is compiled anew
    monkeypatch.delenv("HOME")
    found = [sys.executable, "-c", "from pathlib import Path; Path.home()"]
    assert b"RuntimeError" in subprocess.run(found, capture_output=True, timeout=60).stderr
    assert answer(start_tiny()) == answer(tiny_server)

    monkeypatch.delenv("JAXSERVE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    where = [sys.executable, "-c", "from jaxserve.config import cache_dir; print(cache_dir())"]
    done = subprocess.run(where, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == str(Path(tempfile.gettempdir()) / f"jaxserve-{os.getuid()}")
