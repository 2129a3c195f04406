"""Two sub-agents look facts up, and their supervisor calculates. Then one of them is too slow."""

import asyncio
import logging
import re
import sys
from typing import ClassVar

import anyio

from agentrt import Msg, Toolkit
from agentrt.agent import ReActAgent, SubAgentBase, SubAgentSpec, make_subagent_tool
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.types import JSONSchema

PAGE = "https://en.wikipedia.org/wiki/Moon"
QUESTION = "How many thousand hours would Kipchoge run, at his record pace, to the Moon at its nearest?"


async def search_web(query: str) -> str:
    """Search the web (this one knows the answer)."""
    return f"Eliud Kipchoge ran the marathon of Berlin 2018 in 2:01:09. The perigee of the Moon: see {PAGE}"


async def http_request(url: str) -> str:
    """Fetch a page (this one makes it up)."""
    return "Minimum perigee distance = 363300 km"


class Lookup(SubAgentBase):
    """Asks its one tool."""

    tools = (search_web, http_request)
    argument: ClassVar[str]
    seconds: ClassVar[float] = 0.0

    async def reply(self, msg: Msg) -> Msg:
        await anyio.sleep(self.seconds)
        [name] = self.toolkit.names()
        result = await self.call_tool(name, **{self.argument: msg.get_text_content()})
        return Msg(self.name, result.text, "assistant")


class WebSearchSubAgent(Lookup):
    argument = "query"


class HttpFetchSubAgent(Lookup):
    argument = "url"


class SlowFetchSubAgent(HttpFetchSubAgent):
    seconds = 60.0


class ResearchSupervisor(ReActAgent):
    safety_limits: ClassVar[dict[str, float]] = {"timeout": 0.5}  # seconds of a delegation


def results(messages: list[Msg]) -> list[str]:
    return [result.text for msg in messages for result in msg.get_content_blocks("tool_result")]


def fetch(messages: list[Msg], tools: list[JSONSchema] | None) -> list[ToolCallBlock]:
    [url] = re.findall(r"https://\S+", results(messages)[0])
    return [ToolCallBlock("2", "agent_http_fetch", f'{{"query": "{url}"}}')]


def calculate(messages: list[Msg], tools: list[JSONSchema] | None) -> str:
    found, page = results(messages)
    distance = re.search(r"(\d+) km", page)
    if distance is None:
        return f"I could not confirm the distance: {page}"
    hours, minutes, seconds = map(int, re.findall(r"\d+", found)[1:4])
    pace = 42.195 / (hours + minutes / 60 + seconds / 3600)
    exact = int(distance[1]) / pace
    return f"{distance[1]} km at {pace:.3f} km/h take {exact:.0f} h: about {round(exact, -3):.0f} hours."


async def research(fetcher: type[SubAgentBase]) -> None:
    toolkit = Toolkit()
    for cls, name, description, tool in (
        (WebSearchSubAgent, "web_search", "Finds public sources.", "search_web"),
        (fetcher, "http_fetch", "Fetches a page.", "http_request"),
    ):
        spec = SubAgentSpec(name, description, tools_allowlist=[tool])
        function, keywords = await make_subagent_tool(cls, spec, tool_name=f"agent_{name}")
        toolkit.register_tool_function(function, **keywords)
    search = ToolCallBlock("1", "agent_web_search", '{"query": "Kipchoge, and the perigee of the Moon"}')
    model = ScriptedChatModel([[search], fetch, calculate])
    supervisor = ResearchSupervisor("researcher", "", model, toolkit=toolkit)
    supervisor.disable_console_output()
    print((await supervisor.reply(QUESTION)).get_text_content())


async def main() -> None:
    logging.basicConfig(stream=sys.stdout, format="log: %(message)s")
    await research(HttpFetchSubAgent)
    await research(SlowFetchSubAgent)


if __name__ == "__main__":
    asyncio.run(main())
