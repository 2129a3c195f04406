"""Objects with secrets: nothing that shows or copies them shows these, and they cannot be pickled."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pprint import pformat
from typing import Any

import pytest

from agentrt.a2a import A2AAgent
from agentrt.embedding import OpenAIEmbedding
from agentrt.errors import UsageError
from agentrt.middleware import RedisBudgetStore, RedisCacheStore, RedisLimitStore
from agentrt.model import AWSAuth, GoogleAuth, OpenAIChatModel, OpenAIResponsesModel
from agentrt.rag import PgVectorStore
from agentrt.state import PostgresStore, RedisStore
from agentrt.tool import MCPToolset, OAuth, OAuthClient, TokenStore

SECRET = "hunter2-canary"
REDIS, POSTGRES = f"redis://user:{SECRET}@host/0", f"postgresql://user:{SECRET}@host/db"
MCP_TOOL = {"type": "mcp", "require_approval": "never", "authorization": SECRET}

HOLDERS: dict[str, Callable[[], Any]] = {
    "chat model": lambda: OpenAIChatModel("m", api_key=SECRET, extra_headers={"a": SECRET}, extra_body={"b": SECRET}),
    "server tools": lambda: OpenAIResponsesModel("m", api_key=SECRET, server_tools=[MCP_TOOL]),
    "embedding": lambda: OpenAIEmbedding("text-embedding-3-small", api_key=SECRET, extra_body={"b": SECRET}),
    "AWS": lambda: AWSAuth(region="us-east-1", credentials=lambda: ("key", SECRET)),
    "AWS environment": lambda: AWSAuth(region="us-east-1"),
    "Google": lambda: GoogleAuth(token=lambda: SECRET),
    "Google file": lambda: GoogleAuth(file="key.json"),
    "remote agent": lambda: A2AAgent("https://agent.example", headers={"authorization": SECRET}),
    "MCP headers": lambda: MCPToolset("crm", url="https://crm.example", headers={"authorization": SECRET}),
    "MCP URL": lambda: MCPToolset("crm", url=f"https://crm.example?key={SECRET}"),
    "MCP process": lambda: MCPToolset("crm", command=["crm"], env={"TOKEN": SECRET}),
    "MCP option": lambda: MCPToolset("crm", command=["crm", "--api-token", SECRET]),
    "MCP option in one word": lambda: MCPToolset("crm", command=f"crm --password={SECRET}"),
    "MCP variable": lambda: MCPToolset("crm", command=["docker", "run", "-e", f"CRM_TOKEN={SECRET}", "crm"]),
    "MCP shell": lambda: MCPToolset("crm", command=["sh", "-c", f"crm --api-key {SECRET} || crm"]),
    "MCP argument": lambda: MCPToolset("crm", command=["crm", POSTGRES]),
    "MCP header": lambda: MCPToolset("crm", command=["crm", "--header", f"Authorization: Bearer {SECRET}"]),
    "OAuth": lambda: OAuth(client=OAuthClient("id", SECRET, issuer="https://login.example")),
    "OAuth client": lambda: OAuthClient("id", SECRET, issuer="https://login.example"),
    "token store": lambda: TokenStore(REDIS, key=TokenStore.new_key()),
    "Redis": lambda: RedisStore(REDIS),
    "PostgreSQL": lambda: PostgresStore(POSTGRES),
    "pgvector": lambda: PgVectorStore(POSTGRES),
    "cache in Redis": lambda: RedisCacheStore(REDIS),
    "budget in Redis": lambda: RedisBudgetStore(REDIS),
    "limit in Redis": lambda: RedisLimitStore(REDIS),
}


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_nothing_shows_or_pickles_a_secret(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    holder = make()
    shown = [holder, copy.copy(holder), copy.deepcopy(holder)]
    shown += [vars(each) for each in shown if hasattr(each, "__dict__")]
    shown += [asdict(holder)] if is_dataclass(holder) else []  # type: ignore[arg-type]  # an instance
    assert SECRET not in f"{shown} {pformat(shown)}"
    with pytest.raises(UsageError, match=r"cannot be pickled") as caught:
        pickle.dumps(holder)
    assert SECRET not in str(caught.value)


def test_an_mcp_toolset_without_secrets_can_be_pickled() -> None:
    toolset = MCPToolset("crm", url="https://crm.example")
    assert pickle.loads(pickle.dumps(toolset)).server_url == toolset.server_url
    toolset = MCPToolset("crm", command=["npx", "-y", "@crm/server", "--directory", "/srv", "--verbose"])
    assert pickle.loads(pickle.dumps(toolset))._command == toolset._command
