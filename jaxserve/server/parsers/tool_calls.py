"""The formats of tool calls by name; the names are vLLM's, where it has the format."""

from __future__ import annotations

from jaxserve.server.parsers.formats.arrays import GraniteParser, Phi4MiniJsonParser
from jaxserve.server.parsers.formats.deepseek import (
    DeepSeekV3Parser,
    DeepSeekV31Parser,
    DeepSeekV32Parser,
)
from jaxserve.server.parsers.formats.gemma import Gemma4Parser, GemmaParser
from jaxserve.server.parsers.formats.glm45 import Glm45Parser
from jaxserve.server.parsers.formats.hermes import HermesParser
from jaxserve.server.parsers.formats.kimi_k2 import KimiK2Parser
from jaxserve.server.parsers.formats.llama3_json import Llama3JsonParser
from jaxserve.server.parsers.formats.minimax import MinimaxM2Parser, MinimaxParser
from jaxserve.server.parsers.formats.mistral import MistralParser
from jaxserve.server.parsers.formats.pythonic import (
    Llama4PythonicParser,
    Olmo3Parser,
    PythonicParser,
)
from jaxserve.server.parsers.formats.qwen3_coder import Qwen3CoderParser, SeedOssParser
from jaxserve.server.parsers.tool_parser import ToolParser

TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "qwen3_coder": Qwen3CoderParser,
    "seed_oss": SeedOssParser,
    "glm45": Glm45Parser,
    "deepseek_v3": DeepSeekV3Parser,
    "deepseek_v31": DeepSeekV31Parser,
    "deepseek_v32": DeepSeekV32Parser,
    "kimi_k2": KimiK2Parser,
    "minimax": MinimaxParser,
    "minimax_m2": MinimaxM2Parser,
    "granite": GraniteParser,
    "phi4_mini_json": Phi4MiniJsonParser,
    "llama4_pythonic": Llama4PythonicParser,
    "olmo3": Olmo3Parser,
    "gemma": GemmaParser,
    "gemma4": Gemma4Parser,
    "pythonic": PythonicParser,
    # Hermes' format, which a system message explains to models that know no tools.
    "generic": HermesParser,
}
