import os

import numpy as np
from safetensors.numpy import load_file

from jaxagent.model.tensor_files import write_tensors


def test_what_is_exported_may_be_read_by_whom_the_umask_lets(tmp_path):
    before = os.umask(0o027)
    try:
        write_tensors({"a": np.arange(3.0)}, tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o640
    np.testing.assert_array_equal(load_file(tmp_path / "model.safetensors")["a"], np.arange(3.0))
