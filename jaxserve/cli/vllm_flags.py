"""Flags of `vllm serve`, and what each becomes here. docs/migrating-from-vllm.md is this table."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """A flag that we don't have under this name.

    Args:
        becomes: our flag of the same meaning.
        note: why it has no effect, or what to do instead.
        takes_value: whether a value follows it.
        refused: it would change something that we can't do, so it is an error.
        neutral: values with which a refused one changes nothing.
    """

    becomes: str | None = None
    note: str = ""
    takes_value: bool = True
    refused: bool = False
    neutral: tuple[str, ...] = ()


def _renamed(becomes: str, takes_value: bool = True) -> VllmFlag:
    return VllmFlag(becomes, takes_value=takes_value)


def _without_effect(note: str, takes_value: bool = False) -> VllmFlag:
    return VllmFlag(note=note, takes_value=takes_value)


def _refused(note: str, *neutral: str, takes_value: bool = True) -> VllmFlag:
    return VllmFlag(note=note, takes_value=takes_value, refused=True, neutral=neutral)


_ALWAYS = "it is always so"
_ONE_DEVICE = "a server runs on one device; start several behind a proxy"
_TEXT_ONLY = "it is about images, audio and video, and only text is served"
_OWN_FILES = "the model's own files decide"
_COMPILED = "all programs are compiled at the start, and kept in $JAXSERVE_CACHE"
_OF_MODEL = "a setting of the model can't be changed; edit its config.json"
_ENVIRONMENT = "the hub's own variables apply"

# Flags that both have, with one meaning.
SAME = (
    *("--model", "--tokenizer", "--revision", "--device", "--dtype", "--seed"),
    "--max-model-len",
    *("--max-num-seqs", "--max-num-batched-tokens", "--block-size", "--gpu-memory-utilization"),
    *("--kv-cache-dtype", "--enable-prefix-caching", "--scheduling-policy", "--quantization"),
    *("--generation-config", "--host", "--port", "--uds", "--root-path", "--max-logprobs"),
    *("--tool-call-parser", "--reasoning-parser", "--chat-template", "--api-key"),
    *("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs", "--allowed-origins"),
    *("--allow-credentials", "--otlp-traces-endpoint", "--config"),
    *("--max-loras", "--max-lora-rank", "--max-cpu-loras"),
)

OTHERS: dict[str, VllmFlag] = {
    "--served-model-name": _renamed("--served-model-names"),
    "--api-server-count": _renamed("--api-workers"),
    "-asc": _renamed("--api-workers"),
    "--kv-cache-memory-bytes": _renamed("--kv-cache-memory"),
    "--async-scheduling": _renamed("--overlap", takes_value=False),
    "--num-scheduler-steps": _renamed("--decode-steps"),
    "-q": _renamed("--quantization"),
    "--disable-uvicorn-access-log": _renamed("--no-access-log", takes_value=False),
    "--enable-log-outputs": _refused(
        "outputs aren't logged; --log-prompts logs requests", takes_value=False
    ),
    "--enable-log-requests": _without_effect(
        "each request has a line in the access log (--no-access-log); --log-prompts adds its body"
    ),
    "--disable-log-requests": _without_effect(
        "requests' texts aren't logged without --log-prompts; --no-access-log drops their lines"
    ),
    "--max-log-len": _without_effect("bodies are logged whole, with --log-prompts", True),
    "--disable-log-stats": _without_effect("figures are at /metrics, and not in the log"),
    "--uvicorn-log-level": _without_effect("the server isn't uvicorn", True),
    "--log-config-file": _refused("the log goes to stderr; redirect it"),
    "--enable-auto-tool-choice": _without_effect(_ALWAYS),
    "--exclude-tools-when-tool-choice-none": _without_effect(_ALWAYS),
    "--enable-prompt-tokens-details": _without_effect(_ALWAYS),
    "--enable-request-id-headers": _without_effect(_ALWAYS),
    "--enable-server-load-tracking": _without_effect("/load always has it"),
    "--enable-chunked-prefill": _without_effect(_ALWAYS),
    "--enable-ssl-refresh": _without_effect("renewed certificates are always used"),
    "--enable-force-include-usage": _refused(
        "requests ask for it, with stream_options.include_usage", takes_value=False
    ),
    "--return-tokens-as-token-ids": _refused(
        "requests ask for it, with return_tokens_as_token_ids", takes_value=False
    ),
    "--disable-fastapi-docs": _refused(
        "/docs and /openapi.json can't be left out; hide them at a proxy", takes_value=False
    ),
    "--enable-tokenizer-info-endpoint": _refused("there is none", takes_value=False),
    "--chat-template-content-format": _without_effect(
        "the form that the template takes is found by trial", True
    ),
    "--trust-request-chat-template": _refused(
        "requests can't bring a template; name it with --chat-template", takes_value=False
    ),
    "--default-chat-template-kwargs": _refused("requests send chat_template_kwargs"),
    "--response-role": _refused("answers have the role assistant", "assistant"),
    "--tool-parser-plugin": _refused("parsers are part of jaxserve/server/parsers"),
    "--reasoning-parser-plugin": _refused("parsers are part of jaxserve/server/parsers"),
    "--tool-server": _refused("tools are run by the client"),
    "--allowed-methods": _without_effect("allowed origins may use every method", True),
    "--allowed-headers": _without_effect("allowed origins may send every header", True),
    "--ssl-cert-reqs": _refused("--ssl-ca-certs asks clients for a certificate", "0"),
    "--middleware": _refused("put a proxy in front"),
    "--disable-frontend-multiprocessing": _without_effect(
        "the engine is always a process of its own"
    ),
    "--headless": _refused(_ONE_DEVICE, takes_value=False),
    "--task": _without_effect("every model generates and embeds", True),
    "--runner": _without_effect("every model generates and embeds", True),
    "--convert": _without_effect("every model generates and embeds", True),
    "--trust-remote-code": _without_effect("no code of a model's repository is ever run"),
    "--tokenizer-mode": _without_effect(_OWN_FILES, True),
    "--tokenizer-revision": _refused("name a folder with --tokenizer"),
    "--code-revision": _without_effect("no code of a model's repository is ever run", True),
    "--config-format": _without_effect(_OWN_FILES, True),
    "--model-impl": _without_effect("there is one", True),
    "--load-format": _without_effect(_OWN_FILES, True),
    "--safetensors-load-strategy": _without_effect("files are mapped into memory", True),
    "--model-loader-extra-config": _refused("there is no such loader"),
    "--ignore-patterns": _without_effect("copies in other layouts aren't downloaded", True),
    "--download-dir": _refused(f"{_ENVIRONMENT}: set HF_HUB_CACHE"),
    "--hf-token": _refused(f"{_ENVIRONMENT}: set HF_TOKEN"),
    "--use-tqdm-on-load": _without_effect("a terminal gets progress bars"),
    "--hf-config-path": _refused(_OF_MODEL),
    "--hf-overrides": _refused(_OF_MODEL),
    "--rope-scaling": _refused(_OF_MODEL),
    "--rope-theta": _refused(_OF_MODEL),
    "--override-generation-config": _refused("edit generation_config.json, or set it in requests"),
    "--override-pooler-config": _refused(_OF_MODEL),
    "--pooler-config": _refused(_OF_MODEL),
    "--skip-tokenizer-init": _refused("the server needs the tokenizer", takes_value=False),
    "--enable-prompt-embeds": _refused("prompts are text or token ids", takes_value=False),
    "--logits-processors": _refused("requests have logit_bias, bad_words and grammars"),
    "--logprobs-mode": _refused("logprobs are the model's own", "raw_logprobs"),
    "--enable-sleep-mode": _refused("stop the server and start it again", takes_value=False),
    "--disable-sliding-window": _refused(_OF_MODEL, takes_value=False),
    "--disable-cascade-attn": _without_effect("there is none"),
    "--enforce-eager": _without_effect(_COMPILED),
    "--max-seq-len-to-capture": _without_effect(_COMPILED, True),
    "--compilation-config": _without_effect(_COMPILED, True),
    **{f"-O{level}": _without_effect(_COMPILED) for level in ("", "0", "1", "2", "3")},
    "--guided-decoding-backend": _without_effect("llguidance applies every grammar", True),
    "--structured-outputs-config": _without_effect("llguidance applies every grammar", True),
    "--swap-space": _without_effect(
        "a preempted request is computed again, and nothing is swapped to the host", True
    ),
    "--preemption-mode": _without_effect("a preempted request is computed again", True),
    "--cpu-offload-gb": _refused("weights are on the device", "0"),
    "--kv-offloading-size": _refused("blocks aren't kept on the host", "0"),
    "--calculate-kv-scales": _refused("scales are those of the checkpoint", takes_value=False),
    "--num-gpu-blocks-override": _refused("set --kv-cache-memory"),
    "--prefix-caching-hash-algo": _without_effect("hashes have 128 bits", True),
    "--disable-hybrid-kv-cache-manager": _without_effect("blocks are shared by all layers' groups"),
    "--max-num-partial-prefills": _without_effect("as many as the token budget holds", True),
    "--max-long-partial-prefills": _without_effect("as many as the token budget holds", True),
    "--long-prefill-token-threshold": _without_effect("the token budget limits a chunk", True),
    "--stream-interval": _refused("tokens are sent as they come", "1"),
    "--scheduler-cls": _refused("a policy is a class in scheduler/policies.py"),
    "--speculative-config": _refused("use --speculation and --num-speculative-tokens"),
    "--distributed-executor-backend": _without_effect("there is one device", True),
    "--tensor-parallel-size": _refused(_ONE_DEVICE, "1"),
    "-tp": _refused(_ONE_DEVICE, "1"),
    "--pipeline-parallel-size": _refused(_ONE_DEVICE, "1"),
    "-pp": _refused(_ONE_DEVICE, "1"),
    "--data-parallel-size": _refused(_ONE_DEVICE, "1"),
    "-dp": _refused(_ONE_DEVICE, "1"),
    "--decode-context-parallel-size": _refused(_ONE_DEVICE, "1"),
    "--enable-expert-parallel": _without_effect("there is one device"),
    "--disable-custom-all-reduce": _without_effect("there is one device"),
    "--max-parallel-loading-workers": _without_effect("there is one device", True),
    "--enable-lora": _without_effect("--lora, --lora-folder or --max-loras enable adapters"),
    "--lora-modules": _renamed("--lora"),
    "--limit-mm-per-prompt": _without_effect(_TEXT_ONLY, True),
    "--mm-processor-kwargs": _without_effect(_TEXT_ONLY, True),
    "--mm-processor-cache-gb": _without_effect(_TEXT_ONLY, True),
    "--media-io-kwargs": _without_effect(_TEXT_ONLY, True),
    "--allowed-local-media-path": _without_effect(_TEXT_ONLY, True),
    "--kv-transfer-config": _refused("prompts and outputs are computed in one engine"),
    "--kv-events-config": _refused("/v1/engine/events has them"),
    "--collect-detailed-traces": _without_effect("spans have the engine's times", True),
    "--show-hidden-metrics-for-version": _without_effect("no metric is hidden", True),
    "--additional-config": _refused("there is none", "{}"),
}
NAMES = tuple(OTHERS)

# Values of flags that both have, and what they are called here.
_VALUES: dict[str, dict[str, str]] = {
    "--device": {"cuda": "auto"},
    "--dtype": {"half": "float16", "float": "float32"},
    "--kv-cache-dtype": {"fp8": "fp8_e4m3"},
    "--generation-config": {"vllm": "none"},
    "--tool-call-parser": {
        "llama4_json": "llama3_json",
        "glm47": "glm45",
        "qwen3_xml": "qwen3_coder",
        "functiongemma": "gemma",
    },
    "--reasoning-parser": {
        "glm45": "qwen3",
        "kimi_k2": "qwen3",
        "deepseek_v3": "qwen3",
        "minimax_m2": "deepseek_r1",
        "olmo3": "deepseek_r1",
    },
}
# Variables of ours that aren't flags.
NOT_FLAGS = frozenset({"JAXSERVE_CACHE"})


def find(flag: str) -> VllmFlag | None:
    """What a flag of vLLM's is here; `--no-` and parts after a dot belong to it."""
    name = flag.partition(".")[0]
    for spelled in (name, f"--{name.removeprefix('--no-')}"):
        if (known := OTHERS.get(spelled)) is not None:
            return known
    return None


def our_value(flag: str, value: str) -> str:
    """A value of a flag that both have, in our spelling."""
    return _VALUES.get(flag, {}).get(value, value)


def values(value: str) -> list[str]:
    """The texts of a value that may be a JSON list, as vLLM writes several."""
    try:
        parsed = json.loads(value) if value.startswith("[") else [value]
    except ValueError:
        parsed = [value]
    return [str(one) for one in parsed]
