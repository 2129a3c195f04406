"""What a notebook shows of messages and chains, which models and users wrote: as text, never as markup."""

import base64
import json
from html.parser import HTMLParser

import pytest

from agentrt import Agent, Msg
from agentrt.message import (
    Base64Source,
    DataBlock,
    HintBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
)
from agentrt.model import RulesChatModel

EVIL = "<script>alert('1')</script> & \"quoted\""
OURS = {"b", "blockquote", "code", "details", "div", "img", "pre", "summary"}


class Reader(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize(
    "content",
    [
        EVIL,
        [TextBlock(EVIL)],
        [ThinkingBlock(EVIL)],
        [HintBlock(EVIL)],
        [ProviderBlock("anthropic", EVIL)],
        [ToolCallBlock("1", EVIL, EVIL)],
        [ToolResultBlock("1", "f", EVIL)],
        [ToolResultBlock("1", "f", [TextBlock(EVIL)])],
        [DataBlock(Base64Source("AAAA", EVIL))],
        [DataBlock(URLSource("http://example.org/" + EVIL, EVIL))],
    ],
)
def test_a_message_is_shown_whole_and_as_text(content):
    shown = Reader(Msg(EVIL, content, "assistant")._repr_html_())
    assert shown.text.count(EVIL) >= 2
    assert {tag for tag, _ in shown.tags} <= OURS


@pytest.mark.parametrize("content", [5, None, [{"type": "text", "text": "Hi"}], ["Hi"]])
def test_a_message_that_was_spoilt_is_shown_by_its_repr(content):
    message = Msg("ann", [], "assistant")
    message.content = content
    assert message._repr_html_() is None
    assert repr(message).startswith("Msg(")
    assert Msg.__new__(Msg)._repr_html_() is None


def test_an_image_is_shown_and_nothing_is_fetched():
    pixel = base64.b64encode(b"pixel").decode()
    blocks = [
        DataBlock(Base64Source(pixel, "image/png")),
        DataBlock(Base64Source('" onerror="alert(1)', "image/png")),
        DataBlock(URLSource("http://example.org/spy.png", "image/png")),
    ]
    images = [attributes for tag, attributes in Reader(Msg("a", blocks, "user")._repr_html_()).tags if tag == "img"]
    assert [set(attributes) for attributes in images] == [{"src", "style"}] * 2
    assert images[0]["src"] == f"data:image/png;base64,{pixel}"
    assert all(attributes["src"].startswith("data:image/png;base64,") for attributes in images)


def test_the_chains_are_shown_line_by_line_and_stay_a_str():
    agent = Agent(EVIL, model=RulesChatModel())
    text = agent.explain()
    shown = Reader(text._repr_html_())
    assert isinstance(text, str)
    assert [tag for tag, _ in shown.tags] == ["pre"]
    assert shown.text == text == f"{text}"
    assert json.loads(agent.explain("json"))["agent"] == EVIL


def test_the_diagram_of_the_chains_is_drawn():
    text = Agent("tester", model=RulesChatModel()).explain("mermaid")
    assert text._repr_markdown_() == f"```mermaid\n{text}\n```"
    assert not hasattr(text, "_repr_html_")
