"""Our runner beside plain PyTorch on the same steps: python -m bench.twin."""
