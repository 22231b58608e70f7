"""How much runs at once."""

from __future__ import annotations

import os

# Calls that a product or an attention is made of: XLA runs those that don't need each other at once.
PARTS = min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
