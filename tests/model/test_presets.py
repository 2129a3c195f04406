"""A spec names a model, and an error tells what to do about a spec, a key or a package that is missing."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentrt import Agent, MiddlewareBase
from agentrt.agent import ReActAgent
from agentrt.errors import ChainError, ConfigError, Rejected, Transient
from agentrt.message import AssistantMsg, ToolCallBlock, ToolResultBlock, UserMsg
from agentrt.middleware import ModelFallbackMiddleware
from agentrt.model import (
    AnthropicChatModel,
    ChatModelBase,
    OllamaChatModel,
    OpenAIChatModel,
    RulesChatModel,
    ScriptedChatModel,
    chat_model,
    default_model,
)
from agentrt.model.catalog.lookup import known_capabilities
from agentrt.model.presets import PRESETS
from agentrt.types import ToolChoice
from tests.model.wire_openai import body_of

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {name for preset in PRESETS.values() for name in (preset.key_variable, preset.url_variable) if name}
    for variable in ("AGENTRT_MODEL", "GOOGLE_API_KEY", "OLLAMA_HOST", *variables):
        monkeypatch.delenv(variable, raising=False)


class Server:
    def __init__(self) -> None:
        self.url = ""
        self.headers: dict[str, str] = {}
        self.body: dict[str, Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.url = f"{scope['scheme']}://{self.headers['host']}{scope['path']}"
        self.body = json.loads(await body_of(receive))
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(self))


async def server_asked_with(spec: str, **settings: Any) -> Server:
    server = Server()
    model = chat_model(spec, http_client=server.client, **settings)
    with pytest.raises(Rejected):
        await model([UserMsg("user", "Hi")], [TOOL], ToolChoice("required"))
    await model.aclose()
    return server


@pytest.mark.parametrize(
    ("spec", "url"),
    [
        ("openai:gpt-5-mini", "https://api.openai.com/v1/chat/completions"),
        ("anthropic:claude-sonnet-5", "https://api.anthropic.com/v1/messages"),
        ("deepseek:deepseek-chat", "https://api.deepseek.com/chat/completions"),
        ("dashscope:qwen-max", "https://dashscope.aliyuncs.com/compatible-mode/v1/chat/completions"),
        ("ollama:qwen3:8b", "http://localhost:11434/api/chat"),
        ("openai-responses:gpt-5-mini", "https://api.openai.com/v1/responses"),
        ("gemini:gemini-3-flash", "https://generativelanguage.googleapis.com/v1beta/models/gemini-3-flash"),
        ("groq:openai/gpt-oss-120b", "https://api.groq.com/openai/v1/chat/completions"),
        ("llama.cpp:any", "http://localhost:8080/v1/chat/completions"),
        ("lmstudio:qwen3", "http://localhost:1234/v1/chat/completions"),
        ("mistral:mistral-large-latest", "https://api.mistral.ai/v1/chat/completions"),
        ("openrouter:openai/gpt-5-mini", "https://openrouter.ai/api/v1/chat/completions"),
        ("vllm:Qwen/Qwen3-8B", "http://localhost:8000/v1/chat/completions"),
        ("xai:grok-4", "https://api.x.ai/v1/chat/completions"),
        ("cerebras:m", "https://api.cerebras.ai/v1/chat/completions"),
        ("cohere:m", "https://api.cohere.ai/compatibility/v1/chat/completions"),
        ("fireworks:m", "https://api.fireworks.ai/inference/v1/chat/completions"),
        ("github:openai/m", "https://models.github.ai/inference/chat/completions"),
        ("huggingface:m:fastest", "https://router.huggingface.co/v1/chat/completions"),
        ("litellm:m", "http://localhost:4000/v1/chat/completions"),
        ("moonshot:m", "https://api.moonshot.ai/v1/chat/completions"),
        ("nvidia:m", "https://integrate.api.nvidia.com/v1/chat/completions"),
        ("perplexity:m", "https://api.perplexity.ai/chat/completions"),
        ("together:m", "https://api.together.xyz/v1/chat/completions"),
        ("zai:m", "https://api.z.ai/api/paas/v4/chat/completions"),
    ],
)
async def test_a_spec_leads_to_its_provider_with_its_key(spec: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, _, name = spec.partition(":")
    variable = PRESETS[provider].key_variable
    if variable:
        monkeypatch.setenv(variable, f"key-of-{provider}")

    server = await server_asked_with(spec)

    assert server.url.partition(":streamGenerateContent")[0] == url
    assert server.body.get("model", name) == name
    key = (
        server.headers.get("x-api-key")
        or server.headers.get("x-goog-api-key")
        or server.headers["authorization"].removeprefix("Bearer ")
    )
    assert key == (f"key-of-{provider}" if variable else "none")


async def test_settings_win_over_the_preset_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "key-of-environment")

    server = await server_asked_with(
        "deepseek:deepseek-chat", base_url="https://proxy.example/v1", api_key="key-given", temperature=0.5
    )

    assert server.url == "https://proxy.example/v1/chat/completions"
    assert server.headers["authorization"] == "Bearer key-given"
    assert server.body["temperature"] == 0.5


@pytest.mark.parametrize(
    ("provider", "sent"), [("openai", "required"), ("groq", "required"), ("deepseek", "auto"), ("dashscope", "auto")]
)
async def test_a_preset_knows_what_its_servers_refuse(provider: str, sent: str) -> None:
    assert (await server_asked_with(f"{provider}:some-model", api_key="key")).body["tool_choice"] == sent


ALLOWS = {"openai", "openai-responses", "gemini"}


@pytest.mark.parametrize("provider", PRESETS)
async def test_a_server_is_held_to_the_named_tools_or_gets_no_others(provider: str) -> None:
    class NameLook(MiddlewareBase):
        async def on_reasoning(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            async for item in next_handler(tool_choice=ToolChoice(tools=["look"])):
                yield item

    server, preset = Server(), PRESETS[provider]
    address = {} if provider in ALLOWS else {"base_url": "https://server.example/v1"}
    model = chat_model(f"{provider}:{preset.example}", api_key="key", http_client=server.client, **address)
    assert model.supports_allowed_tools == (provider in ALLOWS)

    def look() -> None:
        """Look."""

    def shut() -> None:
        """Shut."""

    async with Agent("a", model=model, tools=[look, shut], middlewares=[NameLook()]) as agent:
        with pytest.raises(Rejected):
            await agent.reply("Hello")
        asked = [server.body]
        with pytest.raises(Rejected):
            await model([UserMsg("Hello")], agent.toolkit.get_json_schemas(), ToolChoice(tools=["look"]))
        asked.append(server.body)
    for body in asked:
        tools = json.dumps(body.get("tools") or body.get("toolConfig"))
        assert ("shut" in tools) == (provider in ALLOWS)
        choice = body.pop("tool_choice", None) or body.get("toolConfig")
        assert "look" in json.dumps(choice) or provider not in ALLOWS


@pytest.mark.parametrize(
    ("provider", "variable", "value", "url"),
    [
        ("cloudflare", "CLOUDFLARE_ACCOUNT_ID", "a1", "https://api.cloudflare.com/client/v4/accounts/a1/ai/v1"),
        ("databricks", "DATABRICKS_HOST", "mine.example/", "https://mine.example/serving-endpoints"),
        ("databricks", "DATABRICKS_HOST", "https://mine.example", "https://mine.example/serving-endpoints"),
    ],
)
async def test_a_rented_server_has_the_address_of_its_account(
    provider: str, variable: str, value: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert (await server_asked_with(f"{provider}:m", api_key="key")).url == f"{url}/chat/completions"


def test_each_example_names_a_known_model() -> None:
    for provider in ("anthropic", "gemini", "mistral", "openai", "xai"):
        assert known_capabilities(PRESETS[provider].example).tools, provider


async def test_rented_servers_are_found_by_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'gpt' has no address: set AZURE_OPENAI_ENDPOINT, or give base_url"):
        chat_model("azure:gpt")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com/")
    with pytest.raises(ConfigError, match="set AZURE_OPENAI_API_KEY"):
        chat_model("azure:gpt")
    azure = await server_asked_with("azure:gpt", api_key="key")
    assert azure.url == "https://mine.openai.azure.com/openai/v1/chat/completions"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    bedrock = await server_asked_with("bedrock:gpt", api_key="key")
    assert bedrock.url == "https://bedrock-runtime.eu-west-1.amazonaws.com/model/gpt/converse-stream"
    for project, words in (("my-project", "europe west"), ("my project", "europe-west1")):
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", project)
        monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", words)
        with pytest.raises(ConfigError, match="a project and a location are words"):
            chat_model("vertex:gemini-3-pro")


@pytest.mark.parametrize("path", ["", "/", "/openai", "/openai/v1/", "/openai/deployments/gpt?api-version=2024-10-21"])
def test_an_address_of_azure_is_taken_as_its_pages_show_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("https://openai.example", "https://gateway.example/openai-mine"):
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", f"{host}{path}")
        model: Any = chat_model("azure:gpt", api_key="key")
        assert model.base_url == f"{host}/openai/v1"


async def test_ids_and_names_have_the_form_that_mistral_demands() -> None:
    server = Server()
    model = chat_model("mistral:some-model", http_client=server.client, api_key="key")
    calls = [ToolCallBlock("call_0fypS1hVX", "look", "{}"), ToolCallBlock("a1B2c3D4e", "look", "{}")]
    results = [ToolResultBlock(call.id, "look", "x") for call in calls]
    with pytest.raises(Rejected):
        await model([UserMsg("ann", "Hi"), AssistantMsg("a", [*calls, *results])], [TOOL])
    await model.aclose()

    user, said, *answers = server.body["messages"]
    assert "name" not in user
    assert "stream_options" not in server.body
    ids = [call["id"] for call in said["tool_calls"]]
    assert ids == [answer["tool_call_id"] for answer in answers]
    assert (re.fullmatch("[0-9a-f]{9}", ids[0]) is not None, ids[1]) == (True, "a1B2c3D4e")


async def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://box:8000/v1")

    server = await server_asked_with("openai:local")

    assert (server.url, server.headers["authorization"]) == ("http://box:8000/v1/chat/completions", "Bearer none")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://localhost:11434"),
        ("box", "http://box:11434"),
        ("box:80", "http://box"),
        ("http://box", "http://box"),
        ("https://box/under/", "https://box/under"),
        ("[::1]:8080", "http://[::1]:8080"),
        (":8080", "http://localhost:8080"),
        ("::1", "http://[::1]:11434"),
        ("http://fe80::2", "http://[fe80::2]"),
    ],
)
async def test_ollama_is_looked_for_where_its_variable_says(
    host: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)

    assert (await server_asked_with("ollama:qwen3")).url == f"{url}/api/chat"


async def test_an_unreachable_server_is_named_with_a_remedy(
    free_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{free_tcp_port}")
    model = OllamaChatModel("qwen3")  # the variable counts for the class as well

    with pytest.raises(Transient, match=rf"127\.0\.0\.1:{free_tcp_port} could not be reached.*is the server running"):
        await model([UserMsg("user", "Hi")])
    await model.aclose()


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ("antropic:claude", "did you mean 'anthropic'"),
        ("OpenAI:gpt-5-mini", "did you mean 'openai'"),
        ("gpt-5-mini", "write 'provider:model', as in 'openai:gpt-5-mini', with one of anthropic, azure, "),
        ("", "write 'provider:model'"),
        ("ollama", "write 'ollama:MODEL', as in 'ollama:qwen3'"),
        ("openai:", "write 'openai:MODEL', as in 'openai:gpt-5-mini'"),
        ("rules:mine", "write 'rules'"),
        ("openai:gpt-5-mini", "set OPENAI_API_KEY or give api_key="),
        ("deepseek:deepseek-chat", "set DEEPSEEK_API_KEY or give api_key="),
        ("dashscope:qwen-max", "set DASHSCOPE_API_KEY or give api_key="),
        ("anthropic:claude-sonnet-5", "set ANTHROPIC_API_KEY or give api_key="),
        ("gemini:gemini-3-flash", "set GEMINI_API_KEY or give api_key="),
        ("mistral:some-model", "set MISTRAL_API_KEY or give api_key="),
        ("mistral-large", "did you mean 'mistral:mistral-large'"),
        ("google:gemini-3-pro", "did you mean 'gemini:gemini-3-pro'"),
        ("vertex:gemini-3-pro", "has no address: set GOOGLE_CLOUD_PROJECT, or give base_url"),
        ("vertexai", "did you mean 'vertex'"),
        (None, "takes a str such as 'openai:gpt-5-mini'"),
    ],
)
def test_what_is_missing_or_wrong_comes_with_the_remedy(spec: Any, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chat_model(spec)
    assert remedy in str(caught.value)


def test_a_spec_takes_a_function_in_place_of_the_key() -> None:
    assert chat_model("azure:x", base_url="http://a/openai/v1", api_key=lambda: "key").base_url == "http://a/openai/v1"
    signed = chat_model("ollama:qwen3", auth=lambda method, url, body: {})
    assert signed.base_url == "http://localhost:11434"


@pytest.mark.parametrize("spec", ["openai:some-model", "anthropic:some-model", "rules"])
def test_an_unknown_setting_is_refused_with_the_list_of_settings(spec: str) -> None:
    settings = {} if spec == "rules" else {"api_key": "key"}
    with pytest.raises(
        ConfigError, match=r"no parameter 'temprature': (did you mean 'temperature'|it takes stream)"
    ) as caught:
        chat_model(spec, temprature="canary", **settings)
    assert "canary" not in str(caught.value)


def test_a_password_in_the_host_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "http://user:canary@box:1/under")

    with pytest.raises(ConfigError, match="'http://box:1/under'") as caught:
        chat_model("ollama:qwen3")
    assert "canary" not in str(caught.value)


def test_a_wrong_host_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "box:many")

    with pytest.raises(ConfigError, match="OLLAMA_HOST is 'box:many'"):
        chat_model("ollama:qwen3")


def test_a_model_is_returned_as_it_is_and_takes_no_settings() -> None:
    model = ScriptedChatModel(["Hello"])

    assert chat_model(model) is model
    with pytest.raises(ConfigError, match="temperature"):
        chat_model(model, temperature=0)


@pytest.mark.parametrize(
    ("environment", "kind", "name"),
    [
        ({}, RulesChatModel, "rules"),
        ({"OPENAI_API_KEY": ""}, RulesChatModel, "rules"),
        ({"OPENAI_API_KEY": "key"}, OpenAIChatModel, "gpt-5-mini"),
        ({"OPENAI_BASE_URL": "http://localhost:8000/v1"}, OpenAIChatModel, "gpt-5-mini"),
        ({"ANTHROPIC_API_KEY": "key"}, AnthropicChatModel, "claude-sonnet-5"),
        ({"ANTHROPIC_API_KEY": "key", "OPENAI_API_KEY": "key"}, OpenAIChatModel, "gpt-5-mini"),
        ({"OPENAI_API_KEY": "key", "AGENTRT_MODEL": "ollama:qwen3"}, OllamaChatModel, "qwen3"),
        ({"OPENAI_API_KEY": "key", "AGENTRT_MODEL": "rules"}, RulesChatModel, "rules"),
    ],
)
def test_the_environment_chooses_the_default_model(
    environment: dict[str, str], kind: type[ChatModelBase], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)

    model = default_model()

    assert (type(model), model.model) == (kind, name)


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("OPENAI_KEY", "OPENAI_KEY is set: did you mean OPENAI_API_KEY?"),
        ("GEMINI_API_KEY", "GEMINI_API_KEY is set, so write AGENTRT_MODEL=gemini:"),
        ("ANTHROPIC_API_KEYS", "did you mean ANTHROPIC_API_KEY?"),
        ("SOMETHING_ELSE", "set one of them, as in AGENTRT_MODEL=ollama:qwen3"),
    ],
)
def test_no_model_is_a_warning_or_an_error(
    variable: str, hint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(variable, "SECRET")

    assert isinstance(default_model(), RulesChatModel)
    with pytest.raises(ConfigError) as error:
        default_model(offline=False)

    [warning] = caplog.messages
    for text in (warning, str(error.value)):
        assert "none of AGENTRT_MODEL, OPENAI_API_KEY, OPENAI_BASE_URL, ANTHROPIC_API_KEY is set" in text
        assert hint in text
        assert "SECRET" not in text


def test_the_example_server_does_not_start_without_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # its conversations would be here

    with pytest.raises(ConfigError, match="no model is configured"):
        runpy.run_path(str(Path(__file__).parents[2] / "examples" / "deploy" / "server.py"))


def test_an_unknown_model_of_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRT_MODEL", "gpt5")

    with pytest.raises(ConfigError, match="AGENTRT_MODEL names no usable model: 'gpt5' names an unknown provider"):
        default_model()


# Where else a spec is taken


@pytest.mark.parametrize("make", [Agent, lambda name, model: ReActAgent(name, "", model)], ids=["Agent", "ReActAgent"])
async def test_an_agent_takes_a_spec(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make("ann", model="rules")
    assert isinstance(agent.model, RulesChatModel)
    assert "Hello" in (await agent.reply("Hello!")).get_text_content()
    with pytest.raises(ConfigError, match="set OPENAI_API_KEY or give api_key="):
        make("ann", model="openai:gpt-5-mini")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert make("ann", model="openai:gpt-5-mini").model.model == "gpt-5-mini"


async def test_a_fallback_takes_specs() -> None:
    scripted = ScriptedChatModel([Transient("503")] * 2)
    alone, listed = ModelFallbackMiddleware("rules"), ModelFallbackMiddleware([scripted, "rules"])
    for layer in (alone, listed):
        assert isinstance(layer.models[-1], RulesChatModel)
    agent = Agent("ann", model=ScriptedChatModel([Transient("503")]), middlewares=[listed])
    assert "Hello" in (await agent.reply("Hello!")).get_text_content()
    with pytest.raises(ConfigError, match="set ANTHROPIC_API_KEY"):
        ModelFallbackMiddleware("anthropic:claude-sonnet-5")


async def test_a_layer_that_passes_on_a_spec_learns_what_to_write() -> None:
    class Changes(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            return await next_handler(current_model="rules")

    agent = Agent("ann", model="rules", middlewares=[Changes()])
    with pytest.raises(ChainError, match=r"current_model='rules' .* make the model once, with chat_model\(\.\.\.\)"):
        await agent.reply("Hello!")


def test_a_spec_set_as_the_model_is_refused_with_the_remedy() -> None:
    agent: Any = Agent("ann", model="rules")
    agent.model = "rules"
    with pytest.raises(ConfigError, match=r"set to 'rules': write agent.model = chat_model\(\.\.\.\)"):
        agent.reply_stream("Hello!")
