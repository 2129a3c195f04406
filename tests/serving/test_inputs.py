"""Questions of `UserAgent`s over HTTP: asked in this process and from another one, and answered there."""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpx2
import pytest
from pydantic import BaseModel, Field, SecretStr, field_validator

from agentrt import Msg, UserAgent
from agentrt._runtime.schema.validator import Validator
from agentrt.errors import ConfigError, InputEnded
from agentrt.serving import BearerTokens, RemoteUserInput, StudioUserInput, create_app
from tests.runner.conftest import make_agent
from tests.serving.conftest import open_client, run_server, serve

ANN = {"Authorization": "Bearer ann-token"}
BOB = {"Authorization": "Bearer bob-token"}
OWNERS = BearerTokens({"ann-token": "ann", "bob-token": "bob"})


class Trip(BaseModel):
    city: str = Field(min_length=2)
    days: int = Field(ge=1, default=3)
    card: SecretStr

    @field_validator("city")
    @classmethod
    def not_here(cls, value: str) -> str:
        if value == "Home":
            raise ValueError("this is where you are")
        return value


def code_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def user_of(ask: RemoteUserInput) -> UserAgent:
    user = UserAgent("Ann")
    user.override_instance_input_method(ask)
    user.disable_console_output()
    return user


async def list_inputs(client: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the open questions, once there are any."""
    while True:
        found: list[dict[str, Any]] = (await client.get("/api/inputs", **options)).json()["inputs"]
        if found:
            return found
        await anyio.sleep(0.01)


async def test_form_is_answered_with_values_that_fit():
    app = create_app(make_agent())
    answers: list[Msg] = []

    async def ask() -> None:
        answers.append(await user_of(StudioUserInput(app)).reply(Msg("a", "Where to?", "assistant"), Trip))

    async with open_client(app) as client, anyio.create_task_group() as group:
        group.start_soon(ask)
        [question] = await list_inputs(client)
        assert question["agent_name"] == "Ann"
        assert question["schema"]["properties"]["card"]["format"] == "password"
        path = f"/api/inputs/{question['input_id']}"
        good = {"city": "Rome", "card": "4711"}
        for body, words in [
            ({"values": {**good, "city": "R"}}, "city"),
            ({"values": {**good, "days": "often"}}, "days"),
            ({"values": {"city": "Rome"}}, "card"),
            ({"text": "Rome"}, "values"),
            ({"text": 1, "values": good}, "text"),
        ]:
            refused = await client.post(path, json=body)
            assert code_of(refused) == (400, "invalid_answer")
            assert words in refused.text
            assert "4711" not in refused.text
        assert (await client.post(path, json={"text": "Here", "values": good})).json()["answered"]
        late = await client.post(path, json={"text": "Here", "values": good})
        assert code_of(late) in [(409, "answered"), (404, "no_input")]
    [answer] = answers
    assert answer.get_text_content() == "Here"
    assert (answer.metadata["city"], answer.metadata["days"]) == ("Rome", 3)
    assert answer.metadata["card"].get_secret_value() == "4711"


async def test_question_is_there_for_its_owner_alone_and_while_asked():
    app = create_app(make_agent(), auth=OWNERS)
    with pytest.raises(ConfigError, match="write owner="):
        RemoteUserInput(app)
    async with open_client(app) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(user_of(RemoteUserInput(app, owner="ann")).reply, None)
            [question] = await list_inputs(client, headers=ANN)
            path = f"/api/inputs/{question['input_id']}"
            assert (await client.get("/api/inputs", headers=BOB)).json() == {"inputs": []}
            assert code_of(await client.get("/api/inputs")) == (401, "unauthenticated")
            for method, place, body in [("POST", path, {"text": "x"}), ("GET", f"{path}/answer", None)]:
                refused = await client.request(method, place, json=body, headers=BOB)
                assert code_of(refused) == (404, "no_input")
            assert code_of(await client.delete(path, headers=BOB)) == (404, "no_input")
            bad = await client.post("/api/inputs", json={"agent_id": "1", "agent_name": ""}, headers=ANN)
            assert code_of(bad) == (400, "invalid_body")
            group.cancel_scope.cancel()
        assert (await client.get("/api/inputs", headers=ANN)).json() == {"inputs": []}


@pytest.mark.parametrize("server", [1, "localhost:8000", "ftp://a", object()])
def test_what_is_no_server_is_refused(server: Any):
    with pytest.raises(ConfigError, match="RemoteUserInput takes"):
        RemoteUserInput(server)


@pytest.fixture
def url() -> Iterator[str]:
    # In another thread, since events that are made in this one would belong to the event loop of the test.
    with ThreadPoolExecutor() as pool:
        app = pool.submit(lambda: create_app(make_agent(), auth=OWNERS)).result()
    with run_server(app) as url:
        yield url


async def test_question_of_another_process_is_asked_until_it_fits(url: str):
    answers: list[Msg] = []
    user = user_of(RemoteUserInput(url, token="ann-token"))
    with pytest.raises(ConfigError, match="token="):
        await user_of(RemoteUserInput(url)).reply()

    async def ask() -> None:
        answers.append(await user.reply(None, Trip))

    async with (
        httpx2.AsyncClient(base_url=url, headers=ANN, timeout=30) as client,
        anyio.create_task_group() as group,
    ):
        group.start_soon(ask)
        [first] = await list_inputs(client)
        path = f"/api/inputs/{first['input_id']}"
        values = {"city": "Home", "card": "1"}
        assert code_of(await client.post(path, json={"values": {"city": "R"}})) == (400, "invalid_answer")
        # The schema does not know what the model's own validator wants.
        assert (await client.post(path, json={"values": values})).status_code == 200
        found = [first]
        while found[0]["input_id"] == first["input_id"]:
            found = await list_inputs(client)
        assert found[0]["problems"] == ["city: this was not accepted"]
        path = f"/api/inputs/{found[0]['input_id']}"
        await client.post(path, json={"text": "Go", "values": {**values, "city": "Rome"}})
    assert answers[0].metadata["city"] == "Rome"


async def test_server_that_is_not_there_ends_the_input(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agentrt.serving.inputs.user_input._MAX_SILENCE", 0.0)
    monkeypatch.setattr("agentrt.serving.inputs.user_input._RETRY_PAUSE", 0.0)
    with pytest.raises(InputEnded, match="nobody to ask"):
        await user_of(RemoteUserInput("http://127.0.0.1:9")).reply()


async def test_half_of_a_surrogate_pair_is_listed_and_answered():
    half = {"Content-Type": "application/json"}
    async with serve(make_agent()) as client:
        asked = await client.post("/api/inputs", content=rb'{"agent_id": "a", "agent_name": "\ud83d"}', headers=half)
        place = f"/api/inputs/{asked.json()['input_id']}"
        assert rb'"agent_name":"\ud83d"' in (await client.get("/api/inputs")).content
        assert (await client.post(place, content=rb'{"text": "\ud83d"}', headers=half)).status_code == 200
        assert rb'"text":"\ud83d"' in (await client.get(f"{place}/answer")).content


async def test_open_question_keeps_its_schema_and_nothing_compiled():
    def validators() -> int:
        return sum(type(thing) is Validator for thing in gc.get_objects())

    schema = {"type": "object", "properties": {"city": {"pattern": "^[A-Z]"}}}
    async with serve(make_agent()) as client:
        before = validators()
        asked = await client.post("/api/inputs", json={"agent_id": "1", "agent_name": "user", "schema": schema})
        place = f"/api/inputs/{asked.json()['input_id']}"
        assert code_of(await client.post(place, json={"values": {"city": "ulm"}})) == (400, "invalid_answer")
        assert validators() == before
        assert (await client.post(place, json={"values": {"city": "Ulm"}})).status_code == 200
