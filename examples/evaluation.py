"""An evaluation: cases, evaluators, a judge, and the worth of each layer.

The models are scripted, so that the program runs offline. `agentrt eval examples/evaluation.py --ablate` runs it too.
"""

import asyncio
import json
from itertools import repeat
from typing import Any

from agentrt import Agent
from agentrt.evaluation import Case, Dataset, Judge, contains, evaluate
from agentrt.message import Msg, ToolCallBlock
from agentrt.middleware import MiddlewareBase, RetryMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.testing import fail_model


class Facts(MiddlewareBase):
    """Tells the model what it does not know."""

    async def on_system_prompt(self, agent: Agent, current_prompt: str) -> str:
        return f"{current_prompt} The capital of Norway is Oslo."


def respond(messages: list[Msg], tools: Any) -> str:
    text = " ".join(message.get_text_content() or "" for message in messages)
    if "Norway?" in text:
        return "It is Oslo." if "Oslo" in text else "It is Bergen."
    return "It is Paris." if "France?" in text else "Lima, of course."


def build(case: Case) -> Agent:
    layers = [RetryMiddleware(initial_delay=0), Facts()]
    return Agent("student", "Answer in one sentence.", ScriptedChatModel(repeat(respond)), middlewares=layers)


VERDICT = json.dumps({"score": 1, "reason": "one short sentence"})
JUDGE = ScriptedChatModel(repeat([ToolCallBlock("1", "GenerateStructuredOutput", VERDICT)]))

cases = Dataset(
    "capitals",
    [
        Case("Capital of France?", "Paris"),
        Case("Capital of Norway?", "Oslo"),
        Case("Capital of Peru?", "Lima", faults=[fail_model(at=1)]),
    ],
    [contains(), Judge(JUDGE, "Is it one sentence?", name="short")],
)

if __name__ == "__main__":
    report = asyncio.run(evaluate(build, cases, repeats=2, ablate=True))
    for worth in report.ablation:
        print(f"without {worth.layer}: {worth.quality:.2f}, with it: {report.quality:.2f}")
    print(f"judges: {report.judge_usage.output_tokens} of {report.usage.output_tokens} output tokens of the agent")
