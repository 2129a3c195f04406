"""Ask questions about a folder: a real agent with real tools, and the model that your environment calls for.

Without OPENAI_API_KEY, OPENAI_BASE_URL, ANTHROPIC_API_KEY or AGENTRT_MODEL that is a set of rules, which works offline.
"""
# mypy: disable-error-code="no-untyped-def"

import argparse
import ast
import asyncio
import logging
import operator
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from agentrt import Agent, MiddlewareBase, Toolkit, errors, event
from agentrt.model import default_model

QUESTIONS = "Which file defines MiddlewareBase?", "What does LICENSE say about trademarks?", "What is 17 * 23?"
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "venv", "build", "dist"}  # and what begins with a dot
OPERATORS: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
OPERATORS |= {ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow}


class Folder:
    """Tools that look into one folder, and nowhere else."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def list_files(self) -> str:
        """List all files."""
        return "\n".join(name for name, _ in self._files()) or "no files"

    def read_file(self, path: str) -> str:
        """Read one text file."""
        place = (self.root / path).resolve()  # follows links, so that none leads out
        if not place.is_relative_to(self.root):
            raise PermissionError(f"{path!r} is outside of the folder")
        return place.read_text(encoding="utf-8")

    def search_text(self, text: str) -> str:
        """Find the lines of all files that contain some text, in upper or lower case."""
        lines = ((name, n, line) for name, path in self._files() for n, line in enumerate(read(path).split("\n"), 1))
        hits = [f"{name}:{n}: {line.strip()[:200]}" for name, n, line in lines if text.lower() in line.lower()]
        return "\n".join(hits[:500] + ["... and more lines"] * (len(hits) > 500)) or "nothing found"

    def _files(self) -> Iterator[tuple[str, Path]]:
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(name for name in folders if name[0] != "." and name not in SKIPPED_FOLDERS)
            paths = (Path(folder, name) for name in sorted(files))
            yield from ((path.relative_to(self.root).as_posix(), path) for path in paths if not path.is_symlink())


def read(path: Path) -> str:
    is_readable = path.is_file() and os.access(path, os.R_OK) and path.stat().st_size < 5_000_000
    return path.read_text(encoding="utf-8", errors="replace") if is_readable else ""


def calculate(expression: str) -> str:
    """Calculate an arithmetic expression such as 2 * (3 + 4)."""
    if len(expression) > 200:
        raise ValueError("the expression is longer than 200 characters")
    return str(evaluate(ast.parse(expression, mode="eval").body))


def evaluate(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            first, second = evaluate(left), evaluate(right)
            if isinstance(op, ast.Pow) and (abs(first) > 1e12 or abs(second) > 1000):
                raise ValueError("the power is too large")
            return OPERATORS[type(op)](first, second)
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


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


async def main(questions: Sequence[str], folder: Folder) -> None:
    toolkit = Toolkit(tools=[folder.list_files, folder.read_file, folder.search_text, calculate])
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
        asyncio.run(main([options.question] if options.question else QUESTIONS, Folder(options.folder)))
    except errors.AgentRTError as error:
        sys.exit(f"error: {remove_escapes(str(error))}")
