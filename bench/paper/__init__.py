"""The PagedAttention paper's claim, reproduced: python -m bench.paper."""
