"""Test session settings. Set through the environment, so that host-plane tests never import jax.

Eight CPU devices, rank promotion raises, a persistent compilation cache, jaxtyping annotations checked by beartype,
warnings of our own code are errors (pyproject.toml).
"""

import os
from pathlib import Path

from jaxtyping import install_import_hook

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
# XLA's CPU threads: independent collectives of a program each wait in one thread a device, and with fewer threads than
# that they wait for each other for ever.
os.environ.setdefault("NPROC", "32")
os.environ.setdefault("PJRT_NPROC", "32")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# The packages whose functions take arrays. The hook slows imports, so the others do without it.
ARRAY_PACKAGES = (
    "batch",
    "credit",
    "decode",
    "eval",
    "kernels",
    "learn",
    "mesh",
    "model",
    "rollout",
    "types",
)
install_import_hook([f"jaxagent.{name}" for name in ARRAY_PACKAGES], "beartype.beartype")
