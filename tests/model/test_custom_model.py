"""A custom model may stream pieces alone: calling it returns the whole answer after them."""

from contextlib import aclosing
from typing import Any

from agentrt import Agent, MiddlewareBase, UserMsg
from agentrt.message import Base64Source, ContentBlock, DataBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage, ModelResult
from agentrt.model.scripted import ScriptedChatModel

PIECES: list[ContentBlock] = [
    ThinkingBlock("h"),
    ThinkingBlock("m", signature="s"),
    TextBlock("Hel"),
    TextBlock("lo"),
    ToolCallBlock("1", "add", '{"a": '),
    ToolCallBlock("2", "add", "{}"),
    ToolCallBlock("1", "", "1}"),
    DataBlock(Base64Source("YQ==", "image/png"), id="d"),
    DataBlock(Base64Source("Yg==", "image/png"), id="d"),
]


class Pieces(ChatModelBase):
    def __init__(self, pieces: list[ContentBlock]) -> None:
        super().__init__(model="pieces")
        self.pieces = pieces
        self.closed = 0

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> ModelResult:
        async def stream() -> Any:
            try:
                for piece in self.pieces:
                    yield ChatResponse([piece], is_last=False, usage=ChatUsage(1, 2), id="r")
            finally:
                self.closed += 1

        return stream()


async def read(model: ChatModelBase) -> list[ChatResponse]:
    result = await model([UserMsg("Hi")])
    assert not isinstance(result, ChatResponse)
    async with aclosing(result) as stream:
        return [response async for response in stream]


async def test_a_stream_without_a_last_response_gets_one():
    *pieces, whole = await read(Pieces(PIECES))
    assert [piece.content for piece in pieces] == [[piece] for piece in PIECES]
    assert (whole.is_last, whole.usage, whole.id) == (True, ChatUsage(1, 2), "r")
    thinking, text, first, second, data = whole.content
    assert (thinking.thinking, thinking.signature, text.text) == ("hm", "s", "Hello")
    assert [(call.id, call.name) for call in (first, second)] == [("1", "add"), ("2", "add")]
    assert (first.input, second.input) == ('{"a": 1}', "{}")
    assert data.source.data == "YWI="


async def test_a_stream_that_is_left_is_closed_without_a_last_response():
    model = Pieces(PIECES)
    async with aclosing(await model([UserMsg("Hi")])) as stream:
        await anext(stream)
    assert model.closed == 1
    assert [response async for response in stream] == []


async def test_the_stream_of_a_subclass_gets_one_as_well():
    class Cut(ScriptedChatModel):
        async def _call(self, *arguments: Any) -> ModelResult:
            stream = await super()._call(*arguments)

            async def cut() -> Any:
                async with aclosing(stream):
                    async for piece in stream:
                        if not piece.is_last:
                            yield piece

            return cut()

    assert (await read(Cut(["Hello there."])))[-1].content[0].text == "Hello there."


async def test_a_layer_sees_the_whole_after_the_pieces():
    seen: list[ChatResponse] = []

    class Looks(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            stream = await next_handler()

            async def look() -> Any:
                async for response in stream:
                    seen.append(response)
                    yield response

            return look()

    agent = Agent("tester", model=Pieces(PIECES[:4]), middlewares=[Looks()])
    message = await agent.reply("Hi")
    assert (seen[-1].is_last, message.get_text_content(), len(message.content)) == (True, "Hello", 2)
