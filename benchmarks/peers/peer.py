"""What the measuring program asks of a peer's adapter."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.peers.script import Tool

__all__ = ["PeerBase"]


class PeerBase(ABC):
    """One peer: how it makes an agent over a fake model, and how it takes a turn.

    What an agent, a model and a conversation are is the adapter's own affair; they only come back to it. A turn returns
    the text of the answer, so that each can be compared with the script. A model keeps its last request, for `results`.
    """

    absent: ClassVar[Mapping[str, str]] = {}
    """Workloads that the peer has no concept for ("W3", "W4 layers"), each with a word why."""

    layers: ClassVar[Sequence[tuple[object, str]]] = ()
    """Owner and name of each function that must run once per model call, or once per tool call, in each layer."""

    stream_layers: ClassVar[Sequence[tuple[object, str]]] = ()
    """Owner and name of each function that must see every delta in each layer."""

    @abstractmethod
    def make_model(self, rounds: int = 0, seconds: float = 0.0) -> Any:
        """Return a model that plays `rounds` calls of `add`, one per answer, then the words; round and round."""

    @abstractmethod
    def make_streaming_model(self) -> Any:
        """Return a model that answers in `DELTAS` pieces, each time."""

    @abstractmethod
    def make_agent(self, model: Any, tools: Sequence[Tool] = (), layers: int = 0) -> Any:
        """Return an agent over this model and these functions, in layers that pass on model calls and tool calls."""

    def make_streaming_agent(self, model: Any, layers: int = 0) -> Any:
        """Return an agent in layers that see each delta and pass it on."""
        if layers:
            raise NotImplementedError("no layer of this peer sees a delta")
        return self.make_agent(model)

    @abstractmethod
    async def open_conversation(self, agent: Any, held: int = 0) -> Any:
        """Return a new conversation that holds so many messages, by the user and the assistant in turn."""

    @abstractmethod
    async def take_turn(self, conversation: Any) -> str:
        """Ask the question in this conversation."""

    @abstractmethod
    async def take_first_turn(self, agent: Any) -> str:
        """Ask the question in an empty conversation, in the way of this peer that is the quickest from turn to turn."""

    @abstractmethod
    async def stream_first_turn(self, agent: Any) -> tuple[int, str]:
        """Ask in an empty conversation; return the number of deltas that arrived, and the text."""

    def request_length(self, model: Any) -> int:
        """Return how many messages were in the last request that this model got."""
        return len(model.request)

    @abstractmethod
    def results(self, model: Any) -> list[tuple[str, str]]:
        """Return call id and text of each tool result in the last request that this model got."""
