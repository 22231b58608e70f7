"""Compiles programs, keeps them on disk, and counts compilations after the engine is ready."""
