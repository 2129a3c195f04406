"""Background calls over HTTP: their sessions and questions are their owner's, under the ids that clients know."""

from urllib.parse import quote

import anyio

from agentrt.serving import BearerTokens
from tests.runner.conftest import Waiting, make_agent
from tests.runner.test_tasks import BossModel, background, clerk
from tests.serving.conftest import read_stream, serve

ANN = {"Authorization": "Bearer ann-token", "Accept": "text/event-stream"}
BOB = {"Authorization": "Bearer bob-token"}
TOKENS = BearerTokens({"ann-token": "ann", "bob-token": "bob"})


async def test_question_of_a_task_is_shown_to_its_owner_and_answered():
    async with serve(make_agent(clerk(), model=BossModel()), auth=TOKENS) as client:
        begun = await client.post("/api/sessions/s1/replies", json={"input": "call clerk"}, headers=ANN)
        events = [data for _, data in read_stream(begun.text)]
        [task] = [event for event in events if event.get("type") == "TASK_STARTED"]
        assert task["session_id"] == f"s1~{task['task_id']}"
        while not (waiting := (await client.get("/api/waiting", headers=ANN)).json()["waiting"]):  # noqa: ASYNC110
            await anyio.sleep(0.02)  # a worker makes the call
        assert (await client.get("/api/waiting", headers=BOB)).json()["waiting"] == []
        [asked] = waiting
        assert asked["session_id"] == task["session_id"]
        assert asked["task"] == {"id": task["task_id"], "tool": "clerk", "session_id": "s1"}
        listed = (await client.get("/api/tasks?session=s1", headers=ANN)).json()["tasks"]
        one = (await client.get(f"/api/tasks/{task['task_id']}?session=s1", headers=ANN)).json()
        assert listed == [one]
        assert (one["tool"], one["state"], one["question"]) == ("clerk", "waiting", asked["question"])
        assert one["session_id"] == task["session_id"]
        stop = f"/api/tasks/{task['task_id']}/stop?session=s1"
        assert (await client.post(stop, headers=BOB)).status_code == 404
        assert (await client.get("/api/tasks?session=s1", headers=BOB)).status_code == 404
        answer = {"reply_id": asked["question"]["reply_id"], "calls": {"c1/k1": True}}
        place = f"/api/sessions/{quote(task['session_id'], safe='')}/replies"
        assert (await client.post(place, json={"answer": answer}, headers=BOB)).status_code == 404
        rest = read_stream((await client.post(place, json={"answer": answer}, headers=ANN)).text)
        assert rest[-1][1]["status"] == "completed"
        woken = f"/api/replies/{task['task_id']}.done/events?session=s1"
        while (response := await client.get(woken, headers=ANN)).status_code == 404:  # noqa: ASYNC110
            await anyio.sleep(0.02)
        assert read_stream(response.text)[-1][1]["status"] == "completed"
        assert (await client.post(stop, headers=ANN)).json() == {"id": task["task_id"], "stopped": False}
        unknown = await client.get("/api/tasks/task:0?session=s1", headers=ANN)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "no_reply")


async def test_task_is_stopped_over_http_and_wakes():
    waiting = Waiting()
    async with serve(make_agent(background(waiting.wait)), auth=TOKENS) as client:
        await client.post("/api/sessions/s1/replies", json={"input": "call wait"}, headers=ANN)
        await waiting.begun.wait()
        [task] = (await client.get("/api/tasks?session=s1", headers=ANN)).json()["tasks"]
        stopped = await client.post(f"/api/tasks/{task['id']}/stop?session=s1", headers=ANN)
        assert stopped.json() == {"id": task["id"], "stopped": True}
        woken = f"/api/replies/{task['id']}.done/events?session=s1"
        while (await client.get(woken, headers=ANN)).is_error:  # noqa: ASYNC110  # a worker ends the call
            await anyio.sleep(0.02)
        ended = (await client.get(f"/api/tasks/{task['id']}?session=s1", headers=ANN)).json()
        assert (task["outcome"], ended["state"], ended["outcome"]) == (None, "over", "interrupted")
        assert f"({task['id']}) was stopped." in (await client.get("/api/sessions/s1", headers=ANN)).text
