"""Evaluation of real conversations: in the background, with verdicts in the record and as events."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import anyio
import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from agentrt import Agent
from agentrt.errors import ConfigError, UsageError
from agentrt.evaluation import Judge, OnlineEvaluation, Trial, contains, no_error
from agentrt.evaluation import online as online_module
from agentrt.message import ToolCallBlock
from agentrt.middleware import Budget
from agentrt.model import ScriptedChatModel
from agentrt.runs import Run, RunRecorder
from agentrt.state import InMemoryStateStore, SQLiteStore
from agentrt.tool import FunctionTool
from tests.evaluation.conftest import form, judge_model

SECRET = "sk-0123456789abcdef"


def make_agent(store: Any, online: OnlineEvaluation, *script: Any, tools: Any = (), **options: Any) -> Agent:
    model = ScriptedChatModel(script or ["Hello.", "Goodbye."])
    return Agent("helper", "You help.", model, list(tools), [RunRecorder(store, **options), online], state_store=store)


async def newest_run(store: Any, agent: Agent) -> Run:
    run: Run = await store.runs.load(agent.state.session_id)
    return run


async def test_verdicts_are_in_the_record_behind_its_end() -> None:
    async with InMemoryStateStore() as store:
        online = OnlineEvaluation(
            [contains("Hello"), Judge(judge_model(0.2, "rude"), "Polite?", name="polite")], share=1
        )
        agent = make_agent(store, online, sign=b"0123456789abcdef")
        async with agent:
            await agent.reply("Hi")
            await agent.reply("Bye")
        first, second = [
            await store.runs.load(agent.state.session_id, info.reply_id)
            for info in reversed((await store.runs.list(session_id=agent.state.session_id)).runs)
        ]
        assert [(line["evaluator"], line["passed"]) for line in first.verdicts] == [
            ("contains('Hello')", True),
            ("polite", False),
        ]
        assert first.verdicts[1] == {
            "evaluator": "polite",
            "score": 0.2,
            "passed": False,
            "reason": "rude",
            "error": None,
        }
        assert [line["kind"] for line in first.lines[-3:]] == ["end", "verdict", "verdict"]
        assert [line["passed"] for line in second.verdicts] == [False, False]
        found = await store.runs.verify(agent.state.session_id, key=b"0123456789abcdef")
        assert (found.ok, found.is_signed) == (True, True)


async def test_a_changed_verdict_is_found(tmp_path: Any) -> None:
    async with SQLiteStore(tmp_path / "agent.db") as store:
        agent = make_agent(store, OnlineEvaluation([contains("No")], share=1))
        async with agent:
            await agent.reply("Hi")
        run = await newest_run(store, agent)
        assert (await store.runs.verify(run.session_id)).ok
        await store.aclose()
        with closing(sqlite3.connect(tmp_path / "agent.db")) as database, database:
            change = "UPDATE run_lines SET line = CAST(replace(line, 'false', 'true') AS BLOB) WHERE n = ?"
            database.execute(change, [len(run.lines)])
        assert (await store.runs.verify(run.session_id)).first_wrong == len(run.lines)


async def test_a_reply_does_not_wait_for_its_judge() -> None:
    judged = anyio.Event()

    async def slow(trial: Trial) -> bool:
        await judged.wait()
        return True

    async with InMemoryStateStore() as store:
        agent = make_agent(store, OnlineEvaluation([slow], share=1))
        async with agent:
            await agent.reply("Hi")
            assert not (await newest_run(store, agent)).verdicts
            judged.set()
        assert (await newest_run(store, agent)).verdicts[0]["passed"] is True


async def test_a_judge_that_hangs_ends_with_the_agent() -> None:
    async def hangs(trial: Trial) -> bool:
        await anyio.sleep_forever()
        return True

    async with InMemoryStateStore() as store:
        agent = make_agent(store, OnlineEvaluation([hangs], share=1, drain=0.01))
        async with agent:
            await agent.reply("Hi")
        assert not (await newest_run(store, agent)).verdicts


async def test_errors_and_used_up_budgets_are_verdicts_that_fail() -> None:
    def raises(trial: Trial) -> bool:
        raise ValueError(SECRET)

    judge = Judge(judge_model(), "Good?", name="judge")
    async with InMemoryStateStore() as store:
        online = OnlineEvaluation([raises, judge], share=1, budget=Budget(model_calls=1), max_concurrency=1)
        agent = make_agent(store, online)
        async with agent:
            await agent.reply("Hi")
            await agent.reply("Bye")
        run = await newest_run(store, agent)
        assert [(line["evaluator"], line["error"], line["passed"]) for line in run.verdicts] == [
            ("raises", "ValueError", False),
            ("judge", "BudgetExceeded", False),
        ]
        assert SECRET not in str(run.lines)


async def test_only_a_share_of_completed_replies_is_judged() -> None:
    async def pay() -> str:
        return "paid"

    async with InMemoryStateStore() as store:
        online = OnlineEvaluation([no_error()], share=0.5, seed=1)
        agent = make_agent(store, online, *["Hello."] * 40)
        async with agent:
            for _ in range(40):
                await agent.reply("Hi")
        runs = (await store.runs.list(session_id=agent.state.session_id)).runs
        judged = [bool((await store.runs.load(info.session_id, info.reply_id)).verdicts) for info in runs]
        assert 10 < sum(judged) < 30

        ask = [ToolCallBlock("c1", "pay", "{}")]
        waiting = make_agent(store, OnlineEvaluation([no_error()], share=1), ask, tools=[FunctionTool(pay, ask=True)])
        async with waiting:
            await waiting.reply("Pay")
        run = await newest_run(store, waiting)
        assert (run.status, run.verdicts) == ("waiting", [])
        with pytest.raises(UsageError, match="no finished run"):
            await store.runs.add_verdicts(run.session_id, run.reply_id, [{"evaluator": "x"}])


async def test_too_many_waiting_runs_are_dropped_and_counted() -> None:
    async with InMemoryStateStore() as store:
        online = OnlineEvaluation([no_error()], share=1, max_pending=1, max_concurrency=1)
        agent = make_agent(store, online, *["Hello."] * 9)
        started = anyio.Event()

        async def hold(trial: Trial) -> bool:
            started.set()
            await anyio.sleep_forever()
            return True

        online._evaluators, online._drain = {"hold": hold}, 0.01
        async with agent:
            await agent.reply("Hi")
            await started.wait()
            for _ in range(3):
                await agent.reply("Hi")
        assert online.dropped == 2


async def test_reasons_are_redacted_like_the_record() -> None:
    judge = Judge(judge_model(1, f"it said {SECRET}"), "Good?", name="judge")
    async with InMemoryStateStore() as store:
        for options, reason in (({"redact": SECRET}, "it said "), ({"content": False}, "")):
            agent = make_agent(store, OnlineEvaluation([judge], share=1), **options)
            async with agent:
                await agent.reply("Hi")
            run = await newest_run(store, agent)
            assert SECRET not in str(run.lines)
            if reason:
                assert run.verdicts[0]["reason"].startswith(reason)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryLogRecordExporter]:
    exporter = InMemoryLogRecordExporter()
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    monkeypatch.setattr(online_module, "get_logger", provider.get_logger)
    yield exporter
    provider.shutdown()


@pytest.mark.parametrize("content", [False, True])
async def test_verdicts_are_events_of_opentelemetry(content: bool, sent: InMemoryLogRecordExporter) -> None:
    judge = Judge(ScriptedChatModel([form(score=0.25, reason="rude")]), "Polite?", name="polite")
    async with InMemoryStateStore() as store:
        agent = make_agent(store, OnlineEvaluation([judge], share=1, content=content))
        async with agent:
            await agent.reply("Hi", reply_id="r1")
    [event] = [data.log_record for data in sent.get_finished_logs()]
    assert event.event_name == "gen_ai.evaluation.result"
    expected = {
        "gen_ai.evaluation.name": "polite",
        "gen_ai.evaluation.score.value": 0.25,
        "gen_ai.evaluation.score.label": "fail",
        "gen_ai.conversation.id": agent.state.session_id,
        "agentrt.agent.reply_id": "r1",
    }
    assert dict(event.attributes or {}) == {
        **expected,
        **({"gen_ai.evaluation.explanation": "rude"} if content else {}),
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: OnlineEvaluation([]),
        lambda: OnlineEvaluation([7]),  # type: ignore[list-item]
        lambda: OnlineEvaluation([no_error()], share=0),
        lambda: OnlineEvaluation([no_error()], share=1.5),
        lambda: OnlineEvaluation([no_error()], max_pending=0),
        lambda: OnlineEvaluation([no_error()], timeout=float("nan")),
        lambda: OnlineEvaluation([no_error()], budget=3),  # type: ignore[arg-type]
        lambda: Agent("a", "", ScriptedChatModel([]), middlewares=[OnlineEvaluation([no_error()])]),
    ],
)
def test_wrong_options_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


async def test_without_an_entered_agent_nothing_is_judged() -> None:
    async with InMemoryStateStore() as store:
        agent = make_agent(store, OnlineEvaluation([no_error()], share=1))
        assert (await agent.reply("Hi")).get_text_content() == "Hello."
        assert not (await newest_run(store, agent)).verdicts
