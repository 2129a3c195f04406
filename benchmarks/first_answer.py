"""The first answer of a model over HTTP in a fresh process: the imports, the agent, one streamed request."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.processes import run_python

__all__ = ["PROGRAMS", "measure_first_answer"]

_TIMED = """
from time import perf_counter
start = perf_counter()
import asyncio
{program}
assert asyncio.run(main("http://127.0.0.1:{port}/v1")) == "Hello."
print((perf_counter() - start) * 1e6)
"""

# What the answer takes without any framework: one client, one request, its lines read.
_PLAIN = """
import httpx2, json
async def main(url):
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    words = []
    async with httpx2.AsyncClient(headers={"authorization": "Bearer k"}) as client:
        async with client.stream("POST", url + "/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    words += [choice["delta"].get("content", "") for choice in json.loads(line[6:])["choices"]]
    return "".join(words)
"""

_AGENT = """
from agentrt import Agent
from agentrt.model import OpenAIChatModel
async def main(url):
    async with Agent("a", "", OpenAIChatModel("m", base_url=url, api_key="k")) as agent:
        return (await agent.reply("Hi")).get_text_content()
"""

PROGRAMS: Mapping[str, str] = {"httpx2": _PLAIN, "agentrt": _AGENT}


class _Answers(BaseHTTPRequestHandler):
    """Answers each request with the same three events."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, reason in (({"role": "assistant", "content": "Hello"}, None), ({"content": "."}, "stop")):
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def _serve() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def measure_first_answer(batches: int = 3) -> dict[str, float]:
    """Return the microseconds until the answer is there, the least of each side; the sides take turns."""
    sample: dict[str, float] = {}
    with _serve() as port:
        for _ in range(batches):
            for side, program in PROGRAMS.items():
                (microseconds,) = run_python(_TIMED.format(program=program, port=port))
                sample[f"first answer/{side}"] = min(sample.get(f"first answer/{side}", float("inf")), microseconds)
    return sample
