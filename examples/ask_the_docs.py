"""Ask this project's own pages: the model gets the relevant passages, and its answer cites them."""

import asyncio
import re
import sys
from pathlib import Path

from agentrt import Agent, Msg
from agentrt.middleware import RAGMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.rag import KnowledgeBase, SQLiteTextStore
from agentrt.types import JSONSchema

DOCS = Path(__file__).parents[1] / "docs"


def quote_passages(messages: list[Msg], tools: list[JSONSchema] | None) -> str:
    """Stand in for a model: quote the beginning of the best two passages."""
    hints = messages[-2].get_content_blocks("hint") if len(messages) > 1 else []
    found = "".join(str(block.hint) for block in hints)
    passages = re.findall(r'<passage number="(\d+)".*?>\n(.*?)\n</passage>', found, re.DOTALL)
    quotes = [f"{' '.join(text.split())[:70]}... [{number}]" for number, text in passages[:2]]
    return "\n".join(quotes) or "The pages do not say."


async def main(questions: list[str]) -> None:
    pages = KnowledgeBase("docs", "The documentation of agentrt.", SQLiteTextStore(":memory:"))
    report = await pages.sync(DOCS)
    print(f"{len(report.added)} pages are indexed.")
    agent = Agent(
        name="librarian",
        model=ScriptedChatModel(quote_passages for _ in questions),  # any chat model
        middlewares=[RAGMiddleware(pages, "static")],
    )
    for question in questions:
        message = await agent.reply(question)
        print(f"\n> {question}\n{message.get_text_content()}")
        for citation in message.metadata.get("citations", []):
            print(f"  [{citation['number']}] {citation['document']}: {citation['heading']}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["How do I interrupt a reply?", "How are tokens counted for a rate limit?"]))
