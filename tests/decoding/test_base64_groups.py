"""Data that comes in pieces is the same data, and joining it takes time in proportion to its size."""

import base64
import random

from hypothesis import given
from hypothesis import strategies as st

from agentrt import AgentState, Msg
from agentrt._runtime.decoding.base64_groups import DataPieces
from agentrt.event import DataBlockDeltaEvent, DataBlockStartEvent, ToolResultDataDeltaEvent
from agentrt.message import AssistantMsg, Base64Source, DataBlock
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.types import ToolChunk
from tests.loop.helpers import agent_of, call, items_of, rebuilt


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def shown(message: Msg) -> bytes:
    source = message.get_content_blocks("data")[0].source
    assert isinstance(source, Base64Source)
    return base64.b64decode(source.data, validate=True)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=60))
def test_listener_lacks_two_bytes_at_most_and_none_in_the_end(parts):
    pieces, message, so_far, padded = DataPieces(), AssistantMsg("", [], id="r"), b"", 0
    message.append_event(DataBlockStartEvent("r", "b", "audio/wav"))
    for number, part in enumerate(parts):
        so_far += part
        told = pieces.take("b", encoded(part))
        message.append_event(DataBlockDeltaEvent("r", "b", "audio/wav", told))
        assert so_far.startswith(shown(message))
        assert len(so_far) - len(shown(message)) <= (2 if number else 0)
        padded += bool(told) and message.content[0].source.data.endswith("=")  # else it ends as it did before
    message.append_event(DataBlockDeltaEvent("r", "b", "audio/wav", pieces.rest("b")))
    assert shown(message) == so_far
    assert padded <= 2 * len(so_far).bit_length() + 2, "each of these is copied whole with the next piece"


async def test_thousands_of_pieces_of_data_of_a_model_are_joined():
    parts = [random.Random(n).randbytes(n % 7) for n in range(2_000)]

    def stream():
        for part in parts:
            yield ChatResponse([DataBlock(Base64Source(encoded(part), "audio/wav"), id="d")], is_last=False)
        yield ChatResponse([])

    class Model(ScriptedChatModel):
        async def _call(self, messages, tools, tool_choice):
            async def responses():
                for response in stream():
                    yield response

            return responses()

    agent = agent_of([]).with_state(AgentState())
    agent.model = Model([])
    items = await items_of(agent)
    assert shown(agent.state.context[-1]) == b"".join(parts)
    assert rebuilt(items) == agent.state.context[-1]


async def test_streamed_data_of_a_tool_begins_at_once_and_ends_whole():
    async def record():
        for part in (b"ab", b"cd", b"e"):
            yield ToolChunk([DataBlock(Base64Source(encoded(part), "audio/wav"), id="d")])

    agent = agent_of([[call("1", "record")], "done"], record)
    items = await items_of(agent)
    deltas = [base64.b64decode(item.data) for item in items if isinstance(item, ToolResultDataDeltaEvent)]
    assert deltas[0] == b"ab"
    output = agent.state.context[1].get_content_blocks("tool_result")[0].output
    assert b"".join(base64.b64decode(block.source.data) for block in output) == b"abcde"
