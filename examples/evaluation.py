"""An evaluation: a data set of questions, and a judge of the answers.

Both models are scripted here, so that the program runs offline. With real ones, `cassette` records their answers.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agentrt import Agent
from agentrt.message import ToolCallBlock
from agentrt.model import ChatModelBase, ScriptedChatModel
from agentrt.testing import cassette


@dataclass
class Case:
    question: str
    expected: str


@dataclass
class Verdict:
    is_right: bool
    reason: str


CASES = [Case("Capital of France?", "Paris"), Case("Capital of Norway?", "Oslo"), Case("Capital of Peru?", "Lima")]
ANSWERS = ["It is Paris.", "It is Bergen.", "Lima, of course."]
VERDICTS = [
    '{"is_right": true, "reason": "it names Paris"}',
    '{"is_right": false, "reason": "Bergen is not Oslo"}',
    '{"is_right": true, "reason": "it names Lima"}',
]


def scripted_judge(verdicts: list[str]) -> ScriptedChatModel:
    return ScriptedChatModel([[ToolCallBlock("1", "GenerateStructuredOutput", text)] for text in verdicts])


async def evaluate(student_model: ChatModelBase, judge_model: ChatModelBase) -> list[Verdict]:
    verdicts = []
    for case in CASES:
        answer = await Agent("student", "Answer in one sentence.", student_model).reply(case.question)
        judge = Agent("judge", "Say whether the answer means what is expected.", judge_model)
        report = f"Question: {case.question}\nExpected: {case.expected}\nAnswer: {answer.get_text_content()}"
        verdict = await judge.reply(report, structured_schema=Verdict)
        assert verdict.structured_output is not None
        verdicts.append(verdict.structured_output)
    return verdicts


async def main(path: Path) -> None:
    with cassette(path):
        verdicts = await evaluate(ScriptedChatModel(ANSWERS), scripted_judge(VERDICTS))
    for case, verdict in zip(CASES, verdicts, strict=True):
        print(f"{'right' if verdict.is_right else 'wrong'}  {case.question}  {verdict.reason}")
    with cassette(path, mode="none"):  # again, without calling any model
        assert await evaluate(ScriptedChatModel([]), scripted_judge([])) == verdicts
    print(f"{sum(verdict.is_right for verdict in verdicts)} of {len(CASES)} are right")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "capitals.json"))
