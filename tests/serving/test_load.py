"""Many users at once: nothing is lost or doubled, nothing fails, and a server takes no more of its machine."""

import anyio
import pytest

from agentrt.errors import SessionIOError
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.state import InMemoryStateStore, SQLiteStore
from benchmarks.load.client import Client
from benchmarks.load.server import Server, serve
from benchmarks.load.users import answer_questions, ask_at_once, converse, park, read_and_leave
from tests.runner.conftest import make_agent, work

pytestmark = pytest.mark.slow


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def require_worker(server: Server) -> None:
    """Require that a reply that is asked for now is answered."""
    outcome = await converse(server.port, 1, turns=1, words=20, prefix="afterwards")
    assert (outcome.replies, outcome.lost, outcome.errors) == (1, 0, [])


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_1500_submits_at_once_leave_the_worker_alive(kind, tmp_path):
    store = InMemoryStateStore() if kind == "memory" else SQLiteStore(tmp_path / "a.db", durability="process")
    handles, refused = [], 0
    model = ScriptedChatModel(["Hello."] * 1500, stream=True)
    async with work(Runner(make_agent(model=model), store)) as runner:

        async def submit(number: int) -> None:
            nonlocal refused
            try:
                handles.append(await runner.submit(str(number), "Hi!"))
            except SessionIOError:  # no turn for ten seconds, on a machine that is slow
                refused += 1

        async with anyio.create_task_group() as group:
            for number in range(1500):
                group.start_soon(submit, number)
        assert (len(handles) + refused, len(handles) > 0) == (1500, True)
        assert (await handles[-1].result()).finished_reason == "completed"
        assert runner.worker_failure is None


async def test_posts_and_readers_at_once_get_busy_and_no_other_error(tmp_path):
    with serve(tmp_path) as server:
        posts = await ask_at_once(server.port, 990)
        # On a machine that is slow enough, some operations of the store have no turn for ten seconds.
        assert set(posts.statuses) <= {202, 503}
        assert (posts.statuses.total(), posts.statuses[202] > 0) == (990, True)
        await converse(server.port, 1, turns=1, words=20, prefix="read")
        # More than `Limits.connections` at a time: those beyond it get 503, which is "busy".
        readers = await read_and_leave(server.port, "read-0", "read-0-1", 1800)
        assert set(readers.statuses) <= {200, 503}
        assert (readers.statuses.total(), readers.statuses[200] > 0) == (1800, True)
        await require_worker(server)


async def test_cut_readers_of_conversations_lose_and_double_nothing(tmp_path):
    with serve(tmp_path, words=20, pause=0.01) as server:
        outcome = await converse(server.port, 100, turns=1, words=20)
    assert outcome.cuts >= 20
    assert (outcome.replies, outcome.lost, outcome.doubled, outcome.errors) == (100, 0, 0, [])


async def test_parked_conversations_are_answerable_after_a_restart(tmp_path):
    sessions = [f"parked-{number}" for number in range(500)]
    with serve(tmp_path) as server:
        parked = await park(server.port, sessions)
        assert parked.statuses == {200: 500}
        before = server.megabytes
    with serve(tmp_path) as server:
        async with Client(server.port) as client:
            assert (await client.request("GET", "/readyz")).status == 200
        # What waits is in the store, and not in memory.
        assert server.megabytes < before + 10
        answered = await answer_questions(server.port, sessions)
    assert (answered.replies, answered.errors) == (500, [])


async def test_mixed_load_leaves_memory_and_descriptors_flat(tmp_path):
    with serve(tmp_path) as server:
        seen = []
        for round in range(6):
            sessions = [f"{round}-{number}" for number in range(30)]
            talked = await converse(server.port, 30, turns=2, words=20, prefix=f"mixed-{round}")
            await park(server.port, sessions[:20])
            answered = await answer_questions(server.port, sessions[:20])
            await read_and_leave(server.port, f"mixed-{round}-0", f"mixed-{round}-0-1", 50)
            assert (talked.lost, talked.doubled, talked.errors, answered.replies) == (0, 0, [], 20)
            async with Client(server.port) as client:
                for number in range(30):
                    for name in (f"mixed-{round}-{number}", f"{round}-{number}"):
                        await client.request("DELETE", f"/api/sessions/{name}")
            seen.append((server.megabytes, server.descriptors))
        # The first rounds fill what is kept of replies that are over.
        (first, opened), (last, still_opened) = seen[2], seen[-1]
        assert last - first < 5
        assert still_opened - opened <= 3
