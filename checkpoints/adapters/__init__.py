"""Adapters (LoRA) in PEFT's format, and the matrices of a model that they may change."""

from checkpoints.adapters.peft_folder import Adapter, read_adapter
from checkpoints.adapters.targets import Target, targets

__all__ = ["Adapter", "Target", "read_adapter", "targets"]
