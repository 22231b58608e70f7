"""The model part of bench.kernels.gpu: steps of Llama 3.1 8B with random weights, run by the
engine's own programs and loop, beside the least time that the device's copy bandwidth and matmul
rate allow."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bench.engine.llama_shapes import llama_8b, toy_llama
from checkpoints.checkpoint import Checkpoint, Shapes
from jaxserve.config import MIB, EngineConfig
from jaxserve.engine.core.engine_core import EngineCore
from jaxserve.engine.core.protocol import Submit
from jaxserve.engine.device.buckets import Bucket, BucketTable
from jaxserve.engine.device.model_outline import ModelOutline, outline
from jaxserve.engine.startup import start_runner
from jaxserve.models.config import ModelConfig
from jaxserve.sampling.params import SamplingParams

_Leaf = tuple[Hashable, ...]  # the path of a parameter in the model


@dataclass(frozen=True)
class Load:
    """What is measured.

    Args:
        batches: numbers of decodes that run at once.
        context: tokens of each of them when they are timed.
        prompt: tokens of the prompt whose prefill is timed; also the step's token budget.
        steps: steps of each kind that are timed.
        kv_cache_memory: bytes; None leaves the size to the engine, as in service.
    """

    model: ModelConfig
    batches: tuple[int, ...]
    context: int
    prompt: int
    steps: int
    kv_cache_memory: int | None = None


FULL = Load(llama_8b(max_position_embeddings=16_384), (1, 64, 256), 1024, 8192, 50)
DRY = Load(toy_llama(), (1, 4), 32, 64, 3, 8 * MIB)


class RandomCheckpoint(Checkpoint):
    """Random weights made on the device, small enough to keep activations near 1."""

    path = Path("random")

    def __init__(self, model: ModelOutline) -> None:
        self.config = model.config
        abstract = jax.tree.unflatten(model.structure, model.shapes)
        self._leaves: dict[_Leaf, jax.ShapeDtypeStruct] = {
            path: leaf.get_value() for path, leaf in nnx.to_flat_state(abstract)
        }
        self._keys = iter(jax.random.split(jax.random.key(0), len(self._leaves)))

    def parameter(self, path: _Leaf, shardings: Any = None) -> jax.Array:
        leaf = self._leaves[path]
        if len(leaf.shape) == 1:
            return jnp.ones(leaf.shape, leaf.dtype)
        return jax.random.normal(next(self._keys), leaf.shape, leaf.dtype) * 0.02

    def describe(self, path: _Leaf) -> str:
        return str(path)

    def shapes(self) -> Shapes:
        raise NotImplementedError

    def read(self, name: str) -> np.ndarray:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in self._leaves.values())


class ModelBench:
    """An engine with random weights that compiles only the shapes of step that are timed."""

    def __init__(self, load: Load) -> None:
        self.load = load
        most = max(load.batches)
        config = EngineConfig(
            max_model_len=load.prompt + 64,
            max_num_seqs=most,
            max_num_batched_tokens=load.prompt,
            kv_cache_memory=load.kv_cache_memory,
            enable_prefix_caching=False,
        )
        dtype = jnp.dtype(start_runner.DeviceInfo.here(config).dtype(config))
        self.model = outline(load.model, dtype, config.max_model_len)
        table = BucketTable(tuple(Bucket(n, n) for n in load.batches), (Bucket(load.prompt, most),))
        tokenizer = SimpleNamespace(num_ids=load.model.vocab_size)
        with (
            mock.patch.object(
                start_runner, "open_checkpoint", return_value=RandomCheckpoint(self.model)
            ),
            mock.patch.object(start_runner.BucketTable, "build", return_value=table),
        ):
            self.core = EngineCore(config, RandomCheckpoint.path, cast(Any, tokenizer))
        self._runner = self.core._runner
        self._submitted = 0

    def submit(self, tokens: int, outputs: int) -> str:
        """A request with a random prompt."""
        self._submitted += 1
        name = str(self._submitted)
        vocab = self.load.model.vocab_size
        prompt = np.random.default_rng(self._submitted).integers(0, vocab, tokens).tolist()
        params = SamplingParams(temperature=0, max_tokens=outputs, ignore_eos=True, seed=0)
        refusal = self.core.submit(Submit(name, prompt, params, frozenset()))
        assert refusal is None, refusal
        return name

    def end(self, names: list[str]) -> None:
        """Aborts the requests and runs the loop until it has no work."""
        for name in names:
            self.core.abort(name)
        while self.core.has_work:
            self.core.step()

    def decode(self, batch: int) -> dict[str, float]:
        """Seconds of a decode step in the engine's loop, on the device alone, and those that the
        loop reports the device idle."""
        load = self.load
        names = [self.submit(load.context, 4 * load.steps + 32) for _ in range(batch)]
        while self.core.stats.waiting or self.core.stats.running < batch:
            self.core.step()
        for _ in range(4):  # past the last prefill, both buffers of the bucket in use
            self.core.step()
        self._wait()
        self.core.report()
        idle, begin = self.core.report().idle_s, time.perf_counter()
        for _ in range(load.steps):
            self.core.step()
        loop = (time.perf_counter() - begin) / load.steps
        idle = (self.core.report().idle_s - idle) / load.steps
        assert self.core.stats.running == batch, "a preemption would be timed too"
        device = self._chained(Bucket(batch, batch))
        self.end(names)
        return {"loop": loop, "device": device, "idle": idle}

    def prefill(self) -> dict[str, float]:
        """Seconds until one prompt's first token, and of its step on the device alone."""
        begin = time.perf_counter()
        name = self.submit(self.load.prompt, 8)
        while not any(output.token_ids for output in self.core.step()):
            pass
        loop = time.perf_counter() - begin
        device = self._chained(Bucket(self.load.prompt, max(self.load.batches)))
        self.end([name])
        return {"loop": loop, "device": device}

    def _wait(self) -> None:
        jax.block_until_ready(self._runner._state)

    def _chained(self, bucket: Bucket) -> float:
        """Seconds a step of the bucket's last batch, dispatched again and again without reading
        the sampled tokens."""
        runner, buffers = self._runner, self._runner._buffers[bucket]
        step = runner._steps[bucket, False]

        def run(times: int) -> float:
            self._wait()
            begin = time.perf_counter()
            for _ in range(times):
                state, layers = step.layers(runner._params, runner._state, buffers.ints)
                runner._state, _ = step.sample(runner._params, state, layers)
            self._wait()
            return time.perf_counter() - begin

        run(1)
        few = max(1, self.load.steps // 5)
        return run(few) / few if bucket.decode is False else run(self.load.steps) / self.load.steps

    @property
    def decode_bytes(self) -> tuple[int, int]:
        """Bytes that a step reads: of the weights, without the embedding table, and of the cache
        for each token of context."""
        config, itemsize = self.model.config, self.model.shapes[0].dtype.itemsize
        table = config.vocab_size * config.hidden_size * itemsize
        cells = sum(s.num_kv_heads * s.head_dim for s in self.model.cache_specs)
        return self.model.nbytes - table, 2 * cells * itemsize

    @property
    def prefill_flops(self) -> float:
        """Operations of one prompt: products with every layer's matrices, and attention."""
        config, tokens = self.model.config, self.load.prompt
        ends = 2 * config.vocab_size * config.hidden_size
        matrices = sum(math.prod(x.shape) for x in self.model.shapes if len(x.shape) > 1) - ends
        pairs = tokens * (tokens + 1) / 2 * config.num_hidden_layers
        return 2 * matrices * tokens + 4 * pairs * config.num_attention_heads * config.head_dim

    def measure(self, bandwidth: float, rate: float) -> dict[str, float]:
        """Prints and returns the figures: milliseconds, and ratios to the least possible time.

        Args:
            bandwidth: bytes a second of a copy.
            rate: bf16 matmul operations a second.
        """
        ready = self.core.ready
        figures = {"model_ready_s": round(ready.ready_s, 1), "model_blocks": ready.num_blocks}
        print(f"\nLlama 3.1 8B, ready in {ready.ready_s:.0f} s; {ready.cache}", flush=True)
        weights, per_token = self.decode_bytes
        for batch in self.load.batches:
            took = self.decode(batch)
            floor = (weights + batch * self.load.context * per_token) / bandwidth
            idle = max(0.0, 1 - took["device"] / took["loop"])
            figures |= {
                f"model_decode_{batch}_ms": round(1e3 * took["device"], 3),
                f"model_decode_{batch}_over_limit_ratio": round(took["device"] / floor, 3),
                f"model_decode_{batch}_loop_ms": round(1e3 * took["loop"], 3),
                f"model_decode_{batch}_idle_share": round(idle, 4),
                f"model_decode_{batch}_reported_idle_ms": round(1e3 * took["idle"], 3),
            }
            print(
                f"decode, {batch} x {self.load.context}: {1e3 * took['device']:.2f} ms a step, "
                f"{took['device'] / floor:.2f} times the limit; loop {1e3 * took['loop']:.2f} ms, "
                f"device idle {idle:.1%}",
                flush=True,
            )
        took = self.prefill()
        share = self.prefill_flops / took["device"] / rate
        figures |= {
            "model_prefill_ms": round(1e3 * took["device"], 2),
            "model_prefill_matmul_rate_share": round(share, 3),
            "model_prefill_first_token_ms": round(1e3 * took["loop"], 2),
        }
        print(
            f"prefill, {self.load.prompt} tokens: {1e3 * took['device']:.1f} ms, {share:.0%} of "
            f"the matmul rate; first token after {1e3 * took['loop']:.1f} ms",
            flush=True,
        )
        self.core.close()
        return figures
