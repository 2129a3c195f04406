"""Tokens are estimated by the script of the text, or counted by a tokenizer of the user's."""

import base64
import struct
from itertools import repeat
from typing import Any

import httpx2
import pytest

from agentrt import Agent
from agentrt.agent import ContextConfig
from agentrt.errors import ConfigError
from agentrt.message import Base64Source, DataBlock, Msg, SystemMsg, URLSource, UserMsg
from agentrt.middleware import MiddlewareBase, RateLimitMiddleware
from agentrt.model import OpenAIChatModel, ScriptedChatModel
from agentrt.model.estimate import characters_of, estimated_usage, text_length
from tests.loop.helpers import add, call

# The first article of the Universal Declaration of Human Rights, code and emoji, with the tokens that o200k of OpenAI
# and Tekken of Mistral make of them.
TEXTS = {
    "English": (
        "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience "
        "and should act towards one another in a spirit of brotherhood.",
        (33, 33),
    ),
    "Chinese": ("人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。", (35, 39)),
    "Japanese": (
        "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心とを授けられて"
        "おり、互いに同胞の精神をもって行動しなければならない。",
        (71, 62),
    ),
    "Korean": (
        "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을"
        " 부여받았으며 서로 "
        "형제애의 정신으로 행동하여야 한다.",
        (51, 46),
    ),
    "Russian": (
        "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и "
        "должны поступать в отношении друг друга в духе братства.",
        (41, 46),
    ),
    "Arabic": (
        "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميرًا وعليهم أن يعامل بعضهم بعضًا بروح "
        "الإخاء.",
        (44, 40),
    ),
    "Hindi": (
        "सभी मनुष्यों को गौरव और अधिकारों के मामले"
        " में जन्मजात स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त "
        "है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए।",
        (54, 60),
    ),
    "code": (
        "def total(orders: list[Order]) -> float:\n"
        "    return sum(order.price * order.count for order in orders if not order.cancelled)\n",
        (30, 30),
    ),
    "emoji": ("🎉🚀😀👍🔥✨🌍🍎🐍📦", (16, 39)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_estimate_knows_scripts(name: str) -> None:
    text, counts = TEXTS[name]
    estimate = text_length(text) / 4
    assert 0.8 * min(counts) <= estimate <= 1.4 * max(counts)
    # Long text is estimated from a part of it, spread over all of it.
    assert abs(text_length(text * 1_000) / (4_000 * estimate) - 1) < 0.15


def test_plain_text_counts_by_its_characters() -> None:
    assert text_length("") == 0
    assert text_length("x" * 10_001) == 10_001
    assert text_length("\ud800") > 0  # half of a character, as a cut stream has it
    assert estimated_usage([UserMsg("hello you")], []).input_tokens == 3


def image(data: bytes, media_type: str = "image/png") -> DataBlock:
    return DataBlock(Base64Source(base64.b64encode(data).decode(), media_type))


PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 1_000, 750) + bytes(9)
JPEG = b"\xff\xd8\xff\xe0\x00\x10" + bytes(14) + b"\xff\xc4\x00\x04\x00\x00\xff\xc0\x00\x11\x08"
JPEG += struct.pack(">HH", 750, 1_000) + bytes(10)
WEBP = b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + (999).to_bytes(3, "little") + (749).to_bytes(3, "little")


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        (image(PNG), 1_000),
        (image(JPEG, "image/jpeg"), 1_000),
        (image(WEBP, "IMAGE/webp"), 1_000),
        (image(b"GIF89a" + struct.pack("<HH", 1_000, 750)), 1_000),
        (image(PNG.replace(struct.pack(">I", 1_000), struct.pack(">I", 90_000))), 1_600),
        (image(b"GIF89a\x01\0\x01\0"), 85),
        (image(b"\xff\xd8\xff"), 1_000),  # of unknown size
        (DataBlock(Base64Source("not base64!", "image/png")), 1_000),
        (DataBlock(URLSource("https://x/y.png", "image/png")), 1_000),
    ],
)
def test_images_count_by_their_size(block: DataBlock, tokens: int) -> None:
    assert characters_of(block) == 4 * tokens


PAGES = b"%PDF-1.4\n" + b"<< /Type /Page >>\n" * 3
TREE = b"<< /Type /Pages /Kids [1 0 R 2 0 R] /Count 12 >>"
WAV = b"RIFF" + struct.pack("<I8sIHHIIHH", 0, b"WAVEfmt ", 16, 1, 1, 8_000, 16_000, 2, 16) + bytes(16_000 * 10)
MP4 = b"\0\0\0\x6cmvhd" + struct.pack(">IIIII", 0, 0, 0, 1_000, 20_000)
LATER_MP4 = b"\0\0\0\x78mvhd\1\0\0\0" + struct.pack(">QQIQ", 0, 0, 1_000, 20_000)


@pytest.mark.parametrize(
    ("data", "media_type", "tokens"),
    [
        (PAGES, "application/pdf", 3 * 2_000),
        (b"%PDF-1.4 " + bytes(200_000) + TREE + bytes(90), "application/pdf", 12 * 2_000),
        (b"%PDF-1.7 " + bytes(199_991), "application/pdf", 4 * 2_000),  # compressed
        (b"/Count 999999 /Type /Pages", "application/pdf", 3_000 * 2_000),
        (WAV, "audio/wav", 10 * 32),
        (bytes(48_000 * 5), "audio/pcm;rate=24000", 5 * 32),
        (bytes(16_000 * 7), "audio/mpeg", 7 * 32),
        (MP4, "audio/mp4", 20 * 32),
        (bytes(150_000) + MP4, "video/mp4", 20 * 300),
        (LATER_MP4, "video/mp4", 20 * 300),
        (bytes(750_000), "video/webm", 3 * 300),
        (b"a,b\n" * 300, "text/csv", 300),
        (bytes(3_000), "application/zip", 0),
    ],
)
def test_files_count_by_their_pages_and_seconds(data: bytes, media_type: str, tokens: int) -> None:
    assert characters_of(image(data, media_type)) == 4 * tokens


@pytest.mark.parametrize(("media_type", "tokens"), [("application/pdf", 10_000), ("audio/mpeg", 1_920)])
def test_a_file_that_is_elsewhere_counts_as_a_short_one(media_type: str, tokens: int) -> None:
    block = DataBlock(URLSource("https://x/y", media_type))
    assert characters_of(block) == 4 * tokens


class Counter:
    """A tokenizer to which each word is a token."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> int:
        self.texts.append(text)
        return len(text.split())


class Estimating(MiddlewareBase):
    def __init__(self) -> None:
        self.estimates: list[int] = []

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        messages = [message for message in input_kwargs["messages"] if message.role != "system"]
        self.estimates.append(agent.run.estimate_tokens(messages, model=input_kwargs["current_model"]))
        return await next_handler(**input_kwargs)


async def test_a_tokenizer_of_the_user_counts_each_text_once() -> None:
    count, estimating = Counter(), Estimating()
    rounds = [[call(str(number), "add", a=number, b=2)] for number in range(5)]
    model = ScriptedChatModel([*rounds, "one two three", "yes"], count_tokens=count)
    agent = Agent("a", model=model, tools=[add], middlewares=[estimating])
    long = "word " * 1_000
    await agent.reply(long)
    await agent.reply("go on")
    assert model.count_tokens is count
    assert 1_000 < estimating.estimates[0] <= estimating.estimates[-1] < 1_100
    assert count.texts.count(long) <= 3  # in the history, in requests, and where it was new
    agent.model = ScriptedChatModel(["no"])
    await agent.reply("go on")
    assert estimating.estimates[-1] > 1_200  # five characters a word, as is estimated without a tokenizer


async def test_rate_limits_and_compression_go_by_the_tokenizer() -> None:
    waits: list[float] = []

    class Asked(RateLimitMiddleware):
        def _tokens_of(self, model: Any, request: int) -> Any:
            waits.append(request)
            return super()._tokens_of(model, request)

    text = "a b c d " * 100  # 400 words of 800 characters
    summaries = []
    for count in (Counter(), None):
        model = ScriptedChatModel(repeat("ok"), context_size=900, count_tokens=count)
        layer = Asked(tokens_per_minute=100_000)
        agent = Agent("a", model=model, middlewares=[layer], context_config=ContextConfig(reserve_ratio=0))
        await agent.reply(text)
        await agent.reply(text)
        summaries.append(agent.state.summary)
    assert summaries == ["ok", ""]
    assert waits[0] > 400 > waits[-2]


async def test_a_server_that_counts_nothing_is_counted_for() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        choice = {"index": 0, "message": {"content": "one two three"}, "finish_reason": "stop"}
        return httpx2.Response(200, json={"id": "1", "choices": [choice]})

    model = OpenAIChatModel(
        "mine",
        api_key="k",
        stream=False,
        count_tokens=Counter(),
        http_client=lambda: httpx2.AsyncClient(transport=httpx2.MockTransport(answer)),
    )
    response: Any = await model([SystemMsg("system", "be kind"), UserMsg("how are you")])
    assert (response.usage.input_tokens, response.usage.output_tokens) == (5 + 1, 3 + 1)
    assert response.usage.estimated


@pytest.mark.parametrize(
    "fault", [ValueError("<|endoftext|>"), "five", -1, pytest.param(-(10**5_000), id="long"), True, None]
)
async def test_where_a_tokenizer_fails_the_estimate_stands(fault: Any, caplog: pytest.LogCaptureFixture) -> None:
    def count(text: str) -> Any:
        if isinstance(fault, Exception):
            raise fault
        return fault

    estimating = Estimating()
    agent = Agent("a", model=ScriptedChatModel(["ok"] * 2, count_tokens=count), middlewares=[estimating])
    await agent.reply("x" * 400)
    await agent.reply("x" * 400)
    assert estimating.estimates == [101, 202 - 1]
    assert [record.message[:12] for record in caplog.records] == ["count_tokens"]
    assert "endoftext" not in caplog.text


def test_a_tokenizer_that_must_be_awaited_is_refused() -> None:
    async def count(text: str) -> int:
        return 1

    wrong: Any
    for wrong in (count, 7):
        with pytest.raises(ConfigError, match=r"ScriptedChatModel\(count_tokens=...\) must be a plain function"):
            ScriptedChatModel([], count_tokens=wrong)


async def test_a_summary_of_chinese_text_fits_its_context() -> None:
    lengths: list[float] = []

    def answer(messages: list[Msg], tools: Any) -> str:
        lengths.append(sum(text_length(message.get_text_content() or "") / 4 for message in messages))
        return "好"

    model = ScriptedChatModel(repeat(answer), context_size=1_000)
    agent = Agent("a", model=model, context_config=ContextConfig(reserve_ratio=0))
    for _ in range(3):
        await agent.reply("人人生而自由在尊严和权利上一律平等" * 40)
    assert agent.state.summary
    assert max(lengths) < 1_050
