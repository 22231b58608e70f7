"""Sentencepiece models in files: tokenizer.model of a Hugging Face folder, and GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

from checkpoints.gguf_header import GGUFHeader
from jaxserve.errors import CheckpointError
from jaxserve.text.added_tokens import read_added_tokens
from jaxserve.text.sentencepiece_vocabulary import SPACE, SentencePieceVocabulary

_Piece = ModelProto.SentencePiece  # tokenizer.ggml.token_type has the numbers of its types


def read_folder(
    folder: Path, config: Mapping[str, Any], named: Mapping[str, str]
) -> tuple[SentencePieceVocabulary, dict[str, str]]:
    """The vocabulary of a Hugging Face folder with a tokenizer.model, and the model's own names
    (bos_token, eos_token) of tokens that it has.

    Args:
        config: tokenizer_config.json.
        named: the tokens that it names.

    Raises:
        CheckpointError: a file is damaged.
        UnsupportedModelError: as SentencePieceVocabulary.
    """
    file = folder / "tokenizer.model"
    model = _parse(file.read_bytes(), str(file))
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    spec = model.trainer_spec
    own = {"bos_token": spec.bos_piece, "eos_token": spec.eos_piece, "unk_token": spec.unk_piece}
    own = {name: piece for name, piece in own.items() if piece in ids}
    added = read_added_tokens(folder, ids)
    ids |= {token.content: i for i, token in added.items()}
    adds_bos = config.get("add_bos_token") is not False
    wanted = {"bos": adds_bos, "eos": bool(config.get("add_eos_token"))}
    tokens = own | dict(named)
    around = {name: ids.get(tokens.get(f"{name}_token", "")) for name in wanted if wanted[name]}
    vocabulary = SentencePieceVocabulary(
        model,
        added,
        bos=around.get("bos"),
        eos=around.get("eos"),
        prefixes_all=bool(config.get("legacy")),
        source=str(file),
    )
    return vocabulary, own


def read_gguf(
    header: GGUFHeader, is_bpe: bool, around: Mapping[str, int]
) -> SentencePieceVocabulary:
    """The vocabulary of a GGUF file, as a sentencepiece model.

    Args:
        is_bpe: BPE instead of Unigram.
        around: ids of the tokens to add around each text, by name: bos, eos.

    Raises:
        CheckpointError: the vocabulary is incomplete or contradicts itself.
    """
    return SentencePieceVocabulary(
        _gguf_model(header, is_bpe),
        {},
        bos=around.get("bos"),
        eos=around.get("eos"),
        source=str(header.path),
    )


def _parse(data: bytes, source: str) -> ModelProto:
    """The content of a tokenizer.model file.

    Raises:
        CheckpointError: it isn't one, or is damaged.
    """
    try:
        model = ModelProto.FromString(data)
    except Exception:  # protobuf's DecodeError, whose place differs between its implementations
        model = ModelProto()
    if not model.pieces:
        raise CheckpointError(f"{source}: not a sentencepiece model, or damaged")
    return model


def _gguf_model(header: GGUFHeader, is_bpe: bool) -> ModelProto:
    """The sentencepiece model that the file was converted from, as far as the file has it."""
    tokens: list[str] = header.require("tokenizer.ggml.tokens", list)
    scores: list[float] = header.require("tokenizer.ggml.scores", list)
    kinds: list[int] = header.require("tokenizer.ggml.token_type", list)
    if not len(tokens) == len(scores) == len(kinds):
        raise CheckpointError(
            f"{header.path}: damaged vocabulary: {len(tokens)} tokens with {len(scores)} scores "
            f"and {len(kinds)} types"
        )
    kinds = list(kinds)
    if _Piece.UNKNOWN not in kinds:  # some files have it as a control token
        unknown = header.token_id("unknown")
        if unknown is None and "<unk>" in tokens:
            unknown = tokens.index("<unk>")
        if unknown is not None:
            kinds[unknown] = _Piece.UNKNOWN
    model = ModelProto()
    for token, score, kind in zip(tokens, scores, kinds, strict=True):
        # llama.cpp's converter writes spaces into user-defined pieces.
        piece = token if kind == _Piece.CONTROL else token.replace(" ", SPACE)
        try:
            model.pieces.add(piece=piece, score=score, type=kind)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{header.path}: damaged vocabulary ({error})") from None
    model.trainer_spec.model_type = TrainerSpec.BPE if is_bpe else TrainerSpec.UNIGRAM
    model.trainer_spec.byte_fallback = _Piece.BYTE in kinds
    spec = model.normalizer_spec
    spec.add_dummy_prefix = header.get("tokenizer.ggml.add_space_prefix", bool, True)
    spec.remove_extra_whitespaces = header.get(
        "tokenizer.ggml.remove_extra_whitespaces", bool, False
    )
    spec.precompiled_charsmap = bytes(header.get("tokenizer.ggml.precompiled_charsmap", list, []))
    return model
