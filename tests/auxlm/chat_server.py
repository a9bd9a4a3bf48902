"""A real HTTP server that speaks the chat-completions protocol, with faults on demand."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def completion(content=None, *, calls=(), finish="stop", usage=(20, 4), **message):
    """A chat completion's body. calls: (name, arguments as text)."""
    said = {"role": "assistant", "content": content, **message}
    if calls:
        said["tool_calls"] = [
            {"id": f"id{n}", "type": "function", "function": {"name": name, "arguments": text}}
            for n, (name, text) in enumerate(calls)
        ]
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]} if usage else None
    return {"choices": [{"message": said, "finish_reason": finish}], "usage": counts}


class ChatServer:
    """`reply(body, number)` gives a completion, (status, headers, bytes or dict), or a function of the handler.

    requests: (path, headers, body) in the order in which they came; `number` counts from 0. times: when they came.
    """

    def __init__(self, reply):
        self.reply, self.requests, self.times = reply, [], []
        self.released = threading.Event()  # ends what `hang` holds
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(outer.requests)
                    outer.requests.append((self.path, dict(self.headers), body))
                    outer.times.append(time.monotonic())
                    answer = outer.reply(body, number)
                if callable(answer):
                    answer(self)
                    return
                status, headers, data = answer if isinstance(answer, tuple) else (200, {}, answer)
                data = data if isinstance(data, bytes) else json.dumps(data).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def seen(self):
        """The bodies."""
        return [body for _, _, body in self.requests]

    @property
    def headers(self):
        return [headers for _, headers, _ in self.requests]

    def hang(self, handler):
        """A reply that does not come before the server is released."""
        self.released.wait(60)

    def close(self):
        self.released.set()
        self.http.shutdown()
        self.http.server_close()


@contextmanager
def serving(monkeypatch):
    """A function that starts a `ChatServer` with a reply; all are closed at the end."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = []

    def start(reply):
        servers.append(ChatServer(reply))
        return servers[-1]

    try:
        yield start
    finally:
        for server in servers:
            server.close()
