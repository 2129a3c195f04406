"""Secrets are planted wherever a conversation can have one, and searched for in everything that leaves."""

import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentrt import Agent, Toolkit, UserMsg
from agentrt.agent import ContextConfig
from agentrt.errors import Transient
from agentrt.event import CustomEvent
from agentrt.message import Base64Source, DataBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.middleware import (
    EMAIL,
    CacheMiddleware,
    DynamicContextMiddleware,
    LoggingMiddleware,
    MemoryCacheStore,
    MiddlewareBase,
    RedactionMiddleware,
    RetryMiddleware,
    TracingMiddleware,
)
from agentrt.model import ScriptedChatModel
from agentrt.testing import InMemoryStateStore, cassette
from agentrt.tool import FunctionTool, ToolChunk, ToolContext
from agentrt.types import STRUCTURED_OUTPUT
from tests.loop.helpers import call, confirmation_of

PLACES = (
    *("prompt", "question", "observed", "context", "description", "schema", "thinking", "answer", "argument", "result"),
    *("piece", "emitted", "failure", "refusal", "file", "delegated", "childprompt", "childresult", "childanswer"),
    *("feedback", "form", "summary"),
)


def secret(place: str) -> str:
    assert place in PLACES
    return f"{place}.secret@example.com"


class Wire(MiddlewareBase):
    inherited = True

    def __init__(self) -> None:
        self.requests: list[str] = []

    def on_wire(self, agent: Any, record: Any) -> None:
        if record.kind == "request":
            self.requests += [*(message.to_json() for message in record.messages), repr(record.tools)]


class Store(InMemoryStateStore):
    """Keeps whatever was saved at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[str] = []

    async def save(self, state: Any, **options: Any) -> None:
        self.saved.append(state.model_dump_json())
        await super().save(state, **options)


class Entries(MemoryCacheStore):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    async def put(self, key: str, value: str, ttl: float) -> None:
        self.texts.append(value)
        await super().put(key, value, ttl)


async def look(question: str, context: ToolContext) -> Any:
    context.emit(CustomEvent("seen", {"by": secret("emitted")}))
    yield ToolChunk([TextBlock(secret("piece"))])
    yield ToolChunk([DataBlock(Base64Source("aGk=", "text/plain"), name=secret("file"))])
    yield ToolChunk([TextBlock(secret("result"))])


async def fail() -> str:
    raise ConnectionError(secret("failure"))


async def pay(amount: int) -> str:
    return "paid"


def child() -> Agent:
    async def search() -> str:
        return secret("childresult")

    script = [[call("c", "search")], f"I asked {secret('childanswer')}."]
    tools = [FunctionTool(search, is_read_only=True)]
    return Agent("child", f"Never tell {secret('childprompt')}.", ScriptedChatModel(script), Toolkit(tools=tools))


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "description": f"as in {secret('schema')}"}},
    "required": ["name"],
}


async def everything_that_leaves(redaction: RedactionMiddleware | None, folder: Path, log: Any) -> dict[str, str]:
    """Have a conversation with all of that in it; returns what left, by where it went."""
    redact = (lambda text: text) if redaction is None else redaction.text
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    wire, store, entries = Wire(), Store(), Entries()
    layers = [
        TracingMiddleware(tracer_provider=provider, capture_content=True, redact=redact),
        LoggingMiddleware(content=True, redact=redact, level=logging.INFO),
        DynamicContextMiddleware(secret("context")),
        *([] if redaction is None else [redaction]),
        CacheMiddleware(entries, tools={"look": 60}),
        RetryMiddleware(initial_delay=0),
        wire,
    ]
    answer = [ThinkingBlock(secret("thinking")), TextBlock(f"It is {secret('answer')}.")]
    script = [
        Transient(secret("refusal")),
        [*answer, call("1", "look", question=secret("argument"))],
        [call("2", "fail"), call("3", "child", query=f"Ask {secret('delegated')}.")],
        [call("4", "pay", amount=1)],
        f"It is {secret('answer')}.",
        [ToolCallBlock("5", STRUCTURED_OUTPUT, f'{{"name": "{secret("form")}"}}')],
        f"They talked of {secret('summary')}.",
        "Done.",
    ]
    tools = [
        FunctionTool(look, description=f"Look at {secret('description')}.", is_read_only=True),
        FunctionTool(fail, error_detail="type" if redaction else "message"),
        FunctionTool(pay, ask=True),
        child().as_tool("Asks.", name="child"),
    ]
    model = ScriptedChatModel(script)
    agent = Agent(
        "boss",
        f"Be kind to {secret('prompt')}.",
        model,
        Toolkit(tools=tools),
        layers,
        state_store=store,
        context_config=ContextConfig(reserve_ratio=0),  # so that all of it is summarised
    )
    items: list[str] = []

    async def ask(inputs: Any, **options: Any) -> None:
        async for item in agent.reply_stream(inputs, yield_final_msg=True, **options):
            items.append(item.to_json())

    with cassette(folder / "talk.json", mode="rewrite", redact=[EMAIL] if redaction else []):
        await agent.observe(UserMsg("eve", secret("observed")))
        await ask(f"Who is {secret('question')}?")
        await ask(confirmation_of(agent, confirmed=False, feedback=secret("feedback")))
        await ask("And now?", structured_schema=SCHEMA)
        await agent.compress_context()
        await ask("Thanks.")
    assert len(model.calls) == len(script)
    assert ".secret" in agent.state.summary or redaction is not None
    return {
        "requests": "\n".join(wire.requests),
        "events": "\n".join(items),
        "states": "\n".join([*store.saved, agent.state.model_dump_json()]),
        "spans": "".join(span.to_json() for span in exporter.get_finished_spans()),
        "logs": log.text,
        "cache": "\n".join(entries.texts),
        "cassette": (folder / "talk.json").read_text(),
    }


@pytest.mark.parametrize("action", ["redact", "mask", "hash", "token"])
async def test_no_secret_leaves_anywhere(action: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    redaction = RedactionMiddleware([EMAIL], action=action, hash_key="a long secret" if action == "hash" else None)
    leaving = await everything_that_leaves(redaction, tmp_path, caplog)
    for way, text in leaving.items():
        if way == "states":
            if action == "token":  # values are held in the state of the conversation, and are nowhere else
                continue
            text = text.replace(secret("schema"), "")  # of the program, which needs it to take the answer
        assert not [place for place in PLACES if f"{place}.secret" in text], way


async def test_every_secret_was_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    leaving = await everything_that_leaves(None, tmp_path, caplog)
    left = "".join(leaving.values())
    # The text of an error of a provider is shown nowhere in any case.
    assert [place for place in PLACES if f"{place}.secret" not in left] == ["refusal"]
    assert all(".secret@" in text for text in leaving.values())
