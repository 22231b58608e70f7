"""Clients for Node, in scripts of their own (node/)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "node"
PROVIDERS = ("chat", "responses", "compatible")
STEPS = ("calls", "streamedCalls", "objects", "objectsBesideTools")


def run(script: str, url: str) -> list[str]:
    """The lines that a script prints, which must end without an error."""
    node = shutil.which("node")
    if node is None or not (SCRIPTS / "node_modules").is_dir():
        pytest.skip("needs Node.js and npm, with which `make clients` installs the clients")
    done = subprocess.run(
        [node, str(SCRIPTS / script), url],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_openai(url: str) -> None:
    assert run("openai_client.mjs", url) == ["calls", "parsed", "streamed", "ranTools", "responses"]


def test_the_ai_sdk(url: str) -> None:
    done = run("ai_sdk.mjs", url)
    assert done == [f"{provider} {step}" for provider in PROVIDERS for step in STEPS]
