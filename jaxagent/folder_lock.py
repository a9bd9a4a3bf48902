"""One process a run folder: two that write the same metrics and checkpoints destroy each other's.

    with locked(folder):
        ...

The lock is the kernel's (flock), so it ends with its process, however that ends. Where the file system has none the
run goes on without. A folder that holds nothing else at the end is removed again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from jaxagent.errors import ConfigError

LOCK = ".lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@contextlib.contextmanager
def locked(folder: Path, *, name: str = "run_dir") -> Iterator[None]:
    """Make the folder and hold it. Raises ConfigError if it cannot be written to or another process holds it.

    name: what the user calls the folder.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _hold(path)
    except BlockingIOError:
        raise ConfigError(
            f"{folder} is in use by another process that writes to it; wait for its end, stop it, or choose another "
            f"{name}"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{name}={str(folder)!r} cannot be written to ({error}); choose another {name}"
        ) from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)
        with contextlib.suppress(OSError):  # not empty: the run has begun
            folder.rmdir()


def _hold(path: Path) -> int:
    """An open, locked file that `path` still names: the process that held it before may have removed it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                os.close(file)
                raise
            return file
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(file).st_ino == os.stat(path).st_ino:
                return file
        os.close(file)
