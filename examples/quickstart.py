"""Ask questions about a folder: a real agent with real tools, and the model that your environment selects.

Without OPENAI_API_KEY, OPENAI_BASE_URL, ANTHROPIC_API_KEY or AGENTRT_MODEL that is a set of rules, which works offline.
"""
# mypy: disable-error-code="no-untyped-def"

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from agentrt import Agent, MiddlewareBase, Toolkit, errors, event
from agentrt.console import folder_tools
from agentrt.model import default_model

QUESTIONS = "Which file defines MiddlewareBase?", "What does LICENSE say about trademarks?", "What is 17 * 23?"


class RateLimitMiddleware(MiddlewareBase):
    def __init__(self, min_interval: float) -> None:
        self._min_interval = min_interval
        self._next_call = 0.0

    async def on_model_call(self, agent, input_kwargs, next_handler):
        await asyncio.sleep(max(0.0, self._next_call - time.monotonic()))
        self._next_call = time.monotonic() + self._min_interval
        return await next_handler()


class TimingMiddleware(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        start = time.perf_counter()
        result = await next_handler()
        print(f"[timing] {input_kwargs['current_model'].model}: {1000 * (time.perf_counter() - start):.1f} ms")
        return result


class DynamicContextMiddleware(MiddlewareBase):
    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt}\n\n## Current Context\nTime: {datetime.now():%H:%M on %A, %d %B %Y}"


def remove_escapes(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)  # no escape sequences


def show(text: str) -> None:
    print(remove_escapes(text), end="", flush=True)


async def main(questions: Sequence[str], folder: Path) -> None:
    toolkit = Toolkit(tools=folder_tools(folder))  # plain functions that read only this folder
    middlewares = [RateLimitMiddleware(min_interval=0.1), TimingMiddleware(), DynamicContextMiddleware()]
    prompt = "Answer questions about the files of one folder."
    async with Agent("assistant", prompt, default_model(), toolkit=toolkit, middlewares=middlewares) as agent:
        print(agent.explain())
        for question in questions:
            show(f"\n> {question}\n")
            await answer(agent, question)


async def answer(agent: Agent, question: str) -> None:
    async for item in agent.reply_stream(question):
        if isinstance(item, event.ToolCallStartEvent):
            show(f"[call] {item.tool_call_name} ")
        elif isinstance(item, event.TextBlockDeltaEvent | event.ToolCallDeltaEvent):
            show(item.delta)
        elif isinstance(item, event.TextBlockEndEvent | event.ToolCallEndEvent):
            print()


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # not every terminal knows every letter
    logging.getLogger("agentrt").setLevel(logging.ERROR)  # a tool's failure shows in the answer
    project = Path(__file__).resolve().parents[1]
    here = project if (project / "pyproject.toml").is_file() else Path()
    parser = argparse.ArgumentParser(description="Ask questions about a folder.")
    parser.add_argument("question", nargs="?", help="without one, three questions about this project are answered")
    parser.add_argument("folder", nargs="?", type=Path, default=here, help="where to look (default: %(default)s)")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"{str(options.folder)!r} is not a folder")
    try:
        asyncio.run(main([options.question] if options.question else QUESTIONS, options.folder))
    except errors.AgentRTError as error:
        sys.exit(f"error: {remove_escapes(str(error))}")
