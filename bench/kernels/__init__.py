"""Attention, matrix products and sampling alone: on a CPU, on a GPU, or compiled for one."""
