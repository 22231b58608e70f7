"""Chat templates of model families, made small and written anew: each tells the model of tools and
writes calls and results in the form of the family's published template, and leaves out what doesn't
matter for that (dates, defaults, thinking of earlier turns)."""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """Args: tools, reasoning: the parsers that fit it; None for none."""

    template: str
    tools: str | None
    reasoning: str | None = None


_CHATML_END = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_LLAMA_END = (
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_HERMES_CALLS = (
    "{% for c in m.tool_calls or [] %}{% if not loop.first or m.content %}\n{% endif %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}"
)
_CHATML = (
    "{% if tools %}<|im_start|>system\n# Tools\n<tools>{% for t in tools %}\n{{ t | tojson }}"
    "{% endfor %}\n</tools><|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ m.content }}\n</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n"
    "{{ m.content or '' }}CALLS<|im_end|>\n{% endif %}{% endfor %}"
)
_XML_CALLS = (
    "{% for c in m.tool_calls or [] %}\n<PREtool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n"
    "</PREtool_call>{% endfor %}"
)
_DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}<\uff5cUser\uff5c>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<\uff5cAssistant\uff5c>MARK{{ m.content or '' }}"
    "{% if m.tool_calls %}<\uff5ctool\u2581calls\u2581begin\uff5c>{% for c in m.tool_calls %}"
    "<\uff5ctool\u2581call\u2581begin\uff5c>CALL<\uff5ctool\u2581call\u2581end\uff5c>{% endfor %}"
    "<\uff5ctool\u2581calls\u2581end\uff5c>{% endif %}<\uff5cend\u2581of\u2581sentence\uff5c>"
    "{% else %}<\uff5ctool\u2581output\u2581begin\uff5c>{{ m.content }}"
    "<\uff5ctool\u2581output\u2581end\uff5c>{% endif %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<\uff5cAssistant\uff5c>PROMPT{% endif %}"
)
_DSML = "\uff5cDSML\uff5c"

FAMILIES: dict[str, Family] = {
    "Hermes 2 Pro": Family(_CHATML.replace("CALLS", _HERMES_CALLS) + _CHATML_END, "hermes"),
    "Qwen 2.5": Family(_CHATML.replace("CALLS", _HERMES_CALLS) + _CHATML_END, "hermes"),
    "Qwen 3": Family(
        _CHATML.replace("CALLS", _HERMES_CALLS)
        + _CHATML_END.replace(
            "assistant\n",
            "assistant\n{% if enable_thinking is defined and not enable_thinking %}"
            "<think>\n\n</think>\n\n{% endif %}",
        ),
        *("hermes", "qwen3"),
    ),
    "Qwen 3 Coder": Family(
        _CHATML.replace("CALLS", _XML_CALLS.replace("PRE", "")) + _CHATML_END, "qwen3_coder"
    ),
    "Seed OSS": Family(
        _CHATML.replace("CALLS", _XML_CALLS.replace("PRE", "seed:"))
        + _CHATML_END
        + "{# <seed:think> why </seed:think> #}",
        *("seed_oss", "seed_oss"),
    ),
    "Llama 3.1": Family(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' and tools and loop.first %}"
        "<|start_header_id|>user<|end_header_id|>\n\nFunctions:{% for t in tools %}\n"
        "{{ t | tojson }}{% endfor %}\n{{ m.content }}<|eot_id|>{% elif m.tool_calls %}"
        "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
        "{{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>"
        "{% else %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}"
        "<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endif %}{% endfor %}" + _LLAMA_END,
        "llama3_json",
    ),
    "Llama 4": Family(
        "{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% for m in messages %}<|header_start|>{{ m.role }}<|header_end|>\n\n{{ m.content or '' }}"
        "{% if m.tool_calls %}<|python_start|>[{% for c in m.tool_calls %}{{ c.function.name }}("
        "{% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }}"
        "{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}"
        "{% endfor %}]<|python_end|>{% endif %}<|eot|>{% endfor %}"
        "{% if add_generation_prompt %}<|header_start|>assistant<|header_end|>\n\n{% endif %}",
        "llama4_pythonic",
    ),
    "Llama 3.2, pythonic": Family(
        "{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content or '' }}"
        "{% if m.tool_calls %}[{% for c in m.tool_calls %}{{ c.function.name }}("
        "{% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }}"
        "{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}"
        "{% endfor %}]{% endif %}<|eot_id|>{% endfor %}" + _LLAMA_END,
        "pythonic",
    ),
    "Mistral 7B v0.3": Family(
        "{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]"
        "{% endif %}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
        "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]"
        "{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
        "{% if c.id | length != 9 %}{{ raise_exception('ids of nine') }}{% endif %}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, '
        '"id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]</s>'
        "{% elif m.role == 'assistant' %} {{ m.content }}</s>{% endif %}{% endfor %}",
        "mistral",
    ),
    "Magistral": Family(
        "{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]"
        "{% endif %}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]"
        "{{ m.content }}[/SYSTEM_PROMPT]{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]"
        "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
        "{% else %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}[TOOL_CALLS]"
        "{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}</s>{% endif %}"
        "{% endfor %}{# [THINK] why [/THINK] #}",
        *("mistral", "mistral"),
    ),
    "DeepSeek V3": Family(
        _DEEPSEEK.replace("MARK", "")
        .replace("PROMPT", "")
        .replace(
            "CALL",
            "function<\uff5ctool\u2581sep\uff5c>{{ c.function.name }}\n```json\n"
            "{{ c.function.arguments | tojson }}\n```",
        ),
        "deepseek_v3",
    ),
    "DeepSeek V3.1": Family(
        _DEEPSEEK.replace("MARK", "</think>")
        .replace("PROMPT", "{{ '<think>' if thinking else '</think>' }}")
        .replace(
            "CALL",
            "{{ c.function.name }}<\uff5ctool\u2581sep\uff5c>{{ c.function.arguments | tojson }}",
        ),
        *("deepseek_v31", "qwen3"),
    ),
    "DeepSeek V3.2": Family(
        "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
        "{% if m.role == 'assistant' %}<\uff5cAssistant\uff5c></think>{{ m.content or '' }}"
        f"{{% if m.tool_calls %}}\n\n<{_DSML}function_calls>\n{{% for c in m.tool_calls %}}"
        f'<{_DSML}invoke name="{{{{ c.function.name }}}}">\n'
        "{% for k, v in c.function.arguments | items %}"
        f'<{_DSML}parameter name="{{{{ k }}}}" string="{{{{ (v is string) | tojson }}}}">'
        f"{{{{ v if v is string else v | tojson }}}}</{_DSML}parameter>\n{{% endfor %}}"
        f"</{_DSML}invoke>\n{{% endfor %}}</{_DSML}function_calls>{{% endif %}}"
        "<\uff5cend\u2581of\u2581sentence\uff5c>{% else %}<\uff5cUser\uff5c>{{ m.content }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<\uff5cAssistant\uff5c></think>"
        "{% endif %}",
        *("deepseek_v32", "qwen3"),
    ),
    "Granite 3": Family(
        "{% if tools %}<|start_of_role|>available_tools<|end_of_role|>{{ tools | tojson }}"
        "<|end_of_text|>\n{% endif %}{% for m in messages %}<|start_of_role|>"
        "{{ 'tool_response' if m.role == 'tool' else m.role }}<|end_of_role|>"
        "{% if m.tool_calls %}<|tool_call|>[{% for c in m.tool_calls %}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
        "{% if not loop.last %}, {% endif %}{% endfor %}]{% else %}{{ m.content }}{% endif %}"
        "<|end_of_text|>\n{% endfor %}{% if add_generation_prompt %}"
        "<|start_of_role|>assistant<|end_of_role|>{% endif %}"
        "{# Here is my thought process: ... Here is my response: ... #}",
        *("granite", "granite"),
    ),
    "Phi-4 mini": Family(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
        "{% if tools and loop.first %}<|tool|>{{ tools | tojson }}<|/tool|>{% endif %}"
        "{% if m.tool_calls %}<|tool_call|>[{% for c in m.tool_calls %}"
        '{"type": "function", "name": "{{ c.function.name }}", "arguments": '
        "{{ c.function.arguments | tojson }}}{% if not loop.last %}, {% endif %}{% endfor %}]"
        "<|/tool_call|>{% endif %}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        "phi4_mini_json",
    ),
    "GLM 4.5": Family(
        "[gMASK]<sop>{% if tools %}<|system|>\n{{ tools | tojson }}{% endif %}"
        "{% for m in messages %}{% if m.role == 'tool' %}<|observation|>\n<tool_response>\n"
        "{{ m.content }}\n</tool_response>{% else %}<|{{ m.role }}|>\n{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function.name }}\n"
        "{% for k, v in c.function.arguments | items %}<arg_key>{{ k }}</arg_key>\n<arg_value>"
        "{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
        "{# <think></think> #}",
        *("glm45", "qwen3"),
    ),
    "Kimi K2": Family(
        "{% if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>"
        "{% endif %}{% for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>"
        "{{ m.content or '' }}{% if m.tool_calls %}<|tool_calls_section_begin|>"
        "{% for c in m.tool_calls %}<|tool_call_begin|>functions.{{ c.function.name }}:"
        "{{ loop.index0 }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}"
        "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}",
        "kimi_k2",
    ),
    "MiniMax M1": Family(
        "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}"
        "<beginning_of_sentence>{{ m.role }}\n{{ m.content or '' }}{% if m.tool_calls %}"
        "<tool_calls>\n{% for c in m.tool_calls %}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
        "{% endfor %}</tool_calls>{% endif %}<end_of_sentence>\n{% endfor %}"
        "{% if add_generation_prompt %}<beginning_of_sentence>assistant\n{% endif %}",
        "minimax",
    ),
    "MiniMax M2": Family(
        "]~!b[{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}"
        "]~b]{{ m.role }}\n{{ m.content or '' }}{% if m.tool_calls %}\n<minimax:tool_call>\n"
        '{% for c in m.tool_calls %}<invoke name="{{ c.function.name }}">\n'
        '{% for k, v in c.function.arguments | items %}<parameter name="{{ k }}">'
        "{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n{% endfor %}"
        "</minimax:tool_call>{% endif %}[e~[\n{% endfor %}"
        "{% if add_generation_prompt %}]~b]ai\n<think>\n{% endif %}{# </think> #}",
        *("minimax_m2", "qwen3"),
    ),
    "Olmo 3": Family(
        "{% if tools %}<|im_start|>system\n<functions>{{ tools | tojson }}</functions><|im_end|>\n"
        "{% endif %}{% for m in messages %}<|im_start|>"
        "{{ 'environment' if m.role == 'tool' else m.role }}\n{{ m.content or '' }}"
        "{% if m.tool_calls %}<function_calls>{% for c in m.tool_calls %}"
        "{{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}="
        "{{ v | tojson }}{% if not loop.last %}, {% endif %}{% endfor %})"
        "{% if not loop.last %}\n{% endif %}{% endfor %}</function_calls>{% endif %}<|im_end|>\n"
        "{% endfor %}" + _CHATML_END,
        "olmo3",
    ),
    "FunctionGemma": Family(
        "{% macro value(v) %}{% if v is string %}<escape>{{ v }}<escape>{% elif v is mapping %}"
        "{{ '{' }}{% for k, x in v | items %}{{ k }}:{{ value(x) }}{% if not loop.last %},"
        "{% endif %}{% endfor %}{{ '}' }}{% elif v is iterable %}[{% for x in v %}{{ value(x) }}"
        "{% if not loop.last %},{% endif %}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}"
        "{% endmacro %}"
        "{% if tools %}<start_of_turn>developer\n{{ tools | tojson }}<end_of_turn>\n{% endif %}"
        "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<start_function_call>call:"
        "{{ c.function.name }}{{ value(c.function.arguments) }}<end_function_call>{% endfor %}"
        "<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        "gemma",
    ),
    "Gemma 4": Family(
        '{% macro value(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is mapping %}'
        "{{ '{' }}{% for k, x in v | items %}{{ k }}:{{ value(x) }}{% if not loop.last %},"
        "{% endif %}{% endfor %}{{ '}' }}{% elif v is iterable %}[{% for x in v %}{{ value(x) }}"
        "{% if not loop.last %},{% endif %}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}"
        "{% endmacro %}"
        "{% if tools %}<|turn>system\n{{ tools | tojson }}<turn|>\n{% endif %}"
        "{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<|tool_call>call:"
        "{{ c.function.name }}{{ value(c.function.arguments) }}<tool_call|>{% endfor %}"
        "<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}",
        "gemma4",
    ),
    "Gemma 2": Family(
        "{{ bos_token }}{% if messages[0].role == 'system' %}"
        "{{ raise_exception('no system') }}{% endif %}{% for m in messages %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}<start_of_turn>"
        "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
        "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        None,
    ),
    "SmolLM2": Family(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        + _CHATML_END,
        None,
    ),
}
