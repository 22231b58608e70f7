"""transformers behind /v1/completions, for bench.peers.compare; runs in transformers' environment.

PYTHON transformers_server.py {static,continuous} FOLDER DTYPE PORT MAX_BATCH

static: generate() with the requests that wait, at most MAX_BATCH, padded on the left; a batch runs
until its longest request is complete, and each request streams its tokens as they are sampled.
continuous: transformers' own ContinuousBatchingManager. Sampling is greedy and does not stop at the
end-of-sequence token.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import torch
from aiohttp import web
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.streamers import BaseStreamer

GATHER_S = 0.01  # requests that arrive within this time of each other run together
KV_TOKENS, PAGE = 23_296, 256  # 1 GiB of float32 KV of the demo model, as the other engines have
Emit = Callable[
    [list[int], bool], None
]  # new token ids of a request, and whether they are its last


@dataclass
class Request:
    ids: list[int]
    max_tokens: int
    emit: Emit


class Static:
    """Runs batches of generate(), one after another, in a thread."""

    def __init__(self, model: Any, max_batch: int) -> None:
        self._model, self._max_batch = model, max_batch
        self._waiting: queue.Queue[Request] = queue.Queue()
        threading.Thread(target=self._loop, daemon=True).start()

    def submit(self, request: Request) -> None:
        self._waiting.put(request)

    def _loop(self) -> None:
        while True:
            batch = [self._waiting.get()]
            try:
                while len(batch) < self._max_batch:
                    batch.append(self._waiting.get(timeout=GATHER_S))
            except queue.Empty:
                pass
            self._run(batch)

    def _run(self, batch: list[Request]) -> None:
        width = max(len(request.ids) for request in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(batch):
            ids[row, width - len(request.ids) :] = torch.tensor(request.ids)
            mask[row, width - len(request.ids) :] = 1
        longest = max(request.max_tokens for request in batch)
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=longest,
                min_new_tokens=longest,
                do_sample=False,
                pad_token_id=0,
                streamer=_Rows(batch),
            )


class _Rows(BaseStreamer):
    """Passes each step's ids to the requests that are not complete."""

    def __init__(self, batch: list[Request]) -> None:
        self._batch, self._step = batch, 0

    def put(self, value: torch.Tensor) -> None:
        if self._step:  # the first call has the prompts
            for request, token in zip(self._batch, value.tolist(), strict=True):
                if self._step <= request.max_tokens:
                    request.emit([token], self._step == request.max_tokens)
        self._step += 1

    def end(self) -> None:
        pass


class Continuous:
    """transformers' own continuous batching over paged KV."""

    def __init__(self, model: Any, max_batch: int) -> None:
        config = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=KV_TOKENS // PAGE,
            max_batch_tokens=512,
            max_requests_per_batch=max_batch,
        )
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=config,
        )
        self._manager.start()
        self._count = 0

    def submit(self, request: Request) -> None:
        name, sent = f"r{self._count}", 0
        self._count += 1

        def deliver(output: Any) -> None:
            nonlocal sent
            new = output.generated_tokens[sent:]
            sent += len(new)
            if output.error:
                print(output.error, file=sys.stderr, flush=True)
            if new or output.is_finished():
                request.emit(new, output.is_finished())

        self._manager.register_result_handler(name, deliver)
        self._manager.add_request(
            request.ids, name, max_new_tokens=request.max_tokens, streaming=True, eos_token_id=-1
        )


class Api:
    def __init__(self, engine: Static | Continuous, tokenizer: Any, name: str) -> None:
        self._engine, self._tokenizer, self._name = engine, tokenizer, name

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._name}]})

    async def completions(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        ids = self._tokenizer.encode(body["prompt"], add_special_tokens=False)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        count = 0
        async for new, last in self._generate(ids, body["max_tokens"]):
            count += len(new)
            choice = {
                "index": 0,
                "text": self._tokenizer.decode(new),
                "finish_reason": "length" if last else None,
            }
            await response.write(_event({"choices": [choice]}))
        usage = {"prompt_tokens": len(ids), "completion_tokens": count}
        await response.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    async def _generate(
        self, ids: list[int], max_tokens: int
    ) -> AsyncIterator[tuple[list[int], bool]]:
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue()

        def emit(new: list[int], last: bool) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, (new, last))

        self._engine.submit(Request(ids, max_tokens, emit))
        last = False
        while not last:
            new, last = await pieces.get()
            yield new, last


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def main() -> None:
    kind, folder, dtype, port, max_batch = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    engine = {"static": Static, "continuous": Continuous}[kind](model, int(max_batch))
    api = Api(engine, AutoTokenizer.from_pretrained(folder), folder)
    app = web.Application()
    app.router.add_get("/v1/models", api.models)
    app.router.add_get("/health", api.models)
    app.router.add_post("/v1/completions", api.completions)
    web.run_app(app, host="127.0.0.1", port=int(port), print=None)
    os._exit(0)  # the engines' threads would keep the process running


if __name__ == "__main__":
    main()
