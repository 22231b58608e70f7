"""pull against a small stand-in for the hub's HTTP API, each time in a process of its own, since
huggingface_hub reads its environment when imported."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import open_checkpoint, pull
from jaxserve.errors import ModelNotFoundError
from jaxserve.text.tokenizer import load_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PULL = """
import sys
from checkpoints import pull
from jaxserve.errors import ModelNotFoundError
try:
    print(pull(sys.argv[1], *(word or None for word in sys.argv[2:])))
except ModelNotFoundError as error:
    sys.exit(f"refused: {error}")
"""

Pull = Callable[..., "subprocess.CompletedProcess[str]"]


class Hub(ThreadingHTTPServer):
    """Serves repositories from memory: {name: {file: content}}."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.sent: list[str] = []
        self.asked: list[str] = []
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        path = self.path.split("?")[0].strip("/")
        api = path.removeprefix("api/models/")
        owner_name = "/".join(api.split("/")[:2])
        files = self.server.repositories.get(owner_name)
        if files is None:
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if owner_name in self.server.gated:
            return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        rest = api.removeprefix(owner_name).strip("/")
        if api == path:
            return self._file(files, rest.removeprefix("resolve/").split("/", 1)[1])
        if rest.startswith("tree/"):
            listing = [
                {"type": "file", "path": f, "size": len(c), "oid": _sha(c)}
                for f, c in files.items()
            ]
            return self._json(listing)
        siblings = [{"rfilename": f} for f in files]
        return self._json({"id": owner_name, "sha": COMMIT, "siblings": siblings})

    def _file(self, files: dict[str, bytes], name: str) -> None:
        if name not in files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        if self.command == "GET":
            self.server.sent.append(name)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_sha(files[name])}"'}
        return self._send(200, files[name], headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _sha(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub(tensors: dict[str, np.ndarray], write_folder: Callable[..., Path]) -> Iterator[Hub]:
    server = Hub()
    folder = write_folder(tensors, shards=2)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    other = {"README.md": b"hello", "consolidated.safetensors": b"twice", "pytorch_model.bin": b"x"}
    server.repositories["tiny/llama"] = files | other
    server.repositories["tiny/gguf"] = {"q4.gguf": b"GGUF here"}
    server.repositories["tiny/parts"] = {
        f"q4/model-0000{i}-of-00002.gguf": b"part %d" % i for i in (1, 2)
    }
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def run_pull(hub: Hub, tmp_path: Path) -> Pull:
    def run(model: str, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        own = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.endpoint, "NO_PROXY": "*"}
        return subprocess.run(
            [sys.executable, "-c", PULL, model, *more],
            env=kept | own | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


@pytest.mark.slow
def test_a_revision_is_asked_for_and_its_files_alone(hub: Hub, run_pull: Pull) -> None:
    pulled = run_pull("tiny/llama", "some-branch")
    assert pulled.returncode == 0, pulled.stderr
    assert any("/revision/some-branch" in path for path in hub.asked), hub.asked
    refused = run_pull("smollm2-135m", "some-branch")
    assert "only a model of the hub has revisions" in refused.stderr


@pytest.mark.slow
def test_a_tokenizer_alone_needs_no_weights(hub: Hub, run_pull: Pull) -> None:
    pulled = run_pull("tiny/llama", "", "tokenizer")
    assert pulled.returncode == 0, pulled.stderr
    assert not [name for name in hub.sent if name.endswith(".safetensors")]


@pytest.mark.slow
def test_a_vocabulary_of_sentencepiece_is_downloaded(hub: Hub, run_pull: Pull) -> None:
    model = (Path(__file__).parents[1] / "golden" / "tiny_sentencepiece.model").read_bytes()
    hub.repositories["tiny/spm"] = {"config.json": b"{}", "tokenizer.model": model}
    pulled = run_pull("tiny/spm")
    assert pulled.returncode == 0, pulled.stderr
    assert set(hub.sent) == {"config.json", "tokenizer.model"}
    assert load_tokenizer(Path(pulled.stdout.strip())).encode("the") == [1, 292]


@pytest.mark.slow
def test_a_repository_is_downloaded_then_found_offline(hub: Hub, run_pull: Pull) -> None:
    first = run_pull("tiny/llama")
    assert first.returncode == 0, first.stderr
    folder = Path(first.stdout.strip())
    assert open_checkpoint(folder).config.num_hidden_layers == 2
    fetched = {"config.json", "model.safetensors.index.json"}
    fetched |= {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    assert set(hub.sent) == fetched

    hub.sent.clear()
    assert run_pull("tiny/llama").stdout == first.stdout
    offline = run_pull("tiny/llama", HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    assert (offline.returncode, offline.stdout) == (0, first.stdout)
    assert hub.sent == []


@pytest.mark.parametrize("name", ["tiny/gguf:q4.gguf", "tiny/gguf/q4.gguf"])
def test_a_gguf_file_of_a_repository(run_pull: Pull, name: str) -> None:
    done = run_pull(name)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == b"GGUF here"


def test_all_parts_of_a_gguf_model_come_with_the_first(run_pull: Pull) -> None:
    done = run_pull("tiny/parts:q4/model-00001-of-00002.gguf")
    assert done.returncode == 0, done.stderr
    first = Path(done.stdout.strip())
    assert [file.read_bytes() for file in sorted(first.parent.iterdir())] == [b"part 1", b"part 2"]
    assert first.read_bytes() == b"part 1"


@pytest.mark.parametrize(
    ("model", "environment", "message"),
    [
        ("tiny/lama", {}, "tiny/lama: the hub has no such repository"),
        ("tiny/closed", {}, "gated: accept its terms"),
        ("tiny/gguf", {}, r"no config.json; name a GGUF file"),
        ("tiny/gguf:q5.gguf", {}, "the repository has no file q5.gguf"),
        ("tiny/llama", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set: unset it"),
        ("tiny/gguf:q4.gguf", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set: unset it"),
        (
            "tiny/llama",
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            "can't be reached: check the network",
        ),
    ],
)
@pytest.mark.slow
def test_refusals_say_what_to_change(
    hub: Hub, run_pull: Pull, model: str, environment: dict[str, str], message: str
) -> None:
    hub.repositories["tiny/closed"] = {}
    hub.gated.add("tiny/closed")
    done = run_pull(model, **environment)
    assert done.returncode == 1
    assert "refused: " in done.stderr
    assert message in done.stderr


def test_a_local_path_is_returned_unchanged(tmp_path: Path) -> None:
    assert pull(str(tmp_path)) == tmp_path
    for missing in (str(tmp_path / "nowhere"), "models/missing.gguf", "no-such-name"):
        with pytest.raises(ModelNotFoundError, match=r"no such folder or file.*smollm2-135m"):
            pull(missing)
