"""Logging writes one line for each noteworthy event."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from agentrt import Agent
from agentrt.errors import MiddlewareConfigError, Transient
from agentrt.event import CustomEvent, ModelCallRetryEvent
from agentrt.message import TextBlock
from agentrt.middleware import LoggingMiddleware, MiddlewareBase, RetryMiddleware
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.tool import FunctionTool, ToolContext
from agentrt.types import STRUCTURED_OUTPUT
from tests.loop.helpers import add, agent_of, call, items_of
from tests.middleware.fake_time import Clock, Least

CANARY = "canary-0123456789"


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Iterator[list[logging.LogRecord]]:
    caplog.set_level(logging.INFO, "agentrt")
    handler = Kept()
    logging.getLogger("agentrt").addHandler(handler)
    yield handler.records
    logging.getLogger("agentrt").removeHandler(handler)


def words(records: list[logging.LogRecord]) -> list[str]:
    return [record.getMessage().split()[0] for record in records if hasattr(record, "event")]


def fields(record: logging.LogRecord, *names: str) -> list[Any]:
    return [getattr(record, name, None) for name in names]


async def test_each_event_of_a_reply_is_one_line(records: list[logging.LogRecord]) -> None:
    whole = ChatResponse([TextBlock("It is 3.")], usage=ChatUsage(20, 5, 4), finished_reason="stop")
    script = [[call("1", "add", a=1, b=2)], Transient("503"), whole]
    agent = agent_of(script, add, middlewares=[LoggingMiddleware(clock=Clock()), RetryMiddleware(random=Least())])
    await agent.reply("go")
    expected = ["REPLY_START", "MODEL_CALL_END", "TOOL_RESULT_END", "MODEL_CALL_RETRY", "MODEL_CALL_END", "REPLY_END"]
    assert words(records) == expected
    ended = records[-2]
    assert fields(ended, "event", "agent_name", "model", "input_tokens", "cache_input_tokens", "seconds") == [
        *("MODEL_CALL_END", "tester", "scripted", 20, 4, 0)
    ]
    assert fields(records[2], "tool_name", "state") == ["add", "success"]
    assert fields(records[3], "reason", "attempt") == ["Transient", 1]
    assert records[3].levelname == "WARNING"
    reply = agent.state.context[-1].id
    assert {(record.reply_id, record.session_id) for record in records} == {(reply, agent.state.session_id)}
    assert ended.getMessage().startswith(f"MODEL_CALL_END agent_name=tester reply_id={reply} ")


class Talkative(MiddlewareBase):
    """Quotes a provider in the reason of a retry, as a user's own middleware might."""

    emits = True

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        agent.run.emit(ModelCallRetryEvent(f"503 {CANARY}"))
        return await next_handler()


async def everything(**options: Any) -> Agent:
    """Reply with a canary in every place that can hold content."""

    async def look(text: str, context: ToolContext) -> str:
        context.emit(CustomEvent("looked", CANARY))
        return f"found {CANARY}"

    async def fail(text: str) -> str:
        raise ValueError(CANARY)

    script = [
        [call("1", "look", text=CANARY), call("2", "fail", text=CANARY)],
        Transient(CANARY),
        f"It is {CANARY}.",
        Transient(CANARY),
    ]
    layers = [LoggingMiddleware(**options), Talkative(), RetryMiddleware(1, random=Least())]
    agent = agent_of(script, look, fail, middlewares=layers)
    await agent.reply(f"go {CANARY}")
    with pytest.raises(Exception, match="no response left"):
        await agent.reply(f"go {CANARY}")
    return agent


def all_texts(records: list[logging.LogRecord]) -> str:
    # What the runtime itself logs of a failing tool is for its own tests.
    return "\n".join(json.dumps(vars(record), default=str) for record in records if hasattr(record, "event"))


async def test_no_content_is_logged_by_default(records: list[logging.LogRecord]) -> None:
    await everything()
    assert CANARY not in all_texts(records)
    assert "REPLY_FAILED" in words(records)
    assert "CUSTOM" in words(records)


async def test_with_content_true_the_content_is_logged_redacted(records: list[logging.LogRecord]) -> None:
    await everything(content=True, redact=lambda text: text.replace(CANARY, "***"))
    logged = all_texts(records)
    assert CANARY not in logged
    for text in ("go ***", "found ***", "It is ***.", '{\\"text\\": \\"***\\"}'):
        assert text in logged.replace("\\\\", "\\"), text


async def test_a_redactor_that_fails_shows_nothing_and_breaks_nothing(records: list[logging.LogRecord]) -> None:
    def broken(text: str) -> str:
        raise ValueError(text)

    await everything(content=True, redact=broken)
    assert CANARY not in all_texts(records)
    assert "[not shown: redact failed]" in all_texts(records)


async def test_a_handler_that_fails_breaks_no_reply() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the disk is full")

    logger = logging.Logger("broken")
    logger.addHandler(Broken())
    agent = agent_of(["hello"], middlewares=[LoggingMiddleware(logger)])
    assert (await agent.reply("go")).get_text_content() == "hello"


async def test_the_name_of_an_unknown_tool_counts_as_content(records: list[logging.LogRecord]) -> None:
    calls = [call("1", CANARY), call("2", "add", a=1, b=2)]
    await agent_of([calls, "done"], add, middlewares=[LoggingMiddleware()]).reply("go")
    assert CANARY not in all_texts(records)
    assert {record.tool_name for record in records if hasattr(record, "tool_name")} == {"_OTHER", "add"}


async def test_the_tools_of_one_reply_or_round_have_names(records: list[logging.LogRecord]) -> None:
    class Adds(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            return await next_handler(tools=[*input_kwargs["tools"], FunctionTool(add)])

    answers = [[call("1", "add", a=1, b=2)], [call("2", STRUCTURED_OUTPUT, value=3)]]
    await agent_of(answers, middlewares=[LoggingMiddleware(), Adds()]).reply("go", int)
    names = [record.tool_name for record in records if hasattr(record, "tool_name")]
    assert names == ["add", STRUCTURED_OUTPUT]


async def test_with_content_the_name_of_an_unknown_tool_is_logged(records: list[logging.LogRecord]) -> None:
    await agent_of([[call("1", "no-such-tool")], "done"], middlewares=[LoggingMiddleware(content=True)]).reply("go")
    assert "no-such-tool" in [getattr(record, "tool_name", None) for record in records]


async def test_a_tool_name_from_a_model_cannot_forge_a_log_line(records: list[logging.LogRecord]) -> None:
    layers = [LoggingMiddleware(content=True)]
    await agent_of([[call("1", "x\nREPLY_END forged=1")], "done"], middlewares=layers).reply("go")
    assert not any("\n" in record.getMessage() for record in records if hasattr(record, "event"))


@pytest.mark.parametrize(
    ("leave", "word"), [("close", "REPLY_CLOSED"), ("cancel", "REPLY_CANCELLED"), ("fail", "REPLY_FAILED")]
)
async def test_a_reply_that_stops_short_is_logged(leave: str, word: str, records: list[logging.LogRecord]) -> None:
    async def never(messages: Any, tools: Any) -> str:
        await anyio.sleep_forever()
        return ""

    class Fails(MiddlewareBase):
        async def on_reasoning(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            raise ValueError(CANARY)
            yield

    if leave == "fail":
        agent = agent_of(["x"], middlewares=[LoggingMiddleware(), Fails()])
        with pytest.raises(ValueError, match=CANARY):
            await agent.reply("go")
        assert records[-1].error_type == "ValueError"  # type: ignore[attr-defined]  # from `extra`
    elif leave == "cancel":
        with anyio.move_on_after(0.01):
            await agent_of([never], middlewares=[LoggingMiddleware()]).reply("go")
    else:
        async with agent_of(["one two"], middlewares=[LoggingMiddleware()]).reply_stream("go") as events:
            async for event in events:
                if event.type == "TEXT_BLOCK_DELTA":
                    break
    assert words(records)[-1] == word


async def test_a_question_to_the_user_is_logged_with_its_tool_names(records: list[logging.LogRecord]) -> None:
    agent = agent_of([[call("1", "add", a=1, b=2)]], FunctionTool(add, ask=True), middlewares=[LoggingMiddleware()])
    await agent.reply("go")
    assert words(records)[-1] == "REQUIRE_USER_CONFIRM"
    assert records[-1].tool_names == ["add"]  # type: ignore[attr-defined]  # from `extra`


async def test_level_and_logger_are_options(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mine")
    layer = LoggingMiddleware(logging.getLogger("mine"), level=logging.DEBUG)
    await items_of(Agent("a", model=ScriptedChatModel(["hello"]), middlewares=[layer]))
    assert {(record.name, record.levelname) for record in caplog.records} == {("mine", "DEBUG")}


@pytest.mark.parametrize("content", [False, True])
async def test_a_log_of_failures_alone_has_them_whole(content: bool) -> None:
    def divide(a: int, b: int) -> float:
        return a / b

    logger, handler = logging.getLogger("tests.failures"), Kept()
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    layers = [LoggingMiddleware(logger, content=content, clock=Clock()), RetryMiddleware(random=Least())]
    calls = [call("1", "divide", a=4, b=2), call("2", "divide", a=4, b=0)]
    await agent_of([calls, Transient("503"), "done"], divide, middlewares=layers).reply("go")
    assert words(handler.records) == ["TOOL_RESULT_END", "MODEL_CALL_RETRY"]
    failed, retried = handler.records
    assert fields(failed, "tool_name", "state", "seconds") == ["divide", "error", 0]
    assert fields(failed, "tool_input") == [json.dumps({"a": 4, "b": 0}) if content else None]
    assert (fields(failed, "tool_output") != [None]) == content
    assert fields(retried, "model", "attempt") == ["scripted", 1]


async def test_a_logger_that_is_off_leaves_the_reply_alone() -> None:
    logger, readings = logging.getLogger("tests.off"), list[int]()
    middleware = LoggingMiddleware(logger, clock=lambda: float(readings.append(1) or 0))  # type: ignore[func-returns-value]
    agent = agent_of(["a", "b"], middlewares=[middleware])
    logger.setLevel(logging.CRITICAL)
    await agent.reply("go")
    assert readings == []
    logger.setLevel(logging.WARNING)  # failures would be logged
    await agent.reply("go")
    assert readings


async def test_a_logger_that_cannot_tell_its_level_breaks_no_reply() -> None:
    class Broken(logging.LoggerAdapter[logging.Logger]):
        def isEnabledFor(self, level: int) -> bool:
            raise ValueError("broken")

    agent = agent_of(["a"], middlewares=[LoggingMiddleware(Broken(logging.getLogger("tests.broken")))])  # type: ignore[arg-type]
    assert (await agent.reply("go")).get_text_content() == "a"


def test_a_value_that_is_not_callable_is_refused() -> None:
    with pytest.raises(MiddlewareConfigError, match="redact"):
        LoggingMiddleware(redact="***")  # type: ignore[arg-type]  # on purpose
