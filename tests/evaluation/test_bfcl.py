"""The function calls of BFCL, as a data set of tool calls: its functions are tools, its answers are expected calls.

Of the wheel only the data is used. BFCL lists the values that an argument may have; "" among them means that it may be
left out.
"""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentrt import Agent
from agentrt.evaluation import Case, Dataset, Trial, calls_at_most, evaluate
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.testing import answer, assert_trajectory
from agentrt.testing import call as step
from agentrt.tool import FunctionTool

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not find_spec("bfcl_eval"), reason="bfcl-eval is not installed")]

TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def lines_of(name: str) -> list[dict[str, Any]]:
    spec = find_spec("bfcl_eval")
    [folder] = spec.submodule_search_locations or []  # found, and not imported
    text = (Path(folder) / "data" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def json_schema(schema: Any) -> Any:
    """Return a schema of BFCL with the types of JSON."""
    if not isinstance(schema, dict):
        return schema
    changed = {name: json_schema(part) for name, part in schema.items() if name not in ("optional", "default")}
    if "properties" in changed:
        changed["properties"] = {name: json_schema(part) for name, part in schema["properties"].items()}
    kind = changed.get("type")
    if kind == "any":
        del changed["type"]
    elif isinstance(kind, str):
        changed["type"] = TYPES.get(kind, kind)
    return changed


def tool_name(name: str) -> str:
    return name.replace(".", "_")


def cases_of(category: str) -> Iterator[Case]:
    answers = {line["id"]: line["ground_truth"] for line in lines_of(f"possible_answer/BFCL_v4_{category}.json")}
    for line in lines_of(f"BFCL_v4_{category}.json"):
        [turn] = line["question"]
        yield Case(
            turn[-1]["content"],
            answers[line["id"]],
            name=line["id"],
            labels={"category": category},
            metadata={"functions": line["function"]},
        )


def tools_of(case: Case) -> list[FunctionTool]:
    async def run(**arguments: Any) -> str:
        return "done"

    # Cases may have a function twice, and a toolkit has each name once.
    functions = {tool_name(function["name"]): function for function in case.metadata["functions"]}
    return [
        FunctionTool(
            run, name=name, description=function["description"], json_schema=json_schema(function["parameters"])
        )
        for name, function in functions.items()
    ]


def first_values(values: dict[str, list[Any]]) -> dict[str, Any]:
    """Return arguments that are right: the first value of each one, unless it may be left out."""
    found = {}
    for name, allowed in values.items():
        if allowed[0] != "":
            value = allowed[0]
            # Values of objects are lists of allowed ones again.
            if isinstance(value, dict):
                value = {key: part[0] for key, part in value.items() if part[0] != ""}
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                value = [{key: part[0] for key, part in item.items() if part[0] != ""} for item in value]
            found[name] = value
    return found


def is_allowed(value: Any, allowed: list[Any]) -> bool:
    return any(
        value == option
        or value == first_values({"": [option]}).get("")
        or (isinstance(value, list) and list(value) == list(option if isinstance(option, (list, tuple)) else []))
        for option in allowed
    )


def fits_the_answer(trial: Trial) -> bool:
    expected = []
    for right in trial.case.expected:
        [(name, values)] = right.items()
        needed = {name: allowed for name, allowed in values.items() if "" not in allowed}
        tests = {name: (lambda value, allowed=allowed: is_allowed(value, allowed)) for name, allowed in needed.items()}
        expected.append(step(tool_name(name), **tests))
    try:
        assert_trajectory(trial.messages, [*expected, answer()], order="unordered")
    except AssertionError:
        return False
    return True


def build_perfect(case: Case) -> Agent:
    blocks = [
        ToolCallBlock(f"c{number}", tool_name(name), json.dumps(first_values(values)))
        for number, right in enumerate(case.expected)
        for name, values in right.items()
    ]
    return Agent("caller", "Call functions.", ScriptedChatModel([blocks, "Done."]), tools_of(case))


def build_careless(case: Case) -> Agent:
    agent = build_perfect(case)
    script = [
        ToolCallBlock(f"c{number}", tool_name(name), json.dumps(first_values(values)))
        for number, right in enumerate(case.expected[:-1])
        for name, values in right.items()
    ]
    return Agent(
        "caller", "Call functions.", ScriptedChatModel([script, "Done."] if script else ["Done."]), agent.toolkit
    )


# BFCL's answer to these does not fit its own schema.
WRONG_ANSWERS = {"simple_python_200", "parallel_multiple_21", "parallel_multiple_94"}
CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple")


async def test_right_calls_of_a_thousand_cases_pass() -> None:
    cases = [case for category in CATEGORIES for case in cases_of(category)]
    report = await evaluate(build_perfect, Dataset("bfcl", cases, [fits_the_answer]))
    assert len(cases) == 1_000
    assert not report.errors
    assert report.failed_cases == []
    failed = {str(trial.case) for trial in report.trials for use in trial.tool_uses if use.state != "success"}
    assert failed == WRONG_ANSWERS


async def test_a_missing_call_fails_every_case() -> None:
    cases = [case for category in CATEGORIES for case in cases_of(category)][::10]
    report = await evaluate(build_careless, Dataset("bfcl", cases, [fits_the_answer]))
    assert (report.quality, report.errors) == (0.0, [])
    assert {group.name for group in report.by_label} == {f"category={category}" for category in CATEGORIES}


async def test_irrelevant_functions_are_to_stay_uncalled() -> None:
    cases = [
        Case(line["question"][0][-1]["content"], name=line["id"], metadata={"functions": line["function"]})
        for line in lines_of("BFCL_v4_irrelevance.json")
    ]

    def build(case: Case) -> Agent:
        return Agent("caller", "", ScriptedChatModel(["There is no function for that."]), tools_of(case))

    report = await evaluate(build, Dataset("irrelevance", cases[::4], [calls_at_most(0)]))
    assert (report.quality, report.errors) == (1.0, [])
