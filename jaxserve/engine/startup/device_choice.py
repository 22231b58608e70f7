"""Chooses between the GPU and the CPU of a machine, and never a CPU where a GPU was meant."""

from __future__ import annotations

import os
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Literal

import jax

from jaxserve.errors import ConfigError

# Device nodes by which jax, too, sees that there is a GPU: of the driver, of a container, of WSL 2.
_NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
_DRIVER = Path("/proc/driver/nvidia/version")
# The oldest driver that runs programs of each major version of CUDA (CUDA Toolkit release notes,
# "CUDA driver versions for minor version compatibility").
OLDEST_DRIVER = {"12": 525, "13": 580}


def choose_device(device: Literal["auto", "cpu"]) -> None:
    """Has jax use its CPU if that is asked for, and otherwise a GPU if anything here is meant for
    one.

    Must be called before this process uses jax's devices.

    Raises:
        ConfigError: jax's CUDA plugin is installed or this machine has a GPU, but jax can't use it;
            or JAX_PLATFORMS names what isn't there.
    """
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    error = ""
    try:
        if jax.default_backend() != "cpu":
            return
    except RuntimeError as failed:  # a plugin that was loaded has refused
        error = str(failed)
    if (jax.config.jax_platforms or "").startswith("cpu"):
        return
    plugin = _cuda_plugin()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    visible = not hidden and any(map(os.path.exists, _NODES))
    if problem := gpu_problem(plugin, visible, _driver(), error):
        raise ConfigError(f"{problem}; or choose the CPU with --device cpu")
    if error:
        platforms = jax.config.jax_platforms
        raise ConfigError(
            f"jax can't use what JAX_PLATFORMS={platforms} names ({error.splitlines()[0]}): unset "
            "JAX_PLATFORMS, or choose the CPU with --device cpu"
        )


def gpu_problem(plugin: str | None, visible: bool, driver: str | None, error: str) -> str | None:
    """Why jax computes on a CPU here, and what to change; None if there is nothing but a CPU.

    Args:
        plugin: jax's CUDA plugin and its version, as "jax-cuda13-plugin 0.11.2"; None without one.
        visible: whether this process may use an NVIDIA GPU.
        driver: version of NVIDIA's driver; None if none is loaded.
        error: jax's message; empty if the plugin could not even be loaded.
    """
    if plugin is None and not visible:
        return None
    here = f"NVIDIA's driver {driver}" if driver else "no NVIDIA driver"
    if plugin is None:
        cuda = _newest_cuda(driver)
        return (
            f"this machine has an NVIDIA GPU ({here}), but jax has no CUDA plugin: install "
            f"jaxserve[cuda{cuda}]"
        )
    if not visible:
        return (
            f"{plugin} is installed, but this process sees no NVIDIA GPU ({here}): start the "
            "container with its GPUs (--gpus all), or unset CUDA_VISIBLE_DEVICES"
        )
    major = plugin.split("cuda")[1][:2]
    reason = f": {error}" if error else ", see jax's messages above"
    return (
        f"{plugin} can't use this machine's GPU ({here}){reason}. CUDA {major} needs driver "
        f"{OLDEST_DRIVER[major]} or newer, and a plugin of jax's own version "
        f"({jax.__version__}): update the driver, or install jaxserve[cuda{_newest_cuda(driver)}]"
    )


def _newest_cuda(driver: str | None) -> str:
    """The newest version of CUDA that a driver runs."""
    if driver and int(driver.split(".")[0]) < OLDEST_DRIVER["13"]:
        return "12"
    return "13"


def _driver() -> str | None:
    """The version in a line such as "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05"."""
    try:
        words = _DRIVER.read_text().split()
    except OSError:
        return None
    return next((word for word in words if word.replace(".", "").isdigit() and "." in word), None)


def _cuda_plugin() -> str | None:
    for entry in entry_points(group="jax_plugins"):
        if "cuda" in entry.name and entry.dist is not None:
            return f"{entry.dist.name} {version(entry.dist.name)}"
    return None
