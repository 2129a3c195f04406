"""What a model can do is known before it is asked, and what it cannot do is refused in time."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import genai_prices
import httpx2
import pytest

from agentrt import Agent
from agentrt.agent import ContextConfig
from agentrt.errors import ConfigError, Transient, Unsupported
from agentrt.message import AssistantMsg, Base64Source, DataBlock, Msg, TextBlock, ToolResultBlock, UserMsg
from agentrt.middleware import Budget, BudgetMiddleware, ModelFallbackMiddleware, ModelRouterMiddleware
from agentrt.model import (
    AnthropicChatModel,
    ChatModelBase,
    ChatUsage,
    GeminiChatModel,
    ModelCapabilities,
    OpenAIChatModel,
    PublishedPrices,
    RulesChatModel,
    ScriptedChatModel,
    TokenPrices,
    chat_model,
    known_capabilities,
)
from agentrt.model.catalog.lookup import read_table
from agentrt.model.claude import CLAUDE_RULES
from tests.loop.helpers import add

IMAGE = DataBlock(Base64Source("aGk=", "image/png"))
LOOK = UserMsg([TextBlock("what is this?"), IMAGE])
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
TEXT_ONLY = ModelCapabilities(inputs=frozenset(), tools=False, schema=False)


class NoServer(httpx2.AsyncBaseTransport):
    """Counts what is sent to it."""

    requests = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests += 1
        return httpx2.Response(500, content=b"sent")


def model_of(cls: Any, name: str, server: NoServer | None = None, **options: Any) -> Any:
    transport = server or NoServer()
    return cls(name, api_key="k", http_client=lambda: httpx2.AsyncClient(transport=transport), **options)


def test_a_known_model_says_what_it_can_do() -> None:
    known = model_of(OpenAIChatModel, "gpt-5-mini").capabilities
    assert (known.context_size, known.max_input_tokens, known.max_output_tokens) == (400_000, 272_000, 128_000)
    assert known.inputs == {"text", "image", "pdf"}
    assert (known.tools, known.schema, known.reasoning) == (True, True, True)
    assert known.prices == PublishedPrices("gpt-5-mini", "https://api.openai.com/v1")


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("gpt-5-mini-2025-08-07", "gpt-5-mini"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-opus-4@20250514", "claude-opus-4"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("google/gemini-2.5-pro", "gemini-2.5-pro"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("arn:aws:bedrock:eu-west-1:1:inference-profile/eu.anthropic.claude-opus-4-6-v1:0", "claude-opus-4-6"),
        ("global.anthropic.claude-opus-5", "claude-opus-5"),
        ("amazon.nova-pro-v1:0", "amazon.nova-pro"),
        ("apac.amazon.nova-pro-v1:0:300k", "amazon.nova-pro"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
    ],
)
def test_dated_names_and_those_with_a_maker_are_found(name: str, listed: str) -> None:
    assert known_capabilities(name) is known_capabilities(listed)
    assert known_capabilities(listed).context_size is not None


@pytest.mark.parametrize(
    "name", ["gpt-5-minimal", "my-gpt-5", "gpt-5-mini-2025", "ft:gpt-4o:org::id", "openai/gpt-oss-120b", "qwen3", ""]
)
def test_an_unknown_model_is_unknown_and_not_guessed(name: str) -> None:
    assert known_capabilities(name) == ModelCapabilities()


def test_a_name_that_is_not_a_str_is_refused() -> None:
    wrong: Any = None
    with pytest.raises(ConfigError, match="takes the name of a model as a str, not None"):
        known_capabilities(wrong)


def test_a_name_of_many_servers_is_known_on_one_of_them() -> None:
    here = model_of(OpenAIChatModel, "openai/gpt-oss-120b", base_url="https://api.groq.com/openai/v1")
    assert here.capabilities.context_size == here.context_size == 131_072
    elsewhere = model_of(OpenAIChatModel, "openai/gpt-oss-120b", base_url="http://localhost:8000/v1")
    assert replace(elsewhere.capabilities, prices=None) == ModelCapabilities()
    assert elsewhere.context_size == 128_000


def test_the_table_is_consistent_with_itself_and_with_the_rules() -> None:
    for name, known in read_table().items():
        size = known.context_size or 0
        assert (known.max_input_tokens or 0) <= size, name
        assert known.max_output_tokens is None or known.max_output_tokens <= size, name
    for version, rules in CLAUDE_RULES.items():
        assert known_capabilities(f"claude-{version}").schema in (rules.json_schema, None), version


def test_given_capabilities_take_the_place_of_known_ones() -> None:
    given = replace(known_capabilities("gpt-5-mini"), context_size=64_000, prices=TokenPrices(1, 2, 0.5))
    model = chat_model("openai:gpt-5-mini", api_key="k", capabilities=given)
    assert model.capabilities is given
    assert model.context_size == 64_000
    assert chat_model("openai:gpt-5-mini", api_key="k", capabilities=given, context_size=9_000).context_size == 9_000
    words = ScriptedChatModel([], capabilities={"tools", "image"}).capabilities
    assert words == ModelCapabilities(inputs=frozenset({"image"}), tools=True)

    class Mine(ChatModelBase):
        capabilities = frozenset({"tools"})  # type: ignore[assignment]  # as a class may state it for all of them

    assert Mine(model="mine").capabilities == ModelCapabilities(inputs=frozenset(), tools=True)


def test_context_sizes_of_unknown_models_are_as_before() -> None:
    sizes = [model_of(cls, "nobody").context_size for cls in (OpenAIChatModel, AnthropicChatModel, GeminiChatModel)]
    assert sizes == [128_000, 200_000, 1_000_000]
    assert RulesChatModel().context_size == ScriptedChatModel([]).context_size == 128_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context_size": 0}, r"context_size=...\) must be a whole number of at least 1, not 0"),
        ({"inputs": ["smell"]}, "must be a set of text, image, audio, video, pdf"),
        ({"inputs": "image"}, "must be a set of text, image"),
        ({"inputs": {"image": False}}, "must be a set of text, image"),
        ({"inputs": iter(["image"])}, "must be a set of text, image"),
        ({"tools": "yes"}, r"tools=...\) must be True, False or None, not 'yes'"),
        ({"prices": 3}, r"must be TokenPrices\(input, output\)"),
        ({"prices": TokenPrices}, r"must be TokenPrices\(input, output\)"),
    ],
)
def test_wrong_capabilities_are_refused_with_the_remedy(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ModelCapabilities(**options)


@pytest.mark.parametrize("value", [{"vison"}, 7, [["image"]], {"tools": False, "image": True}])
def test_words_that_are_no_capabilities_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"ScriptedChatModel\(capabilities=...\) must be ModelCapabilities"):
        ScriptedChatModel([], capabilities=value)


@pytest.mark.parametrize(
    ("cls", "name", "message", "tools", "capability"),
    [
        (OpenAIChatModel, "deepseek-chat", LOOK, None, "image"),
        (OpenAIChatModel, "o3-mini", LOOK, None, "image"),
        (OpenAIChatModel, "gpt-5", UserMsg([DataBlock(Base64Source("aGk=", "audio/wav"))]), None, "audio"),
        (OpenAIChatModel, "grok-3", UserMsg([DataBlock(Base64Source("aGk=", "application/pdf"))]), None, "pdf"),
        (OpenAIChatModel, "gpt-3.5-turbo", Msg("a", [ToolResultBlock("1", "look", [IMAGE])], "user"), None, "image"),
        (OpenAIChatModel, "mine", UserMsg("hi"), [TOOL], "tools"),
    ],
)
async def test_what_a_model_cannot_take_is_refused_unsent(
    cls: Any, name: str, message: Msg, tools: Any, capability: str
) -> None:
    server = NoServer()
    options = {"capabilities": TEXT_ONLY} if name == "mine" else {}
    model = model_of(cls, name, server, **options)
    with pytest.raises(Unsupported, match=rf"model '{re.escape(name)}' .*capability '{capability}'.*: .*") as caught:
        await model([message], tools)
    assert caught.value.capability == capability
    assert server.requests == 0


async def test_what_is_unknown_or_not_sent_is_let_through() -> None:
    for name, message in [
        ("nobody", LOOK),  # an unknown model
        ("deepseek-chat", AssistantMsg([IMAGE])),  # what models have made is named in words
        ("gpt-5", UserMsg([DataBlock(Base64Source("aGk=", "video/mp4"))])),  # the API has no form for it
        ("deepseek-chat", UserMsg([DataBlock(Base64Source("aGk=", "text/csv"))])),
    ]:
        server = NoServer()
        model = model_of(OpenAIChatModel, name, server)
        with pytest.raises(Transient):
            await model([message])
        assert server.requests == 1
    server = NoServer()
    with pytest.raises(Transient):
        formatter = [{"role": "user", "content": "an image of a cat"}]
        await model_of(OpenAIChatModel, "deepseek-chat", server, formatter=lambda messages: formatter)([LOOK])


async def test_a_schema_that_cannot_be_asked_for_is_refused() -> None:
    server = NoServer()
    for capabilities, mode, capability in [
        (TEXT_ONLY, "auto", "schema"),
        (replace(TEXT_ONLY, tools=True), "native", "schema"),
        (replace(TEXT_ONLY, schema=True), "auto", "tools"),
    ]:
        options = {"capabilities": capabilities, "structured_output": mode, "base_url": "http://localhost/v1"}
        model = model_of(OpenAIChatModel, "mine", server, **options)
        with pytest.raises(Unsupported) as caught:
            await Agent("a", model=model).reply("How many?", structured_schema=int)
        assert caught.value.capability == capability
    assert server.requests == 0
    # In the mode for schemas, a model without tools is asked.
    model = model_of(
        OpenAIChatModel, "mine", server, capabilities=replace(TEXT_ONLY, schema=True), structured_output="native"
    )
    with pytest.raises(Transient):
        await Agent("a", model=model).reply("How many?", structured_schema=int)


async def test_a_fallback_answers_what_the_first_model_cannot() -> None:
    blind = ScriptedChatModel(["never"], model="blind", capabilities={"tools"})
    deaf = ScriptedChatModel(["never"], model="deaf", capabilities={"audio"})
    sees = ScriptedChatModel(["a cat"], model="sees", capabilities={"image"})
    agent = Agent("a", model=blind, middlewares=[ModelFallbackMiddleware([deaf, sees])])
    assert (await agent.reply(LOOK)).get_text_content() == "a cat"
    assert [len(model.calls) for model in (blind, deaf, sees)] == [0, 0, 1]


async def test_a_router_leaves_calls_that_its_choice_cannot_take(caplog: pytest.LogCaptureFixture) -> None:
    small = ScriptedChatModel(["never"], model="small", capabilities=())
    own = ScriptedChatModel(["five"], model="own")
    router = ModelRouterMiddleware(lambda agent, messages: "small", {"small": small})
    agent = Agent("a", model=own, tools=[add], middlewares=[router])
    assert (await agent.reply("2 + 3?")).get_text_content() == "five"
    assert "the model 'small' is known to take no tools" in caplog.text


async def test_room_for_the_answer_counts_when_shortening() -> None:
    model = ScriptedChatModel(["ok"] * 3, context_size=1_000)
    assert model.max_input_tokens == 1_000
    model.settings = {"max_tokens": 400}
    assert (model.max_input_tokens, model.max_output_tokens) == (600, 400)
    model.settings = {"max_tokens": 5_000}
    assert model.max_input_tokens == 500
    model.settings = {}
    model.capabilities = ModelCapabilities(max_input_tokens=700, max_output_tokens=100)
    assert (model.max_input_tokens, model.max_output_tokens) == (700, 100)
    summaries = []
    for size in (1_000, 500):
        model = ScriptedChatModel(["ok"] * 9, context_size=1_000, capabilities=ModelCapabilities(max_input_tokens=size))
        agent = Agent("a", model=model, context_config=ContextConfig(reserve_ratio=0.05))
        await agent.reply("x" * 1_000)
        await agent.reply("y" * 1_000)
        summaries.append(agent.state.summary)
    assert summaries == ["", "ok"]


async def test_budgets_reckon_with_the_prices_of_a_model() -> None:
    prices = TokenPrices(1_000_000, 2_000_000, 0)
    assert prices.cost(ChatUsage(3, 2, 1)) == 2 + 4
    assert TokenPrices(2, 4).cost(ChatUsage(1_000_000, 0, 1_000_000)) == 2
    model = ScriptedChatModel(["ok"], capabilities=ModelCapabilities(prices=prices))
    layer = BudgetMiddleware(reply=Budget(cost=0.5), on_exceed="stop")
    answer = await Agent("a", model=model, middlewares=[layer]).reply("hi")
    assert answer.get_text_content() == "ok"  # its price is known, so it may be called


def test_published_prices_are_looked_up_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    night = datetime(2026, 11, 1, 20, tzinfo=UTC)  # when DeepSeek is cheaper
    monkeypatch.setattr(genai_prices, "calc_price", partial(genai_prices.calc_price, genai_request_timestamp=night))
    assert PublishedPrices("gpt-5-mini", "https://api.openai.com/v1").rates == TokenPrices(0.25, 2.0, 0.025)
    assert PublishedPrices("nobody", "https://api.openai.com/v1").rates is None
    # In a batch: half, not always of what was cached, and half where the data has no price for batches.
    usage, google = ChatUsage(1_000_000, 0, 500_000), "https://generativelanguage.googleapis.com/v1beta"
    assert PublishedPrices("gpt-5-mini", "https://api.openai.com/v1").batch_cost(usage) == 0.1375 / 2
    assert PublishedPrices("gemini-2.5-flash", google).batch_cost(usage) == 0.09 > 0.165 / 2
    assert PublishedPrices("deepseek-chat", "https://api.deepseek.com").batch_cost(usage) == 0.0425
    assert PublishedPrices("nobody", google).batch_cost(usage) is None
    # On Bedrock, by the id of a model or by its ARN.
    aws, name = "https://bedrock-runtime.us-east-1.amazonaws.com", "anthropic.claude-haiku-4-5-20251001-v1:0"
    costs = [
        PublishedPrices(f"{arn}{name}", aws).cost(usage) for arn in ("", "arn:aws:bedrock:us-east-1::foundation-model/")
    ]
    assert costs[0] == costs[1] is not None
    with pytest.raises(ConfigError, match=r"TokenPrices\(output=...\) must be a price"):
        TokenPrices(1, -2)
