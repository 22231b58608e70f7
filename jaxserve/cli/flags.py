"""Makes command-line flags from the fields of settings classes, one flag for each field.

A subcommand adds flags for the fields that it needs, and build() returns the dataclass.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import typing
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from jaxserve.config import EngineConfig, ReasoningParser, ToolCallParser

Settings = TypeVar("Settings")


def _names(choices: Any) -> str:
    return ", ".join(typing.get_args(choices))


HELP = {
    # EngineConfig
    "model": "a folder, a GGUF file, a hub name (owner/name), or a name that `pull` knows",
    "revision": "branch, tag or commit of a model of the hub",
    "tokenizer": "take vocabulary and chat template from this folder, GGUF file or hub name",
    "device": "auto uses the GPU of a machine that has one; cpu doesn't",
    "dtype": "type of weights, activations and KV cache: auto, float32, bfloat16 or float16",
    "weights": "weights stay in the bits they are stored in, or are widened at load; auto is "
    "stored, but widened on a CPU with another dtype than float32",
    "quantization": "quantise a checkpoint of floats when it is loaded: fp8, int8 or int4",
    "kv_cache_dtype": "type of the KV cache: auto (dtype), fp8_e4m3 or fp8_e5m2",
    "max_model_len": "most tokens of prompt and output together (default: the model's own)",
    "max_num_seqs": "most sequences that run at once (default: 256 on a GPU, 32 on a CPU)",
    "max_num_batched_tokens": "token budget of a step (default: 8192 on a GPU, 512 on a CPU)",
    "block_size": "tokens that a KV block holds",
    "kv_cache_memory": "size of the KV cache, as 2GiB (default: 1GiB on a CPU, the rest of a GPU)",
    "gpu_memory_utilization": "share of the GPU's memory that the engine may use",
    "max_queued_requests": "requests that may wait; more get 429",
    "scheduling_policy": "order of waiting requests: fcfs, priority or longest-prefix",
    "enable_prefix_caching": "reuse the KV cache of prompts that begin with the same tokens",
    "threads": "threads that compute on a CPU (default: its cores, or a container's share)",
    "overlap": "plan a step while the one before it runs",
    "decode_steps": "tokens a row in one dispatch, while no request waits and no output can end",
    "speculation": "guess the next tokens and verify several in a step: ngram (what followed the "
    "last tokens where they stood before) or suffix (in recent outputs too)",
    "num_speculative_tokens": "guesses of a sequence in a step (default: up to 8, by how many are "
    "right)",
    "forbid_compile": "fail a step that would compile after ready",
    "seed": "from which the seeds of requests without one are drawn",
    "lora": "adapters in PEFT's format, each as NAME=FOLDER; a request's model names one",
    "lora_folder": "watch this folder: each folder in it with an adapter is one, of its name",
    "max_loras": "most different adapters in a step (default: 8 with an adapter or a folder of "
    "them, else none can be used)",
    "max_lora_rank": "most rank of an adapter",
    "max_cpu_loras": "most adapters in host memory (default: 64, or max-loras)",
    "lora_targets": "modules that adapters may change, as q_proj v_proj (default: all)",
    "generation_config": "auto uses the sampling defaults of the model's generation_config.json or "
    "card; none doesn't",
    # ServerConfig
    "host": "address to listen on",
    "port": "port to listen on; 0 chooses a free one",
    "uds": "listen on a Unix domain socket at this path instead of host and port",
    "root_path": "the path under which a proxy serves this server, for its API description",
    "served_model_names": "names that requests may use (default: the model's own)",
    "max_body_bytes": "larger request bodies are refused",
    "max_choices": "most choices in one request",
    "max_logprobs": "most logprobs a token in one request",
    "max_stop_strings": "most stop strings in one request",
    "max_output_tokens": "most tokens of a choice (default: what the model's context leaves)",
    "tool_call_parser": f"format of the model's tool calls: {_names(ToolCallParser)}; auto takes "
    "it from the chat template; generic explains tools to any model",
    "reasoning_parser": f"how the model marks its reasoning: {_names(ReasoningParser)}; auto "
    "takes it from the chat template",
    "chat_template": "file of a chat template (Jinja) to use instead of the model's own",
    "api_workers": "HTTP server processes; they share one engine",
    "stall_timeout": "seconds without a message from a busy engine after which /health answers 503",
    "drain_timeout": "seconds that running requests have to finish when the server stops",
    "engine_restarts": "restarts of the engine when it dies, before the server exits",
    "api_key": "accept requests with this key; with any key, here or in $JAXSERVE_API_KEY, others "
    "are refused",
    "api_key_file": "a file with such keys, one a line",
    "salt_cache_by_key": "share cached prefixes only between requests with the same key",
    "ssl_certfile": "serve HTTPS with this certificate (PEM)",
    "ssl_keyfile": "the certificate's private key, if it isn't in the same file",
    "ssl_ca_certs": "ask clients for a certificate that one of these has signed",
    "allowed_origins": "web pages from these origins may use the server; * is any",
    "allow_credentials": "browsers may send cookies with those pages' requests",
    "strict_fields": "refuse unknown fields of requests instead of ignoring them",
    "sse_keepalive": "seconds after which a silent stream gets a comment; 0: never",
    "max_stored_responses": "responses kept in memory for previous_response_id; 0: none",
    "page": "serve a page at / on which people try the model and see the block pool",
    "access_log": "one line of JSON a request, on stderr",
    "log_prompts": "put the request's body into that line",
    "metrics_prefix": "prefix of the metrics that vLLM has too",
    "otlp_traces_endpoint": "URL of an OpenTelemetry collector that gets traces, over HTTP",
    "enable_dev_endpoints": "serve the endpoints for operators, such as /reset_prefix_cache",
    "profile_dir": "folder to which /start_profile writes",
    # SamplingParams
    "temperature": "sampling temperature; 0 is greedy",
    "top_p": "keep the likeliest tokens that together reach this probability",
    "top_k": "keep this many of the likeliest tokens; 0 keeps all",
    "min_p": "keep tokens at least this many times as likely as the likeliest",
    "max_tokens": "most tokens to generate",
}

SIZES = frozenset({"kv_cache_memory", "max_body_bytes"})
COUNTS = frozenset({"max_model_len", "max_num_batched_tokens"})

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?)(i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of a size as people write it: 512MiB, 2GB, 1.5g, 4096. Units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"not a size: {text!r}; write it as 512MiB or 2GiB")
    return int(float(match["number"]) * _UNITS[match["unit"].upper()])


def parse_count(text: str) -> int:
    """A number as people write it, and vLLM reads it: 32768, 32k (of 1000), 32K (of 1024)."""
    match = re.fullmatch(r"(?P<number>\d+(\.\d+)?)(?P<unit>[kKmM]?)", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}; write it as 32768 or 32K")
    units = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
    return int(float(match["number"]) * units[match["unit"]])


def format_size(size: int) -> str:
    """The shortest exact spelling, such as 8MiB."""
    unit = next(u for u in "TGMK" if size % _UNITS[u] == 0) if size and size % 1024 == 0 else ""
    return f"{size // _UNITS[unit]}{unit}{'iB' if unit else ''}"


def add_model(parser: argparse.ArgumentParser, settings: type) -> None:
    """Adds MODEL as an optional positional argument, which --model gives, too."""
    default, where = _fields(settings)["model"].default, _destination(settings, "model")
    # Not given, it mustn't overwrite what --model says.
    parser.add_argument(
        where,
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help=_help("model", default),
    )
    parser.add_argument("--model", dest=where, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_flags(
    parser: argparse.ArgumentParser,
    settings: type,
    *,
    only: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    unset: Iterable[str] = (),
    **defaults: Any,
) -> None:
    """Adds one flag for each field of a dataclass. Its help is the field's own (`help` in its
    metadata), or HELP's.

    Args:
        only: the fields to add; all but `skip` if absent.
        unset: fields without a default here; build() gets their values from its `defaults`.
        defaults: fields whose default differs from the class's.
    """
    if settings is EngineConfig and only is None:
        parser.add_argument(
            "--config",
            metavar="FILE",
            help="a YAML file with any of these settings, as `max-num-seqs: 8`; the command line "
            "and variables such as JAXSERVE_MAX_NUM_SEQS take precedence",
        )
    hints = typing.get_type_hints(settings)
    fields = _fields(settings)
    for name in fields if only is None else only:
        if name in skip:
            continue
        default = defaults.get(name, fields[name].default)
        if name in unset or default == ():  # argparse extends a list, not a tuple
            default = argparse.SUPPRESS
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            dest=_destination(settings, name),
            default=default,
            help=_help(name, default, fields[name].metadata.get("help")),
            **_reader(name, hints[name]),
        )


def build(settings: type[Settings], args: argparse.Namespace, **defaults: Any) -> Settings:
    """Makes the dataclass from the flags that were added for its fields.

    Args:
        defaults: of fields that add_flags() left unset.
    """
    added = {name: _destination(settings, name) for name in _fields(settings)}
    given = {name: getattr(args, where) for name, where in added.items() if hasattr(args, where)}
    frozen = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    return settings(**defaults | frozen)


def words(settings: Any) -> list[str]:
    """The command-line words for these settings; defaults are left out."""
    given: list[str] = []
    for name, field in _fields(type(settings)).items():
        value, flag = getattr(settings, name), name.replace("_", "-")
        if value == field.default:
            continue
        if isinstance(value, bool):
            given.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            for one in value if isinstance(value, tuple) else (value,):
                given += [f"--{flag}", str(one)]
    return given


def _destination(settings: type, name: str) -> str:
    """The attribute that argparse sets. It names the class, since two may have a field `seed`."""
    return f"{settings.__name__}.{name}"


def _fields(settings: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(settings)}


def _reader(name: str, hint: Any) -> dict[str, Any]:
    """The arguments of add_argument() for a field of this type."""
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint == tuple[str, ...]:
        if (
            name == "api_key"
        ):  # one for each flag, so that the next word doesn't become a key by accident
            return {"action": "append", "metavar": "KEY"}
        return {"action": "extend", "nargs": "+", "metavar": "NAME"}
    options = (hint,) if typing.get_origin(hint) is Literal else typing.get_args(hint) or (hint,)
    plain = next(kind for kind in options if kind is not type(None))
    if typing.get_origin(plain) is Literal:
        return {"choices": typing.get_args(plain), "metavar": "NAME"}
    if plain not in (int, float, str):
        raise TypeError(f"{name}: no flag for a field of type {hint}")
    reader: Callable[[str], Any] = plain
    if name in SIZES or name in COUNTS:
        reader = parse_size if name in SIZES else parse_count
    return {"type": reader, "metavar": "SIZE" if name in SIZES else plain.__name__.upper()}


def _help(name: str, default: Any, own: str | None = None) -> str:
    text = (own or HELP[name]).replace("%", "%%")
    if default in (None, (), argparse.SUPPRESS):
        return text
    return f"{text} (default: {format_size(default) if name in SIZES else default})"
