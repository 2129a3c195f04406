"""A plan is created, executed step by step, and resumed from a saved conversation."""

import asyncio
import json
from typing import Any

from agentrt import Agent, AgentState, Msg
from agentrt.message import ToolCallBlock
from agentrt.middleware import PlanNotebook
from agentrt.model import ScriptedChatModel
from agentrt.plan import Plan


def call(tool: str, **arguments: Any) -> list[ToolCallBlock]:
    return [ToolCallBlock("1", tool, json.dumps(arguments))]


def step(name: str, outcome: str) -> dict[str, str]:
    return {"name": name, "description": f"{name}, carefully.", "expected_outcome": outcome}


def show(notebook: PlanNotebook, plan: Plan | None) -> None:
    print("  no plan" if plan is None else "  " + ", ".join(f"{step.name}: {step.state}" for step in plan.subtasks))


def last_hint(messages: list[Msg], tools: object) -> str:
    lines = messages[-1].get_content_blocks("hint")[0].hint.splitlines()
    return next(line for line in lines if line.startswith("The subtask"))


STEPS = [step("Find the distance", "kilometres"), step("Divide by the pace", "hours")]
FIRST = [
    call("create_plan", name="Run to the Moon", description="How long?", expected_outcome="Hours.", subtasks=STEPS),
    call("update_subtask_state", subtask_idx=1, state="in_progress"),  # out of order: it is refused
    call("update_subtask_state", subtask_idx=0, state="in_progress"),
    call("finish_subtask", subtask_idx=0, subtask_outcome="363300 km"),
    "The distance is 363300 km. Shall I continue?",
]
SECOND = [
    last_hint,
    call("finish_subtask", subtask_idx=1, subtask_outcome="17000 h"),
    call("finish_plan", state="done", outcome="17000 h"),
    "It takes 17000 hours.",
]


def make_agent(script: list[Any], state: AgentState) -> Agent:
    notebook = PlanNotebook()
    notebook.register_plan_change_hook("show", show)
    return Agent(
        "planner", "Plan what takes many steps.", ScriptedChatModel(script), middlewares=[notebook], state=state
    )


async def main() -> None:
    agent = make_agent(FIRST, AgentState())
    print((await agent.reply("How long would it take to run to the Moon?")).get_text_content())
    saved = agent.state.model_dump_json()  # this could be another process, on another day
    agent = make_agent(SECOND, AgentState.model_validate_json(saved))
    for question in ("Where were we?", "Yes, continue."):
        print((await agent.reply(question)).get_text_content())


if __name__ == "__main__":
    asyncio.run(main())
