"""A long result is put aside, and its parts joined are the result."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Agent, AgentState
from agentrt.errors import MiddlewareConfigError
from agentrt.message import ToolResultBlock
from agentrt.middleware import MiddlewareBase, ToolResultLimitMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.testing import check_middleware
from agentrt.workspace import LocalWorkspace
from tests.loop.helpers import call, saved_state


def agent_of(text: str, layer: ToolResultLimitMiddleware, calls: list[Any], **options: Any) -> Agent:
    async def fetch() -> str:
        return text

    script = [[each] for each in calls]
    return Agent("a", model=ScriptedChatModel([*script, "done"]), tools=[fetch], middlewares=[layer], **options)


def results_of(agent: Agent) -> list[ToolResultBlock]:
    return agent.state.context[-1].get_content_blocks("tool_result")


async def test_a_long_result_shows_its_ends_and_where_the_rest_is() -> None:
    text = "".join(map(str, range(1_000)))
    agent = agent_of(text, ToolResultLimitMiddleware(100, head=10, tail=5), [call("1", "fetch")])
    await agent.reply("go")
    (block,) = results_of(agent)
    assert block.text.startswith(text[:10] + "\n[... 2,875 of 2,890 characters are left out here.")
    assert block.text.endswith("...]\n" + text[-5:])
    assert 'read_result(ref="result-1", offset=10, limit=100)' in block.text


async def test_a_short_result_stays_as_it_is() -> None:
    agent = agent_of("x" * 100, ToolResultLimitMiddleware(100, head=10, tail=5), [call("1", "fetch")])
    await agent.reply("go")
    assert results_of(agent)[0].text == "x" * 100


@pytest.mark.parametrize("is_in_files", [False, True])
@given(st.text(min_size=21, max_size=300), st.lists(st.integers(1, 60), max_size=8))
@settings(max_examples=25, deadline=None)
async def test_the_pieces_joined_are_the_result(
    tmp_path_factory: Any, is_in_files: bool, text: str, sizes: list[int]
) -> None:
    text = re.sub("[\ud800-\udfff]", "?", text)
    workspace = LocalWorkspace(tmp_path_factory.mktemp("files")) if is_in_files else None
    layer = ToolResultLimitMiddleware(20, head=0, tail=0, workspace=workspace)

    calls, offset = [call("0", "fetch")], 0
    for number, size in enumerate([*sizes, *[20] * 20], 1):
        if offset < len(text):
            calls.append(call(str(number), "read_result", ref="result-1", offset=offset, limit=size))
            offset += min(size, 20)
    agent = agent_of(text, layer, calls)
    await agent.reply("go")
    pieces = results_of(agent)[1:]
    assert {block.state for block in pieces} == {"success"}
    assert "".join(block.text for block in pieces) == text


@pytest.mark.parametrize("is_in_files", [False, True])
async def test_another_conversation_cannot_read_it(tmp_path: Any, is_in_files: bool) -> None:
    layer = ToolResultLimitMiddleware(10, head=1, tail=1, workspace=LocalWorkspace(tmp_path) if is_in_files else None)
    first = agent_of("x" * 99, layer, [call("1", "fetch")])
    await first.reply("go")
    other = agent_of("x", layer, [call("1", "read_result", ref="result-1"), call("2", "read_result", ref="../x")])
    await other.reply("go")
    assert [(block.state, "is not kept" in block.text) for block in results_of(other)] == [("error", True)] * 2


async def test_a_conversation_that_was_saved_reads_it_elsewhere() -> None:
    layer = ToolResultLimitMiddleware(10, head=1, tail=1)
    first = agent_of("x" * 30, layer, [call("1", "fetch")])
    await first.reply("go")
    other = agent_of("", layer, [call("2", "read_result", ref="result-1", offset=25)], state=saved_state(first))
    await other.reply("go on")
    assert results_of(other)[0].text == "xxxxx"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"ref": "result-2"}, "is not kept"),
        ({"ref": "result-1", "offset": 30}, "so there is nothing at 30"),
        ({"ref": "result-1", "offset": -1}, "offset must be at least 0"),
        ({"ref": "result-1", "limit": 0}, "limit at least 1"),
        ({"offset": 1}, "ref"),
    ],
)
async def test_a_wrong_part_is_an_error_with_a_remedy(arguments: dict[str, Any], problem: str) -> None:
    layer = ToolResultLimitMiddleware(10, head=1, tail=1)
    agent = agent_of("x" * 30, layer, [call("1", "fetch"), call("2", "read_result", **arguments)])
    await agent.reply("go")
    assert (results_of(agent)[1].state, problem in results_of(agent)[1].text) == ("error", True)


async def test_the_oldest_results_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt_middleware.tool_calls.tool_result_limit._MAX_PUT_ASIDE", 70)
    layer = ToolResultLimitMiddleware(10, head=1, tail=1)
    calls = [call(str(number), "fetch") for number in range(3)]
    reads = [call(f"r{number}", "read_result", ref=f"result-{number}") for number in (1, 2, 3)]
    agent = agent_of("x" * 30, layer, [*calls, *reads])
    await agent.reply("go")
    assert [block.state for block in results_of(agent)[3:]] == ["error", "success", "success"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ToolResultLimitMiddleware(0), r"max_chars=\.\.\.\) must be a whole number above 0"),
        (lambda: ToolResultLimitMiddleware(10.5), "must be a whole number"),  # type: ignore[arg-type]
        (lambda: ToolResultLimitMiddleware(100, head=-1), r"head=\.\.\.\) must be a whole number of at least 0"),
        (lambda: ToolResultLimitMiddleware(100, head=90, tail=20), "shows more than max_chars=100: give"),
        (lambda: ToolResultLimitMiddleware(workspace="/tmp"), "must be a LocalWorkspace or another FileSystemBase"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_option_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(MiddlewareConfigError, match=message):
        make()


@pytest.mark.slow
async def test_it_keeps_the_contract() -> None:
    def make() -> MiddlewareBase:
        return ToolResultLimitMiddleware(4, head=2, tail=1)

    await check_middleware(make, faults=["cancel"], every=3)


DAMAGED: list[dict[str, Any]] = [
    {"count": "x"},
    {"count": -5, "results": []},
    {"count": 10**12},  # what is not kept is found out at once
    {"count": 1, "results": {"result-1": 7}},
    {"results": None},
]


@pytest.mark.parametrize("data", DAMAGED, ids=str)
async def test_damaged_data_of_a_saved_conversation_is_put_right(data: dict[str, Any]) -> None:
    state = AgentState(middleware_data={"ToolResultLimitMiddleware": dict(data)})
    calls = [call("1", "read_result", ref="result-1"), call("2", "fetch")]
    agent = agent_of("x" * 200, ToolResultLimitMiddleware(100, head=10, tail=5), calls, state=state)
    await agent.reply("go")
    missing, shortened = results_of(agent)
    assert "is not kept" in missing.text
    assert "are left out here" in shortened.text


async def test_a_result_that_cannot_be_put_aside_stays_whole(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tool-results").write_text("in the way")
    layer = ToolResultLimitMiddleware(100, head=10, tail=5, workspace=LocalWorkspace(tmp_path))
    agent = agent_of("x" * 200, layer, [call("1", "fetch")])
    await agent.reply("go")
    assert results_of(agent)[0].text == "x" * 200
    assert "could not be put aside" in caplog.text
