"""See the compiled chains of an agent, a wrong order that is refused, and a stream that breaks and is retried."""
# mypy: disable-error-code="no-untyped-def"

import asyncio

from agentrt import Agent, MiddlewareBase
from agentrt.errors import MiddlewareConfigError, Transient
from agentrt.event import ModelCallRetryEvent, TextBlockDeltaEvent
from agentrt.middleware import RateLimitMiddleware, RetryMiddleware
from agentrt.model import ScriptedChatModel


class Shout(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for event in next_handler():
            if isinstance(event, TextBlockDeltaEvent):
                event.delta = event.delta.upper()
            yield event


def show(text: str, style: str, end: str = "\n") -> None:
    try:
        from rich.console import Console
    except ImportError:  # the same words, without colours
        print(text, end=end)
    else:
        Console(highlight=False, emoji=False, soft_wrap=True).print(text, style=style, end=end, markup=False)


def style_of(line: str) -> str:
    return "bold" if line.startswith(("Agent", "on_")) else "cyan" if line[2:3].isdigit() else "dim"


async def main() -> None:
    model = ScriptedChatModel([["Paris is ", "cold and ", Transient("the connection broke")], "Paris is sunny."])
    retry, limit = RetryMiddleware(initial_delay=0.01), RateLimitMiddleware(requests_per_minute=60)

    agent = Agent("assistant", model=model, middlewares=[retry, limit, Shout()])
    for line in agent.explain().splitlines():
        show(line, style_of(line))

    show("\nA wrong order: [limit, retry, Shout()]", "bold")
    try:
        Agent("assistant", model=model, middlewares=[limit, retry, Shout()])
    except MiddlewareConfigError as error:
        show(f"refused: {error}", "red")

    show("\nA stream that breaks, in the right order", "bold")
    async for event in agent.reply_stream("How is Paris?"):
        if isinstance(event, TextBlockDeltaEvent):
            show(event.delta, "green", end="")
        elif isinstance(event, ModelCallRetryEvent):
            show(f"\nwithdrawn, and asked again: {event.reason}", "yellow")
    print()


if __name__ == "__main__":
    asyncio.run(main())
