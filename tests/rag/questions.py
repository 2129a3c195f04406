"""Questions on the pages of this project, and on a Chinese text, each with the place of its answer."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CHINESE_TEXT = Path(__file__).with_name("tea_house.md")


class Question(NamedTuple):
    """`document` has the answer, below a heading that `heading` is a part of."""

    words: str
    document: str
    heading: str = ""


SAME_WORDS = [
    Question("How do I record and replay a model in a test?", "how-to/test-agents.md", "Record and replay"),
    Question("How do I stream a reply to a browser?", "how-to/read-a-reply.md", "Stream to a browser"),
    Question("What happens after a crash?", "how-to/save-and-resume.md", "After a crash"),
    Question("How are tokens counted for a rate limit?", "middlewares/rate-limit.md", "How tokens are counted"),
    Question("Which answers count for a confirmation?", "how-to/approval.md", "Which answers count"),
    Question("How do I interrupt a reply?", "how-to/interrupt.md"),
    Question("How do I write a log as JSON lines?", "how-to/logging.md", "JSON lines"),
    Question("How does a tool show its progress?", "how-to/tools.md", "Show progress"),
    Question("Which stores can a cache use?", "middlewares/cache.md", "Stores"),
    Question("What does the span of a tool call say?", "middlewares/tracing.md", "tool call's span"),
    Question("How do I use published prices?", "how-to/costs.md", "published prices"),
    Question("What is a handoff between agents?", "sub-agents.md", "Handoffs"),
    Question("How do I make the user an agent?", "how-to/user-agent.md"),
    Question("What do groups of tools do?", "how-to/tools.md", "Groups of tools"),
    Question("What happens when a structured answer does not fit?", "how-to/structured-output.md", "does not fit"),
]

OTHER_WORDS = [
    Question("Someone pressed the button to cancel, how do I halt only their run?", "how-to/many-users.md"),
    Question("Can I keep credit card numbers away from the provider?", "middlewares/redaction.md"),
    Question("The server of the model is overloaded, can it be asked a second time?", "middlewares/retry.md"),
    Question("What if the vendor is down for an hour?", "middlewares/circuit-breaker.md"),
    Question("How much money did a chat spend?", "how-to/costs.md"),
    Question("Switch to a cheaper LLM for easy prompts", "middlewares/model-choice.md", "Router"),
    Question("My chat history gets too big for the context window", "how-to/long-conversations.md"),
    Question("A human must sign off before money is transferred", "how-to/approval.md"),
    Question("Give the function the database connection of the current request", "how-to/dependencies.md"),
    Question("Get a pydantic object back in place of prose", "how-to/structured-output.md"),
    Question("How do I put the assistant into a Docker container?", "how-to/deploy.md"),
    Question("Stop a slow endpoint after half a minute", "middlewares/timeout.md"),
    Question("Reuse the reply to an identical prompt", "middlewares/cache.md"),
    Question("Block swear words in what the bot says", "middlewares/guardrail.md"),
    Question("Have one bot call a second bot", "sub-agents.md", "An agent as a tool"),
]

CHINESE = [
    Question("茶馆几点开门？", "tea_house.md", "营业时间"),
    Question("绿茶用多少度的水泡？", "tea_house.md", "绿茶"),
    Question("普洱茶怎么存放？", "tea_house.md", "普洱"),
    Question("可以带宠物吗？", "tea_house.md", "宠物"),
    Question("如何预订包间？", "tea_house.md", "包间"),
    Question("会员有什么优惠？", "tea_house.md", "会员"),
    Question("从地铁站怎么走？", "tea_house.md", "交通"),
    Question("茶具打碎了要赔吗？", "tea_house.md", "茶具"),
    Question("学习茶艺要花多少钱？", "tea_house.md", "课程"),
    Question("买了茶叶能退吗？", "tea_house.md", "退换"),
]
