"""What the server sends of the studio, and the times that its page asks for."""

import re
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from anyio import to_thread
from starlette.applications import Starlette
from starlette.routing import Mount

import agentrt.serving
from agentrt import Agent
from agentrt.middleware import LayerTimes, TimingMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.serving import BearerTokens, create_app
from tests.documents import ROOT
from tests.runner.conftest import make_agent
from tests.services import needs
from tests.serving.conftest import open_client, serve
from tests.serving.studio.conftest import make_recorded_app

ANN = {"Authorization": "Bearer ann-token"}
BOB = {"Authorization": "Bearer bob-token"}
FOLDER = Path(agentrt.serving.__file__).parent / "static" / "studio"
FILES = [
    "/studio",
    *(f"/studio/{path.relative_to(FOLDER).as_posix()}" for path in FOLDER.rglob("*.*") if path.suffix != ".html"),
]


async def test_page_is_small_and_may_run_nothing_but_its_own():
    async with serve(make_agent(), auth=BearerTokens({"ann-token": "ann"})) as client:
        responses = {path: await client.get(path) for path in FILES}
        assert {response.status_code for response in responses.values()} == {200}
        assert sum(len(response.content) for response in responses.values()) < 200_000
        page = responses["/studio"]
        policy = page.headers["content-security-policy"].split("; ")
        assert policy[0] == "default-src 'none'"
        sources = {part.split(" ", 1)[1] for part in policy[1:]}
        assert sources == {"'self'", "'none'", "'script'"}
        assert page.headers["x-frame-options"] == "DENY"
        # Nothing that the policy would refuse, and nothing that makes markup of a text.
        assert not re.search(r"<script(?! src=)|<style|style=| on\w+=|https?:", page.text)
        for path, response in responses.items():
            if path.endswith(".js") and "/vendor/" not in path:
                forbidden = (
                    r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|https?:|href=(?!.#)|src="
                )
                # The page that a server asks its user to open, whose protocol is looked at.
                known = response.text.replace('["https:", "http:"]', "").replace("href=${page.href}", "")
                assert not re.search(forbidden, known), path
        unchanged = await client.get("/studio", headers={"If-None-Match": page.headers["etag"]})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
        moved = await client.get("/")
        assert (moved.status_code, moved.headers["location"]) == (307, "/studio")
    async with serve(make_agent(), studio=False) as client:
        assert {(await client.get(path)).status_code for path in ("/", *FILES)} == {404}


async def test_page_of_a_mounted_application_finds_its_files():
    app = create_app(make_agent())
    outer = Starlette(routes=[Mount("/agents", app)], lifespan=lambda _: app.router.lifespan_context(app))
    async with open_client(outer) as client:
        assert (await client.get("/agents/")).headers["location"] == "/agents/studio"
        page = await client.get("/agents/studio")
        links = re.findall(r'(?:src|href)="([^#"]*)"', page.text)
        assert links == ["studio/icon.svg", "studio/studio.css", "studio/main.js"]  # relative to the page
        assert [(await client.get(f"/agents/{link}")).status_code for link in links] == [200] * 3


def test_library_of_the_page_is_the_published_one():
    library = (FOLDER / "vendor" / "htm-preact.js").read_bytes()
    assert sha256(library).hexdigest() == "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7"
    licences = (FOLDER / "vendor" / "LICENSES.txt").read_text()
    assert "Apache License" in licences
    assert "Copyright (c) 2015-present Jason Miller" in licences


def test_each_import_of_a_module_is_a_file_of_the_page():
    for module in FOLDER.rglob("*.js"):
        for name in re.findall(r'^(?:import|export) .*?from "([^"]+)"', module.read_text(), re.MULTILINE):
            assert (module.parent / name).is_file(), f"{module.name} imports {name}"


def test_modules_draw_texts_differences_and_time_lines():
    needs("node", "node")
    script = Path(__file__).with_name("modules.mjs")
    finished = subprocess.run(["node", script, FOLDER], capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr


def test_pictures_of_the_studio_in_the_documentation_are_small():
    pictures = sorted((ROOT / "docs" / "pictures").iterdir())
    assert [picture.name for picture in pictures] == ["compare.webp", "layer.webp", "run.webp"]
    assert all(picture.stat().st_size < 80_000 for picture in pictures)


async def test_times_of_a_reply_are_for_its_owner():
    agent = Agent(
        "assistant",
        "",
        ScriptedChatModel(["Hello."]),
        middlewares=[TimingMiddleware(lambda timing: None), LayerTimes()],
    )
    auth = BearerTokens({"ann-token": "ann", "bob-token": "bob"})
    async with serve(agent, auth=auth) as client:
        headers = {**ANN, "Accept": "text/event-stream", "Idempotency-Key": "r1"}
        await client.post("/api/sessions/s1/replies", json={"input": "Hi"}, headers=headers)
        found = (await client.get("/api/replies/r1/layers?session=s1", headers=ANN)).json()
        assert found["probe"] is True
        assert [layer["layer"] for layer in found["layers"]] == ["TimingMiddleware", None]
        own_ms = found["layers"][0]["total_ms"] - found["layers"][1]["total_ms"]
        assert found["layers"][0]["own_ms"] == pytest.approx(own_ms, abs=0.01)  # each is rounded
        assert found["layers"][0]["outcome"] == "returned"
        for path, who, status in [
            ("/api/replies/r1/layers?session=s1", BOB, 404),
            ("/api/replies/r1/layers?session=s1", {}, 401),
            ("/api/replies/r1/layers", ANN, 400),
        ]:
            assert (await client.get(path, headers=who)).status_code == status
    async with serve(make_agent()) as client:
        await client.post("/api/sessions/s1/replies", json={"input": "Hi"}, headers={"Accept": "text/event-stream"})
        assert (await client.get("/api/replies/r1/layers?session=s1")).json() == {"probe": False, "layers": []}


async def test_totals_have_the_calls_of_a_sub_agent_that_waited():
    async with open_client(await to_thread.run_sync(make_recorded_app)) as client:
        replies = "/api/sessions/s1/replies"
        await client.post(replies, json={"input": "delegate"}, headers={"Accept": "text/event-stream"})
        question = (await client.get("/api/sessions/s1")).json()["waiting"]
        answer = {"reply_id": question["reply_id"], "calls": {question["tool_calls"][0]["id"]: True}}
        await client.post(replies, json={"answer": answer}, headers={"Accept": "text/event-stream"})
        [run] = (await client.get("/api/runs")).json()["runs"]
        assert (run["status"], run["calls"], run["usage"]["input_tokens"]) == ("completed", 4, 40)
