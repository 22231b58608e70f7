"""All settings of the engine and the server: frozen dataclasses, validated, with units."""

from __future__ import annotations

import math
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from jaxserve.errors import ConfigError

MIB = 1024**2
GIB = 1024**3

Quantization = Literal["fp8", "int8", "int4"]  # see EngineConfig

DEFAULT_MODEL = "smollm2-135m"


def cache_dir() -> Path:
    """Where fetched models and compiled programs are kept: $JAXSERVE_CACHE, or jaxserve/ in
    $XDG_CACHE_HOME or ~/.cache; for a user without a home, a folder in the temporary one. It may
    not exist yet."""
    if own := os.environ.get("JAXSERVE_CACHE"):
        return Path(own).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "jaxserve"
    try:
        return Path.home() / ".cache" / "jaxserve"
    except RuntimeError:  # neither $HOME nor an entry in the password file, as in some containers
        return Path(tempfile.gettempdir()) / f"jaxserve-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine runs one model.

    Args:
        model: a local folder, a GGUF file, a hub name (`owner/name`), or a name that
            `jaxserve pull` knows.
        revision: of a model of the hub: a branch, a tag or a commit; None is the newest.
        tokenizer: takes vocabulary and chat template from here instead of the model: a folder, a
            GGUF file or a hub name.
        device: "auto" is the GPU where there is one or where jax's CUDA plugin is installed, and an
            error if jax can't use it; "cpu" is the CPU.
        dtype: of weights, activations and KV cache; "auto" is bfloat16 on a GPU, float32 on a CPU
            (bfloat16 matmuls are several times slower there).
        weights: "stored" keeps a checkpoint's codes (and, on a CPU, floats of 16 bits) as they are
            stored and widens them in each step, "widened" widens them when they are loaded; "auto"
            is stored, but widened on a CPU with another dtype than float32. Both give the same
            numbers.
        quantization: quantise the layers' matrices of a checkpoint of floats when they are loaded:
            "fp8", "int8", or "int4" in groups of 128.
        kv_cache_dtype: of keys and values in the KV cache: "auto" is dtype; with "fp8_e4m3" or
            "fp8_e5m2" it holds two to four times the tokens. They are divided by the checkpoint's
            scales, or by 1.
        max_model_len: most tokens of prompt and output together; None takes the model's own.
        max_num_seqs: most sequences that run at once; None is 256 on a GPU, 32 on a CPU.
        max_num_batched_tokens: token budget of a step; None is 8,192 on a GPU, 512 on a CPU.
        block_size: tokens a KV block holds. On a CPU, blocks of 8 are read by XLA, which is slower.
        kv_cache_memory: bytes of the KV pool; None is 1 GiB on a CPU, and on a GPU what
            gpu_memory_utilization leaves.
        gpu_memory_utilization: share of the GPU's memory that the engine may use.
        max_queued_requests: requests that may wait; more are refused as overload.
        scheduling_policy: the order in which waiting requests start: "fcfs" (as they arrive),
            "priority" (by a number in the request) or "longest-prefix" (most cached tokens first).
        enable_prefix_caching: reuse the KV blocks of prompts that begin with the same tokens.
        threads: that compute on a CPU; None is as many as there are cores, or as a container may
            use.
        overlap: plan and dispatch a step while the one before it runs.
        decode_steps: tokens that each row gets in one dispatch to the device, while no request
            waits and none of these tokens can end an output. Above 1, one more program is compiled
            for each decode size.
        speculation: where guesses of the next tokens come from, which a step verifies together;
            they change no token. None: nowhere. "ngram": what followed the last tokens where they
            stood before, in prompt or output. "suffix": also what followed them in recent outputs
            under the same cache salt.
        num_speculative_tokens: guesses of a sequence in a step; None: up to 8, by how many are
            right.
        forbid_compile: raise instead of compiling after ready.
        seed: from which the seeds of requests without one are drawn.
        lora: adapters that are there from the start, each as "NAME=FOLDER"; requests name one as
            their model.
        lora_folder: a folder that is watched: each folder in it with an adapter is one, of its
            name.
        max_loras: most different adapters in one step, and on the device; None is 8 with `lora` or
            `lora_folder`, and none without.
        max_lora_rank: most rank of an adapter.
        max_cpu_loras: most adapters in host memory; those used last stay, others are read again
            when they are needed. None is 64, or max_loras if that is more.
        lora_targets: modules that adapters may change, as "q_proj"; empty: all that the model has.
            The fewer, the less memory the slots on the device take.
        generation_config: "auto" takes what requests leave unset from the model's own
            generation_config.json, or from the card of a packaged model; "none" takes nothing, and
            reads nothing but EOS ids from that file.
    """

    model: str = DEFAULT_MODEL
    revision: str | None = None
    tokenizer: str | None = None
    device: Literal["auto", "cpu"] = "auto"
    dtype: str = "auto"
    weights: Literal["auto", "stored", "widened"] = "auto"
    quantization: Quantization | None = None
    kv_cache_dtype: Literal["auto", "fp8_e4m3", "fp8_e5m2"] = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    kv_cache_memory: int | None = None
    gpu_memory_utilization: float = 0.9
    max_queued_requests: int = 1024
    scheduling_policy: Literal["fcfs", "priority", "longest-prefix"] = "fcfs"
    enable_prefix_caching: bool = True
    threads: int | None = None
    overlap: bool = True
    decode_steps: int = 1
    speculation: Literal["ngram", "suffix"] | None = None
    num_speculative_tokens: int | None = None
    forbid_compile: bool = False
    seed: int = 0
    lora: tuple[str, ...] = ()
    lora_folder: str | None = None
    max_loras: int | None = None
    max_lora_rank: int = 16
    max_cpu_loras: int | None = None
    lora_targets: tuple[str, ...] = ()
    generation_config: str = "auto"

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu"):
            raise ConfigError(f"device must be auto or cpu; it was {self.device!r}")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ConfigError(
                f"dtype must be auto, float32, bfloat16 or float16; it was {self.dtype!r}"
            )
        if self.weights not in ("auto", "stored", "widened"):
            raise ConfigError(f"weights must be auto, stored or widened; it was {self.weights!r}")
        if self.kv_cache_dtype not in ("auto", "fp8_e4m3", "fp8_e5m2"):
            raise ConfigError(
                f"kv_cache_dtype must be auto, fp8_e4m3 or fp8_e5m2; it was {self.kv_cache_dtype!r}"
            )
        if self.quantization not in (None, "fp8", "int8", "int4"):
            raise ConfigError(
                f"quantization must be fp8, int8 or int4; it was {self.quantization!r}"
            )
        if self.scheduling_policy not in (policies := ("fcfs", "priority", "longest-prefix")):
            raise ConfigError(
                f"scheduling_policy must be {', '.join(policies[:-1])} or {policies[-1]}; "
                f"it was {self.scheduling_policy!r}"
            )
        if self.generation_config not in ("auto", "none"):
            raise ConfigError(
                f"generation_config must be auto or none; it was {self.generation_config!r}"
            )
        if self.speculation not in (None, "ngram", "suffix"):
            raise ConfigError(
                f"speculation must be ngram or suffix, or unset; it was {self.speculation!r}"
            )
        if self.speculation is not None and self.decode_steps > 1:
            raise ConfigError("speculation needs decode_steps to be 1: leave one of them out")
        if self.speculation is None and self.num_speculative_tokens is not None:
            raise ConfigError("num_speculative_tokens needs speculation: add it, as in ngram")
        self._check_lora()
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "kv_cache_memory",
            "max_queued_requests",
            "decode_steps",
            "num_speculative_tokens",
            "threads",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1; it was {value}")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(
                "max_model_len must be at least 2, one prompt token and one output token; "
                f"it was {self.max_model_len}"
            )
        if self.block_size < 8 or self.block_size & (self.block_size - 1):
            raise ConfigError(
                f"block_size must be a power of two from 8 up; it was {self.block_size}"
            )
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"gpu_memory_utilization must be in (0, 1]; it was {self.gpu_memory_utilization}"
            )

    def _check_lora(self) -> None:
        if not 1 <= self.max_lora_rank <= 512:
            raise ConfigError(f"max_lora_rank must be from 1 to 512; it was {self.max_lora_rank}")
        if self.max_loras is not None and self.max_loras < 0:
            raise ConfigError(f"max_loras must be at least 0; it was {self.max_loras}")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.adapter_slots:
            raise ConfigError(
                f"max_cpu_loras ({self.max_cpu_loras}) must be at least max_loras "
                f"({self.adapter_slots})"
            )
        names = [name for name, _ in map(named_folder, self.lora)]
        if len(set(names)) < len(names):
            raise ConfigError("lora names two adapters alike")
        if (self.lora or self.lora_folder) and not self.adapter_slots:
            raise ConfigError("lora and lora_folder need max_loras to be at least 1")

    @property
    def adapter_slots(self) -> int:
        """Adapters on the device at once; 0 without adapters."""
        if self.max_loras is not None:
            return self.max_loras
        return 8 if self.lora or self.lora_folder else 0

    @property
    def adapters_in_memory(self) -> int:
        """Most adapters in host memory."""
        return self.max_cpu_loras or max(64, self.adapter_slots)


def named_folder(text: str) -> tuple[str, str]:
    """The name and the folder of an adapter that is given as "NAME=FOLDER".

    Raises:
        ConfigError: it isn't.
    """
    name, _, folder = text.partition("=")
    if not name or not folder:
        raise ConfigError(f"an adapter is given as NAME=FOLDER; it was {text!r}")
    return name, folder


ToolCallParser = Literal[
    "auto",
    "none",
    "generic",
    "hermes",
    "llama3_json",
    "mistral",
    "qwen3_coder",
    "seed_oss",
    "glm45",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "kimi_k2",
    "minimax",
    "minimax_m2",
    "phi4_mini_json",
    "granite",
    "llama4_pythonic",
    "olmo3",
    "gemma",
    "gemma4",
    "pythonic",
]
ReasoningParser = Literal["auto", "none", "qwen3", "deepseek_r1", "granite", "mistral", "seed_oss"]


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of the HTTP server.

    Args:
        uds: path of a Unix domain socket to listen on instead of host and port.
        root_path: the path under which a proxy serves this server, such as "/models/a"; the API's
            description names it.
        served_model_names: names that requests may use; the first is the one reported.
            Empty means the model's own name.
        max_body_bytes: larger request bodies get 413.
        max_choices: most choices (prompts of a batch) in one request.
        max_logprobs, max_stop_strings: most of them in one request.
        max_output_tokens: most tokens of a choice; None leaves it to the model's context.
        tool_call_parser: format of the model's tool calls; "auto" takes it from the chat template.
        reasoning_parser: how the model marks its reasoning; "auto" takes it from the chat template.
        chat_template: a file with a chat template to use instead of the model's own.
        api_workers: HTTP server processes; they share one port and one engine.
        drain_timeout: seconds that running requests have to finish when the server is told to stop.
        stall_timeout: seconds without a message from an engine that has work, after which /health
            answers 503; ten times as long while the device computes a step.
        engine_restarts: how often the engine process is restarted when it dies; after that the
            server exits.
        api_key: keys, one of which each request must send. Those in api_key_file (one a line) and
            $JAXSERVE_API_KEY (separated by commas) are added. With none at all, no key is needed.
        salt_cache_by_key: share cached prefixes only between requests with the same key.
        ssl_certfile, ssl_keyfile: serve HTTPS with this certificate.
        ssl_ca_certs: ask clients for a certificate that one of these has signed.
        allowed_origins: web pages from these origins may use the server (CORS); "*" is any.
        allow_credentials: browsers may send cookies and passwords with those pages' requests.
        strict_fields: refuse unknown fields of requests, and arguments that the chat template
            doesn't use, instead of ignoring them.
        sse_keepalive: seconds without an event after which a stream gets a comment, from the
            request's start on; 0 sends none.
        max_stored_responses: responses of /v1/responses that are kept in memory, for
            previous_response_id; 0 keeps none. Several API workers keep none.
        page: serve a page at / on which people try the model and see the block pool.
        access_log: one line of JSON a request, on stderr.
        log_prompts: put the request's body into that line.
        metrics_prefix: begins the names of the metrics that vLLM has too.
        otlp_traces_endpoint: URL of an OpenTelemetry collector (OTLP over HTTP) for traces.
        enable_dev_endpoints: serve /reset_prefix_cache, /server_info, /start_profile,
            /stop_profile, /v1/load_lora_adapter and /v1/unload_lora_adapter, which are for
            operators only.
        profile_dir: where profiles are written.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    root_path: str = ""
    served_model_names: tuple[str, ...] = field(default=())
    max_body_bytes: int = 8 * MIB
    max_choices: int = 128
    max_logprobs: int = 20
    max_stop_strings: int = 16
    max_output_tokens: int | None = None
    tool_call_parser: ToolCallParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    chat_template: str | None = None
    api_workers: int = 1
    drain_timeout: float = 10.0
    stall_timeout: float = 60.0
    engine_restarts: int = 0
    api_key: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: str | None = None
    salt_cache_by_key: bool = False
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_ca_certs: str | None = None
    allowed_origins: tuple[str, ...] = field(default=())
    allow_credentials: bool = False
    strict_fields: bool = False
    sse_keepalive: float = 15.0
    max_stored_responses: int = 1000
    page: bool = True
    access_log: bool = True
    log_prompts: bool = False
    metrics_prefix: str = "vllm:"
    otlp_traces_endpoint: str | None = None
    enable_dev_endpoints: bool = False
    profile_dir: str = "profiles"

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port must be between 0 and 65535; it was {self.port}")
        for name in ("max_body_bytes", "max_choices", "api_workers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; it was {getattr(self, name)}")
        for name in (
            *("max_logprobs", "max_stop_strings", "engine_restarts"),
            "max_stored_responses",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0; it was {getattr(self, name)}")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise ConfigError(
                f"max_output_tokens must be at least 1; it was {self.max_output_tokens}"
            )
        if self.uds is not None and (self.api_workers > 1 or self.ssl_certfile):
            raise ConfigError("uds needs one API worker, and no TLS: leave out the others or uds")
        if self.root_path and not self.root_path.startswith("/"):
            raise ConfigError(f"root_path must begin with /; it was {self.root_path!r}")
        if (self.ssl_keyfile or self.ssl_ca_certs) and not self.ssl_certfile:
            raise ConfigError("ssl_keyfile and ssl_ca_certs need ssl_certfile")
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError("allow_credentials needs allowed_origins by name, not *")
        if not re.fullmatch("[a-zA-Z_:][a-zA-Z0-9_:]*", self.metrics_prefix):
            raise ConfigError(
                "metrics_prefix must be letters, digits, _ and :, with no digit first; "
                f"it was {self.metrics_prefix!r}"
            )
        if self.engine_restarts and self.api_workers > 1:
            raise ConfigError(
                "engine_restarts needs api_workers to be 1: set one of them to its default"
            )
        if not 0.0 <= self.sse_keepalive < math.inf:
            raise ConfigError(
                f"sse_keepalive must be 0 seconds or more; it was {self.sse_keepalive}"
            )
        if not self.stall_timeout > 0:
            raise ConfigError(f"stall_timeout must be above 0 seconds; it was {self.stall_timeout}")
        if not 0.0 <= self.drain_timeout < math.inf:
            raise ConfigError(
                f"drain_timeout must be 0 seconds or more; it was {self.drain_timeout}"
            )
