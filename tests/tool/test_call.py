"""Running a tool: whatever it does becomes one result, and cancellation always leaves."""

import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import CancelScope, Event, create_task_group, fail_after, from_thread, lowlevel, move_on_after
from pydantic import SecretStr

from agentrt.errors import ToolConfigError, ToolError
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.tool import FunctionTool, ToolBase, ToolChunk, ToolContext, Toolkit, ToolResponse
from agentrt.tool.call import PreparedCall, respond, run_call


def prepared(tool: Any, text: str = "{}") -> PreparedCall:
    tool = tool if isinstance(tool, ToolBase) else FunctionTool(tool)
    call = Toolkit([tool]).prepare(ToolCallBlock("1", tool.name, text))
    assert isinstance(call, PreparedCall), call
    return call


async def run(tool: Any, text: str = "{}") -> tuple[list[str], ToolResponse]:
    """Return the text of each piece, and the result."""
    *chunks, response = [item async for item in run_call(prepared(tool, text))]
    assert all(isinstance(chunk, ToolChunk) for chunk in chunks)
    assert isinstance(response, ToolResponse)
    return [text_of(chunk) for chunk in chunks], response


def text_of(result: ToolChunk | ToolResponse) -> str:
    return "|".join(block.text for block in result.content if isinstance(block, TextBlock))


async def said(tool: Any, text: str = "{}") -> tuple[str, str]:
    response = (await run(tool, text))[1]
    return response.state, text_of(response)


def tool(function: Callable[..., Any], **options: Any) -> FunctionTool:
    return FunctionTool(function, **options)


# What becomes a result


async def test_exception_becomes_a_short_result_and_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    async def f() -> None:
        raise ValueError("no such city")

    assert await said(f) == ("error", "f failed: ValueError: no such city")
    (record,) = caplog.records
    assert record.name == "agentrt"
    first, *frames, last = record.getMessage().splitlines()
    assert (first, last) == ("tool 'f' failed:", "ValueError: no such city")
    assert any('raise ValueError("no such city")' in line for line in frames)  # where it was raised, from the source


def plain_failure() -> None:
    raise ValueError("no such city")


async def failure_in_a_stream() -> AsyncIterator[str]:
    yield "a"
    raise ValueError("no such city")


async def failure_further_in() -> None:
    plain_failure()


@pytest.mark.parametrize("function", [plain_failure, failure_in_a_stream, failure_further_in])
async def test_the_log_has_the_users_frames_only(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    await said(function)
    files = [line for line in caplog.records[0].getMessage().splitlines() if line.startswith("  File")]
    assert len(files) == 1 + (function is failure_further_in)
    assert all(__file__ in line for line in files)


async def refusing(key: str = "") -> None:
    try:
        raise LookupError(f"no {key}")
    except LookupError as error:
        raise ValueError(f"refused: {key}") from error


@pytest.mark.parametrize(("detail", "is_told"), [("message", True), ("type", False)])
async def test_error_detail_decides_if_the_exception_message_is_shown(
    detail: Any, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    state, text = await said(tool(refusing, error_detail=detail), '{"key": "canary"}')
    assert (state, text) == ("error", "refusing failed: ValueError" + (": refused: canary" if is_told else ""))
    assert ("canary" in caplog.text) is is_told
    assert "LookupError" in caplog.text


@pytest.mark.parametrize(
    "secret",
    [
        "a-preset-secret",
        "an-environment-secret",
        "bound-by-a-partial",
        "sk-" + "a1" * 12,
        "eyJ" + "-abcdefghij.abcdefghij.abcdefghij",
    ],
)
async def test_secrets_in_an_exception_message_are_masked(
    secret: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "an-environment-secret")

    async def f(key: str, other: str, text: str) -> None:
        raise ValueError(f"{text} was refused") from LookupError(text)

    failing = FunctionTool(partial(f, other="bound-by-a-partial"), preset_kwargs={"key": "a-preset-secret"})
    _, text = await said(failing, f'{{"text": "{secret}"}}')
    assert text == "f failed: ValueError: *** was refused"
    assert secret not in caplog.text
    assert "LookupError: ***" in caplog.text


async def test_secrets_inside_of_preset_values_are_masked_whole() -> None:
    async def f(headers: dict[str, Any], keys: list[str], key: SecretStr) -> None:
        raise ValueError(f"{headers['X-Key']} {keys[0]} {keys[1]} {key.get_secret_value()}")

    preset = {"headers": {"X-Key": "kept-in-a-dict"}, "keys": ["one-secret", "one-secret-and-more"]}
    _, text = await said(FunctionTool(f, preset_kwargs={**preset, "key": SecretStr("kept-by-pydantic")}))
    assert text == "f failed: ValueError: *** *** *** ***"


def circle() -> Exception:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def long_chain() -> Exception:
    error = ValueError("0")
    for number in range(1, 3_000):
        error, error.__context__ = ValueError(str(number)), error
    return error


class FalseError(ValueError):
    def __bool__(self) -> bool:
        return False


def false_cause() -> Exception:
    error = ValueError("last")
    error.__cause__ = FalseError("the cause")
    return error


@pytest.mark.parametrize(
    ("make", "logged"),
    [(circle, ["KeyError", "ValueError: first"]), (long_chain, ["2998", "2999"]), (false_cause, ["the cause", "last"])],
)
async def test_chain_of_causes_may_be_long_or_a_circle(
    make: Callable[[], Exception], logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    error = make()

    async def f() -> None:
        raise error

    assert await said(f) == ("error", f"f failed: ValueError: {error}")
    assert all(text in caplog.text for text in logged)
    assert len(caplog.text) < 5_000


async def test_exception_that_is_its_own_cause_is_an_error_result() -> None:
    async def f() -> None:
        try:
            raise ValueError("no such city")
        except ValueError as error:
            raise error from error

    assert await said(f) == ("error", "f failed: ValueError: no such city")


def test_unknown_error_detail_is_refused() -> None:
    with pytest.raises(ToolConfigError, match='error_detail of refusing must be "message" or "type", not \'all\''):
        tool(refusing, error_detail="all")


async def test_empty_or_long_exception_message_stays_readable() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def silent() -> None:
        raise TimeoutError

    async def loud() -> None:
        raise ValueError("x" * 100_000)

    async def unspeakable() -> None:
        raise Unspeakable

    assert await said(silent) == ("error", "silent failed: TimeoutError")
    assert len((await said(loud))[1]) < 2_100
    assert await said(unspeakable) == ("error", "unspeakable failed: Unspeakable: (its text cannot be shown)")


async def test_exception_group_is_described_by_its_first_error() -> None:
    async def f() -> None:
        raise ExceptionGroup("g", [ExceptionGroup("h", [ValueError("a")]), KeyError("b"), KeyError("c")])

    assert await said(f) == ("error", "f failed: ValueError: a (and 2 more errors)")


async def test_system_exit_is_contained() -> None:
    async def f() -> None:
        raise SystemExit(3)

    def g() -> None:
        raise SystemExit(3)

    async def h() -> AsyncIterator[str]:
        yield "a"
        raise SystemExit(3)

    assert await said(f) == ("error", "f failed: SystemExit: 3")
    assert await said(g) == ("error", "g failed: SystemExit: 3")
    assert await said(h) == ("error", "a|h failed: SystemExit: 3")


async def test_keyboard_interrupt_propagates() -> None:
    async def f() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run(f)


async def test_tool_may_let_its_exceptions_propagate() -> None:
    async def f() -> None:
        raise ValueError("fly")

    async def g() -> AsyncIterator[str]:
        yield "a"
        raise ValueError("fly")

    for function in (f, g):
        with pytest.raises(ValueError, match="fly"):
            await run(tool(function, raise_tool_errors=True))


async def test_timeout_raised_by_the_tool_is_an_ordinary_error() -> None:
    async def f() -> None:
        with fail_after(0.001):
            await Event().wait()

    assert await said(f) == ("error", "f failed: TimeoutError")


# Deadlines


class Hanging:
    """Tools that wait for ever, and note when they wait and when they clean up."""

    def __init__(self) -> None:
        self.waits, self.is_clean = Event(), False

    async def wait(self) -> None:
        self.waits.set()
        try:
            await Event().wait()
        finally:
            self.is_clean = True

    async def stream(self) -> AsyncIterator[str]:
        yield "a"
        await self.wait()


@pytest.fixture
def hanging() -> Hanging:
    return Hanging()


async def test_a_tool_that_takes_too_long_is_stopped(hanging: Hanging) -> None:
    late = "wait was stopped: it took longer than 0.01 seconds"
    assert await said(tool(hanging.wait, timeout=0.01)) == ("timeout", late)
    assert hanging.is_clean


async def test_streaming_tool_that_times_out_keeps_its_pieces(hanging: Hanging) -> None:
    chunks, response = await run(tool(hanging.stream, timeout=0.01))
    late = "stream was stopped: it took longer than 0.01 seconds"
    assert chunks == ["a", late]
    assert (response.state, text_of(response)) == ("timeout", f"a|{late}")
    assert hanging.is_clean


async def test_thread_that_times_out_is_abandoned_with_state_unknown() -> None:
    release = threading.Event()

    def wait() -> None:
        release.wait()

    try:
        assert await said(tool(wait, timeout=0.01)) == (
            "unknown",
            "wait was abandoned: it took longer than 0.01 seconds; its thread cannot be stopped, so it may still take "
            "effect",
        )
    finally:
        release.set()


async def test_sync_generator_that_takes_too_long_is_abandoned() -> None:
    release = threading.Event()

    def steps() -> Iterator[str]:
        yield "a"
        release.wait()
        yield "b"

    try:
        for seconds in (0.05, 1.0, 20.0):  # on a busy machine its thread may take a while to come to the first piece
            chunks, response = await run(tool(steps, timeout=seconds))
            assert response.state == "unknown"
            if chunks[0] == "a":
                break
        assert chunks[0] == "a"
    finally:
        release.set()


async def test_tool_without_a_timeout_may_take_forever() -> None:
    async def stream() -> AsyncIterator[str]:
        await lowlevel.checkpoint()
        yield "a"

    async def wait() -> str:
        await lowlevel.checkpoint()
        return "b"

    assert await said(tool(stream, timeout=None)) == ("success", "a")
    assert await said(tool(wait, timeout=None)) == ("success", "b")


async def test_deadline_ends_with_the_tool() -> None:
    async def quick() -> str:
        await lowlevel.checkpoint()
        return "done"

    assert await said(tool(quick, timeout=1000)) == ("success", "done")
    assert anyio.current_effective_deadline() == float("inf")


async def test_generator_that_never_waits_is_stopped_between_pieces() -> None:
    async def flood() -> AsyncIterator[str]:
        while True:
            yield "a"

    assert (await run(tool(flood, timeout=0.01)))[1].state == "timeout"


# Cancellation


async def cancelled(function: Callable[..., Any], started: Event) -> list[Any]:
    """Cancel a call from outside once it has started; return what it gave back, which is to be nothing."""
    results: list[Any] = []

    async def consume() -> None:
        async for item in run_call(prepared(function)):
            results.append(item)

    async with create_task_group() as group:
        group.start_soon(consume)
        await started.wait()
        group.cancel_scope.cancel()
    return results


@pytest.mark.parametrize(("name", "pieces"), [("wait", []), ("stream", ["a"])])
async def test_outer_cancellation_propagates_through_a_running_tool(
    name: str, pieces: list[str], hanging: Hanging
) -> None:
    items = await cancelled(getattr(hanging, name), hanging.waits)
    assert [text_of(item) for item in items] == pieces
    assert hanging.is_clean


async def test_outer_cancellation_abandons_a_thread() -> None:
    started, release = Event(), threading.Event()

    def wait() -> None:
        from_thread.run_sync(started.set)
        release.wait()

    try:
        assert await cancelled(wait, started) == []
    finally:
        release.set()


async def test_a_deadline_of_the_caller_is_not_taken_for_the_tools(hanging: Hanging) -> None:
    with move_on_after(0.01) as scope:
        await respond(prepared(hanging.wait))
    assert scope.cancelled_caught


async def test_cancellation_that_a_tool_turns_into_an_error_propagates() -> None:
    async def stubborn() -> None:
        try:
            await Event().wait()
        except BaseException:  # noqa: BLE001  # what no tool should do
            raise ValueError("stubborn") from None

    with CancelScope() as scope:
        scope.cancel()
        response = await respond(prepared(stubborn))
        assert response.state == "error"
        await lowlevel.checkpoint()
    assert scope.cancelled_caught


# Threads


async def test_event_loop_continues_while_a_plain_function_blocks() -> None:
    entered, go_on = Event(), threading.Event()
    threads = []

    def block() -> str:
        threads.append(threading.get_ident())
        from_thread.run_sync(entered.set)
        go_on.wait()
        return "done"

    async with create_task_group() as group:

        async def tick() -> None:
            await entered.wait()
            go_on.set()

        group.start_soon(tick)
        assert await said(block) == ("success", "done")
    assert threads != [threading.get_ident()]


async def test_sync_generators_run_in_threads_step_by_step() -> None:
    log: list[Any] = []

    def steps(n: int) -> Iterator[str]:
        try:
            for number in range(n):
                log.append(threading.get_ident())
                yield str(number)
        finally:
            log.append("closed")

    chunks, response = await run(steps, '{"n": 3}')
    assert (chunks, text_of(response)) == (["0", "1", "2"], "012")
    assert log[-1] == "closed"
    assert threading.get_ident() not in log


class Steps:
    """A plain generator whose clean-up waits until the event loop has gone on meanwhile."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.closed_in: list[int] = []

    def steps(self) -> Iterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            self.closed_in.append(threading.get_ident())
            self.has_begun.set()
            assert self.may_end.wait(30)

    def give(self) -> Iterator[str]:
        return self.steps()

    async def let_end(self) -> None:
        while not self.has_begun.is_set():
            await lowlevel.checkpoint()
        self.may_end.set()


@pytest.mark.parametrize("name", ["steps", "give"])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_clean_up_of_a_sync_generator_runs_in_a_thread(name: str, is_cancelled: bool) -> None:
    made = Steps()
    async with create_task_group() as group:
        group.start_soon(made.let_end)
        items = run_call(prepared(getattr(made, name)))
        with CancelScope() as scope:
            assert text_of(await anext(items)) == "a"
            if is_cancelled:
                scope.cancel()
            await items.aclose()
    assert len(made.closed_in) == 1
    assert made.closed_in != [threading.get_ident()]


async def test_hanging_clean_up_of_a_sync_generator_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentrt.tool.invocation.CLEANUP_SECONDS", 0.01)
    made = Steps()
    items = run_call(prepared(made.steps))
    assert text_of(await anext(items)) == "a"
    await items.aclose()
    assert "the clean-up of tool 'steps' failed" in caplog.text
    made.may_end.set()


# Streams


async def test_pieces_are_yielded_at_once_and_joined_in_the_result() -> None:
    log: list[str] = []

    async def stream() -> AsyncIterator[str]:
        for piece in ("a", "b"):
            log.append(f"made {piece}")
            yield piece

    async for item in run_call(prepared(stream)):
        log.append(f"{type(item).__name__} {text_of(item)}")
    assert log == ["made a", "ToolChunk a", "made b", "ToolChunk b", "ToolResponse ab"]


async def pieces(*items: str) -> AsyncGenerator[str, None]:
    for item in items:
        await lowlevel.checkpoint()
        yield item


def plain_pieces(*items: str) -> Iterator[str]:
    yield from items


async def gives_async_generator() -> AsyncGenerator[str, None]:
    return pieces("a", "b")


async def gives_generator() -> Iterator[str]:
    return plain_pieces("a", "b")


def plain_gives_async_generator() -> AsyncGenerator[str, None]:
    return pieces("a", "b")


def plain_gives_generator() -> Iterator[str]:
    return plain_pieces("a", "b")


GIVERS = [gives_async_generator, gives_generator, plain_gives_async_generator, plain_gives_generator]


@pytest.mark.parametrize("seconds", [None, 60.0])
@pytest.mark.parametrize("function", GIVERS)
async def test_a_function_that_returns_a_generator_streams(function: Any, seconds: float | None) -> None:
    chunks, response = await run(tool(function, timeout=seconds))
    assert (chunks, response.state, text_of(response)) == (["a", "b"], "success", "ab")


async def test_returned_generator_has_the_rest_of_the_time(hanging: Hanging) -> None:
    async def give() -> AsyncIterator[str]:
        await lowlevel.checkpoint()
        return hanging.stream()

    chunks, response = await run(tool(give, timeout=0.05))
    assert chunks == ["a", "give was stopped: it took longer than 0.05 seconds"]
    assert response.state == "timeout"


@pytest.mark.parametrize("is_returned", [False, True])
async def test_a_generator_that_fails_midway_keeps_what_it_made(is_returned: bool) -> None:
    async def stream() -> AsyncIterator[str]:
        yield "a"
        raise ValueError("b")

    async def give() -> AsyncIterator[str]:
        return stream()

    chunks, response = await run(give if is_returned else stream)
    failure = f"{'give' if is_returned else 'stream'} failed: ValueError: b"
    assert chunks == ["a", failure]
    assert (response.state, text_of(response)) == ("error", f"a|{failure}")


@pytest.mark.parametrize("is_returned", [False, True])
async def test_leaving_consumer_closes_the_tool_in_the_same_task(is_returned: bool) -> None:
    log: list[Any] = []

    async def stream() -> AsyncIterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            await lowlevel.checkpoint()
            log.append(anyio.get_current_task().id)

    async def give() -> AsyncIterator[str]:
        return stream()

    items = run_call(prepared(give if is_returned else stream))
    assert text_of(await anext(items)) == "a"
    await items.aclose()
    assert log == [anyio.get_current_task().id]


async def test_the_tool_is_closed_before_its_result_is_given() -> None:
    log: list[str] = []

    async def stream() -> AsyncIterator[str]:
        try:
            yield ToolChunk([TextBlock("a")], is_last=True)  # type: ignore[misc]
            yield "b"
        finally:
            log.append("closed")

    async for item in run_call(prepared(stream)):
        log.append(type(item).__name__)
    assert log == ["ToolChunk", "closed", "ToolChunk", "ToolResponse"]


@pytest.mark.parametrize(
    ("hangs", "message"),
    [(False, "failed:\n"), (True, "was stopped after 0.01 seconds")],
    ids=["fails", "hangs"],
)
async def test_a_clean_up_that_fails_or_hangs_is_only_logged(
    hangs: bool, message: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hangs:
        monkeypatch.setattr("agentrt.tool.call.CLEANUP_SECONDS", 0.01)

    async def stream() -> AsyncIterator[str]:
        try:
            yield "a"
        finally:
            if hangs:
                await Event().wait()
            else:
                raise ValueError("clean-up")

    items = run_call(prepared(stream))
    await anext(items)
    await items.aclose()
    [record] = caplog.records
    assert record.getMessage().startswith(f"the clean-up of tool 'stream' {message}")


@pytest.mark.parametrize("group", [False, True], ids=["scope", "group"])
async def test_yield_inside_the_tools_own_scope_is_a_clear_error(group: bool) -> None:
    async def stream() -> AsyncIterator[str]:
        async with create_task_group() if group else Scope():
            yield "a"

    logging.getLogger("agentrt").setLevel(logging.CRITICAL)
    try:
        state, text = await said(stream)
    finally:
        logging.getLogger("agentrt").setLevel(logging.NOTSET)
    assert state == "error"
    assert text == (
        "stream failed: ToolError: it yielded inside a cancel scope or task group that it had opened "
        "(`move_on_after`, `create_task_group`, ...); close that before each `yield`, or collect the output and return "
        "it"
    )
    with move_on_after(0.01) as scope:
        await Event().wait()
    assert scope.cancelled_caught
    await lowlevel.checkpoint()


class Scope:
    async def __aenter__(self) -> None:
        self.scope = CancelScope()
        self.scope.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self.scope.__exit__(*error)


async def test_generator_that_fails_to_start_has_an_error_result() -> None:
    async def stream(a):  # type: ignore[no-untyped-def]
        yield a

    state, text = await said(tool(stream, json_schema={"type": "object"}))
    assert (state, "missing 1 required positional argument" in text) == ("error", True)


# Prepared calls


async def test_each_run_of_a_call_has_arguments_of_its_own() -> None:
    async def spoil(values: list[int]) -> list[int]:
        values.append(0)
        return values

    call = prepared(spoil, '{"values": [1]}')
    assert [text_of(await respond(call)) for _ in range(3)] == ["[1,0]"] * 3


def test_a_prepared_call_knows_the_call_it_was_made_for() -> None:
    async def f(a: int) -> None: ...

    call = prepared(f, '{"a": 1}')
    assert call.is_for(ToolCallBlock("2", "f", '{"a": 1}'))
    assert not call.is_for(ToolCallBlock("1", "f", '{"a": 2}'))
    call.tool_call.input = '{"a": 2}'
    assert (call.input, call.arguments) == ('{"a": 1}', {"a": 1})
    assert not call.is_for(call.tool_call)


async def test_only_a_tool_that_can_wait_gets_a_deadline() -> None:
    deadlines = []

    async def straight() -> None:
        deadlines.append(anyio.current_effective_deadline())

    async def waiting() -> None:
        deadlines.append(anyio.current_effective_deadline())
        await lowlevel.checkpoint()

    async def through(*, function: str = "") -> None:
        await straight()

    for function in (straight, waiting, through):
        await run(function)
    assert [deadline == float("inf") for deadline in deadlines] == [True, False, False]


async def test_the_context_given_is_the_one_that_the_tool_receives() -> None:
    async def f(context: ToolContext) -> None:
        seen.append(context)

    async def g(context: ToolContext) -> AsyncGenerator[str, None]:
        seen.append(context)
        yield ""

    seen: list[ToolContext] = []
    given = ToolContext(ToolCallBlock("1", "f"))
    await respond(prepared(f), given)
    async for _ in run_call(prepared(g), given):
        pass
    assert seen == [given, given]


async def test_runtime_error_raised_by_a_tool_is_an_error_of_the_tool() -> None:
    async def f() -> None:
        raise ToolError("no")

    assert await said(f) == ("error", "f failed: ToolError: no")
