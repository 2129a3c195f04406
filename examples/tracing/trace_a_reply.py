"""Send the spans of a reply to a collector, such as Phoenix on this machine; see README.md beside this file.

usage: python trace_a_reply.py [collector's address]
"""

import sys

from agentrt import Agent
from agentrt.middleware import TracingMiddleware, setup_tracing


def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"It is sunny in {city}."


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:6006"
    delivery = setup_tracing(address, service_name="weather")
    agent = Agent(
        name="forecaster",
        system_prompt="You tell the weather.",
        model="rules",
        tools=[get_weather],
        # Without `capture_content` the spans say what happened, how long it took and what it cost, and not a word more.
        middlewares=[TracingMiddleware(capture_content=True)],
    )
    for question in ("What is the weather in Beijing?", "What is the weather in Shanghai?"):
        print(agent.run_sync(question).get_text_content())
    delivery.shutdown()
    print(f"spans that {address} did not take: {delivery.undelivered}")


if __name__ == "__main__":
    main()
