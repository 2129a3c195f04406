"""The page of routes: each request in it is made, in order, and the answer is the one that the page shows."""

import ast
import json
import re
from dataclasses import fields
from typing import Any

import pytest

from agentrt import Agent
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.runs import RunRecorder
from agentrt.serving import Limits
from agentrt.serving.app import _HTTP_CODES
from agentrt.serving.owners.owner import _PLACE_REFUSALS
from agentrt.serving.submission import _RESUME_MESSAGES
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool
from tests.documents import ROOT
from tests.serving.conftest import serve

PAGE = ROOT / "docs" / "reference" / "http.md"
_ANSWER = r"^```(?P<kind>json|text)\n(?P<answer>.*?)^```$"
EXAMPLE = re.compile(rf"^```http\n(?P<request>.*?)^```\n\n{_ANSWER}", re.DOTALL | re.MULTILINE)
WIDTH = 110
TIME = "2026-01-31T12:00:00Z"


def make_agent() -> Agent:
    async def pay(amount: int) -> str:
        return f"Paid {amount}."

    def answer(messages: Any, _: Any) -> Any:
        results = messages[-1].get_content_blocks("tool_result")
        if results:
            return ChatResponse([TextBlock("Done.")], usage=ChatUsage(120, 3))
        if "Pay" in (messages[-1].get_text_content() or ""):
            return ChatResponse([ToolCallBlock("c1", "pay", '{"amount": 20}')], usage=ChatUsage(100, 9))
        return ChatResponse([TextBlock("Hello.")], usage=ChatUsage(80, 2))

    model, store = ScriptedChatModel([answer] * 100, stream=True), InMemoryStateStore()
    tools = [FunctionTool(pay, ask=True)]
    return Agent("assistant", "You pay.", model, tools, [RunRecorder(store)], state_store=store)


def show(value: Any, indent: int = 0) -> str:
    """Return JSON in lines that are not too long."""
    line = json.dumps(value)
    if len(line) + indent <= WIDTH or not isinstance(value, (dict, list)):
        return line
    start, end = "{}" if isinstance(value, dict) else "[]"
    items: list[Any] = list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
    shown = [
        " " * (indent + 2) + ("" if name is None else f"{json.dumps(name)}: ") + show(item, indent + 2)
        for name, item in items
    ]
    return "\n".join([start, ",\n".join(shown), " " * indent + end])


def without_chance(text: str) -> str:
    """Replace what differs each time: times, sizes with them, and ids that are made."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", TIME, text)
    text = re.sub(r'"created": \d{10}', '"created": 1769860800', text)
    text = re.sub(r'"revision": \d{16}', '"revision": 1769860800000000', text)
    text = re.sub(r'"seconds": [\d.e-]+', '"seconds": 4.2', text)
    text = re.sub(r'"size": \d{3,4}\b', '"size": 1411', text)
    text = re.sub(r"(?<=chatcmpl-)\w{22}\b", "FN2FBTsKrBZzRuHnKKE3Ui", text)
    return re.sub(r"\b[0-9a-f]{24}\b", "0123456789abcdef01234567", text)


def parse(request: str) -> tuple[str, str, dict[str, str], Any]:
    head, _, body = request.strip().partition("\n\n")
    first, *lines = head.splitlines()
    method, path = first.split(" ")
    headers = dict(line.split(": ", 1) for line in lines)
    return method, path, headers, json.loads(body) if body else None


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_page_of_routes_shows_what_is_answered(anyio_backend):
    examples = list(EXAMPLE.finditer(PAGE.read_text(encoding="utf-8")))
    assert len(examples) >= 15
    async with serve(make_agent()) as client:
        for example in examples:
            method, path, headers, body = parse(example["request"])
            content = {} if body is None else {"json": body}
            response = await client.request(method, path, headers=headers, **content)
            if example["kind"] == "json":
                answer = show(json.loads(without_chance(json.dumps(response.json()))))
            else:
                answer = without_chance(response.text.rstrip())
            assert answer == example["answer"].rstrip(), f"{example['request']}\n{answer}"


def codes_in_source() -> set[str]:
    """Return the codes that are written in the source: in calls, and in tables."""
    codes = {*(code for code, _ in _HTTP_CODES.values()), *_RESUME_MESSAGES, "invalid_request"}
    codes.update(code for code, *_ in _PLACE_REFUSALS.values())
    for path in (ROOT / "agentrt" / "serving").glob("**/*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
            place = {"ApiError": 1, "failure_body": 0, "read_query_number": 1}.get(name)
            argument = call.args[place] if isinstance(call, ast.Call) and place is not None else None
            if isinstance(argument, ast.Constant):
                codes.add(str(argument.value))
    return codes


def test_page_has_all_codes_and_no_others():
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    section = page.partition("\n## Errors\n")[2].partition("\n## ")[0]
    codes = {code for line in section.splitlines() if line.startswith("| ") for code in re.findall(r"`(\w+)`", line)}
    assert codes == codes_in_source()


def test_page_has_every_limit_with_its_default():
    page = (ROOT / "docs" / "how-to" / "server-limits.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", page, re.MULTILINE))
    assert rows == {field.name: f"{field.default:,.0f}" for field in fields(Limits)}
