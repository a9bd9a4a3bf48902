"""A back end that keeps its answers in a folder. In: another back end. Out: the same answers, the second time for free.

Conversations with a simulated user become repeatable: in another worker process, another run, and when an environment
is rebuilt and its actions are replayed. One file a request, named by the hash of all that determines it.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

from jaxagent.auxlm.client import AuxBackend, AuxRequest
from jaxagent.errors import ConfigError, DataError


class StoredBackend:
    """Asks `backend` what the folder does not hold yet. Files appear whole: processes and threads may share it."""

    def __init__(self, backend: AuxBackend, folder: str | Path):
        self.backend = backend
        self.name = backend.name
        self.folder = Path(folder).expanduser()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"auxlm.cache: the folder {self.folder} cannot be made ({error}); name another"
            ) from error

    async def __call__(self, request: AuxRequest) -> str:
        path = self.folder / f"{self._key(request)}.json"
        if path.exists():
            return _read(path)
        answer = await self.backend(request)
        whole = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
        # A lone surrogate stays escaped.
        whole.write_text(json.dumps({"role": request.role, "answer": answer}), "utf-8")
        whole.replace(path)
        return answer

    def close(self) -> None:
        self.backend.close()

    def _key(self, request: AuxRequest) -> str:
        chat = [[message.role, message.content] for message in request.messages]
        content = json.dumps([self.name, request.role, request.attempt, chat])
        return hashlib.sha256(content.encode()).hexdigest()


def _read(path: Path) -> str:
    try:
        return json.loads(path.read_text("utf-8"))["answer"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} holds no stored answer ({error}); delete the file") from error
