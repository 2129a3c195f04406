"""An agent that does what the test of the page asks for, and a browser that runs one scene on that page."""

import json
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt.message import TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.middleware import LayerTimes
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage
from agentrt.permission import PermissionContext
from agentrt.runs import RunRecorder
from agentrt.serving import create_app
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool, ToolBase
from tests.servers.browser.chromium import Chromium, install_chromium
from tests.servers.node_packages import cache_folder
from tests.serving.conftest import run_server

BROWSER = Path(__file__).parent / "browser.mjs"
SCENES = Path(__file__).parent / "scenes.mjs"
HOSTILE = (
    '<img src=x onerror="window.harmed = 1"><script>window.harmed = 1</script></div>&amp;'
    "\x1b[2J\x1b]0;title\x07 \u202eesrever\u202c {{1+1}} javascript:alert(1)"
)
MARKDOWN = """# Orders

It is **late**, _very_ late: `a_b*c`, not 2 * 3 * 4. snake_case_name

- one
  1. inner
- two [link](javascript:alert(1)) ![image](http://example.com/x.png)

| order | days |
|---|--:|
| A-1 | <b>14</b> |

```
x = "**"
```
"""
POLICY = "Clothing may be returned within 30 days. " * 6 + "Electronics may be returned within 14 days."
MS = 1_000_000


class CutStreams:
    """Leaves streams of events without their end when their scopes are cancelled."""

    def __init__(self, app: ASGIApp, scopes: set[anyio.CancelScope]) -> None:
        self.app, self.scopes = app, scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with anyio.CancelScope() as cut:
            if scope.get("path", "").endswith(("/events", "/lines")):
                self.scopes.add(cut)
            await self.app(scope, receive, send)
        self.scopes.discard(cut)


class Clock:
    """The time of the layers: it moves when they say so."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Delay(MiddlewareBase):
    """Takes so many milliseconds before the inner layers, and one for each item."""

    inherited = False

    def __init__(self, key: str, clock: Clock, before: int) -> None:
        self.key, self.clock, self.before = key, clock, before

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.clock.now += self.before * MS
        async for item in next_handler(**input_kwargs):
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.clock.now += self.before * MS
        return await next_handler(**input_kwargs)


class Shorten(MiddlewareBase):
    inherited = True
    rewrites = ("history",)

    async def on_model_call(self, agent, input_kwargs, next_handler):
        messages = [message.copy() for message in input_kwargs["messages"]]
        for message in messages:
            for block in message.get_content_blocks("tool_result"):
                block.output = block.text[:200]
        return await next_handler(messages=messages)


class StudioModel(ChatModelBase):
    """Answers by what the newest message of the user says; "gate" waits in the middle until it is opened."""

    def __init__(self) -> None:
        super().__init__(model="studio-model", stream=True)
        self.gate = threading.Event()

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> AsyncIterator[ChatResponse]:
        return self._stream(messages[-1])

    async def _stream(self, message: Any) -> AsyncIterator[ChatResponse]:
        text = message.get_text_content() or ""
        usage = ChatUsage(input_tokens=10, output_tokens=5)
        content: list[Any] = [TextBlock(f"You said: {text[:50]}")]
        if message.has_content_blocks("tool_result"):
            result = message.get_content_blocks("tool_result")[-1]
            content = [
                TextBlock(
                    f"The tool said: {result.output if isinstance(result.output, str) else result.output[0].text}"
                )
            ]
        elif text.startswith("pay"):
            # More than what a number of JavaScript holds.
            arguments = {"amount": 2**53 + 1, "note": HOSTILE} if "hostile" in text else {"amount": 3, "note": "lunch"}
            call = ToolCallBlock("c1", "pay", json.dumps(arguments, ensure_ascii=False))
            content = [ThinkingBlock("I think of lunch."), TextBlock("I pay."), call]
        elif text == "delegate":
            content = [ToolCallBlock("d1", "child", '{"query": "pay for tea"}')]
        elif text == "background":
            content = [ToolCallBlock("b1", "crawl", "{}"), ToolCallBlock("b2", "clerk", '{"query": "pay for tea"}')]
        elif text == "phone":
            content = [ToolCallBlock("e1", "phone", '{"number": "12"}')]
        elif text == "hostile":
            content = [ThinkingBlock(HOSTILE), TextBlock(HOSTILE)]
        elif text == "markdown":
            content = [TextBlock(MARKDOWN)]
        elif text.startswith("read"):
            content = [ToolCallBlock("p1", "read_policy", "{}")]
        elif text == "fail":
            raise ValueError("broken")
        elif text == "long":
            content = [TextBlock("x" * 10_000_000)]
        elif text == "gate":
            for word in ("before ", "the ", "gate"):
                yield ChatResponse([TextBlock(word)], is_last=False)
            await anyio.to_thread.run_sync(self.gate.wait, 300, abandon_on_cancel=True)
            self.gate.clear()
            yield ChatResponse([TextBlock(" and after")], is_last=False)
            content = [TextBlock("before the gate and after")]
        yield ChatResponse(content, usage=usage, finished_reason="stop")


async def pay(amount: int, note: str) -> str:
    return f"paid {amount} for {note}"


async def crawl() -> str:
    await anyio.sleep_forever()
    return ""


async def read_policy() -> str:
    return POLICY


class Phone(ToolBase):
    name = "phone"
    description = "Call somebody."
    input_schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"number": {"type": "string"}}}
    is_external_tool = True


def make_app(clock: Clock | None = None, *, is_recorded: bool = False, **options: Any) -> Starlette:
    """Return an application whose session "may-edit" lets answers change arguments."""
    clock, model, store = clock or Clock(), StudioModel(), InMemoryStateStore()
    recorders = [RunRecorder(store, prices={"studio-model": (1.0, 2.0)}), Shorten()] if is_recorded else []
    child, clerk = (Agent(name, "", StudioModel(), tools=[FunctionTool(pay, ask=True)]) for name in ("child", "clerk"))
    layers = [Delay("outer", clock, 30), Delay("middle", clock, 500), Delay("inner", clock, 7)]
    agent = Agent(
        "assistant",
        "",
        model,
        tools=[
            FunctionTool(pay, ask=True),
            child.as_tool("Does what it is asked."),
            clerk.as_tool("Does it in the background.", background=True),
            FunctionTool(crawl, background=True),
            Phone(),
            FunctionTool(read_policy, is_read_only=True),
        ],
        middlewares=[*layers, *recorders, LayerTimes()],
    )
    state = AgentState(session_id="may-edit", permission_context=PermissionContext(allow_edited_input=True))
    anyio.run(store.save, state)
    app = create_app(agent, store=store, **options)

    async def open_gate(_: Request) -> Response:
        model.gate.set()
        return JSONResponse({})

    async def cut(_: Request) -> Response:
        for scope in list(scopes):
            scope.cancel()
        return JSONResponse({})

    scopes: set[anyio.CancelScope] = set()
    app.router.routes += [Route("/open-gate", open_gate, methods=["POST"]), Route("/cut", cut, methods=["POST"])]
    app.add_middleware(CutStreams, scopes)
    return app


make_recorded_app = partial(make_app, is_recorded=True)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def chromium(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Chromium:
    return install_chromium(cache_folder(request.config, tmp_path_factory, "browser"))


@pytest.fixture(scope="session")
def browser(chromium: Chromium) -> Iterator[str]:
    """Run the browser that all scenes share, each with storage of its own; returns where they find it."""
    spec = {"packages": str(chromium.packages), "program": str(chromium.program), "environment": chromium.environment}
    pipe = subprocess.PIPE
    with subprocess.Popen(["node", BROWSER, json.dumps(spec)], stdin=pipe, stdout=pipe, text=True) as process:
        yield process.stdout.readline().strip()
        process.communicate()


@pytest.fixture
def play(chromium: Chromium, browser: str) -> Callable[..., Any]:
    """Serve the application, and play a scene on its page; returns what the scene has found."""

    def run(scene: str, app: Starlette) -> Any:
        with run_server(app) as url:
            spec = {"scene": scene, "url": url, "packages": str(chromium.packages), "browser": browser}
            finished = subprocess.run(
                ["node", SCENES, json.dumps(spec)], capture_output=True, text=True, timeout=900, check=False
            )
        assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
        return json.loads(finished.stdout)

    return run
