"""Writing safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def write_tensors(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    """A safetensors file that others may read as the user's umask says; the library makes its files private."""
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(mode)
