"""Tokens that end a model's turn, for models whose files don't name them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxserve.errors import InvalidRequestError
from jaxserve.text.chat_template import ChatTemplate
from jaxserve.text.vocabulary import Vocabulary

# In no vocabulary does one of these go on with the text.
_KNOWN = (
    *("<|im_end|>", "<|endoftext|>"),  # ChatML, GPT-2, Qwen
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|eot|>", "<|eom|>"),  # Llama 3 and 4
    *("<end_of_turn>", "<turn|>", "<eos>"),  # Gemma
    *("</s>", "[EOS]", "<end_of_utterance>"),  # Llama 2, Mistral, SmolVLM
    *("<|return|>", "<|call|>"),  # gpt-oss
    *("<\uff5cend\u2581of\u2581sentence\uff5c>", "<|EOT|>"),  # DeepSeek
    *("<|END_OF_TURN_TOKEN|>", "<|end_of_turn|>"),  # Command R, OpenChat
)
# Phi-3. In gpt-oss, which has <|return|>, it ends a message, and the turn goes on.
_PHI, _HARMONY = "<|end|>", "<|return|>"
_QUESTION, _ANSWER = "The question of the user.", "The answer of the assistant."


def known_ends(vocabulary: Vocabulary) -> list[int]:
    """The well-known end-of-turn tokens among a vocabulary's added tokens."""
    names = _KNOWN if vocabulary.piece_id(_HARMONY) is not None else (*_KNOWN, _PHI)
    ids = (vocabulary.piece_id(name) for name in names)
    return [i for i in ids if i is not None and i in vocabulary.added_ids]


def end_in_template(template: ChatTemplate, vocabulary: Vocabulary) -> int | None:
    """The added token that a chat template writes after an assistant's message, if any."""
    forms: tuple[Callable[[str], Any], ...] = (str, lambda t: [{"type": "text", "text": t}])
    for content in forms:
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": content(_QUESTION)},
            {"role": "assistant", "content": content(_ANSWER)},
        ]
        try:
            text = template.render(messages, add_generation_prompt=False)
        except InvalidRequestError:
            continue
        _, answer, after = text.rpartition(_ANSWER)
        if answer and (after := after.lstrip()):
            first = vocabulary.encode(after, add_special_tokens=False)[0]
            return first if first in vocabulary.added_ids else None
    return None
