"""Tools and models of one's own are named as module:name."""

import sys

import pytest

from agentrt.console.specs import load_mcp_servers, load_model, load_object, load_toolkit
from agentrt.errors import ConfigError
from agentrt.model import RulesChatModel

MODULE = '''
from agentrt import Toolkit
from agentrt.model import ScriptedChatModel

def one() -> str:
    """One."""

def two() -> str:
    """Two."""

def three() -> str:
    """Three."""

both = [one, two]
kit = Toolkit(tools=[three])
number = 3

class Named(ScriptedChatModel):
    def __init__(self):
        super().__init__(["hi"], model="named")

class Demanding(ScriptedChatModel):
    def __init__(self, key):
        super().__init__([], model=key)

instance = Named()
'''


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_things.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("import own_missing")
    (tmp_path / "own_unwritten.py").write_text("x = (")
    (tmp_path / "own_ending.py").write_text("import sys\nsys.exit(0)")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_things", None)


@pytest.mark.parametrize(
    ("specs", "names"),
    [
        ([], []),
        (["own_things:one"], ["one"]),
        (["folder"], ["list_files", "read_file", "search_text", "recent_files", "calculate"]),
        (["folder", "own_things:one"], ["list_files", "read_file", "search_text", "recent_files", "calculate", "one"]),
        (["own_things:both"], ["one", "two"]),
        (["own_things:kit"], ["three"]),
        (["own_things:both", "own_things:kit"], ["three", "one", "two"]),
        (["own_things:kit.get"], ["get"]),
    ],
)
def test_a_function_a_list_and_a_toolkit_give_their_tools(specs, names):
    assert load_toolkit(specs).names() == names


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("own_things", "'own_things' does not have the form module:name"),
        (":one", "':one' does not have the form"),
        ("own_things:", "does not have the form"),
        ("own_nowhere:one", "importing 'own_nowhere' failed: ModuleNotFoundError.*own_nowhere"),
        ("own_broken:one", r"importing 'own_broken' failed: ModuleNotFoundError.*own_missing.*own_broken.py:1\)"),
        ("own_unwritten:one", r"importing 'own_unwritten' failed: SyntaxError: .* \(at .*own_unwritten.py:1\)"),
        ("own_ending:one", r"importing 'own_ending' ends the program \(at .*own_ending.py:2\): write what is to run"),
        ("own_things:four", "'own_things' has no 'four'; it has .*one, two, three"),
        ("own_things:number", "3"),
    ],
)
def test_a_spec_that_names_no_tool_is_refused_with_the_reason(spec, complaint):
    with pytest.raises(ConfigError, match=complaint):
        load_toolkit([spec])


def test_two_toolkits_are_refused():
    with pytest.raises(ConfigError, match="only one of own_things:kit, own_things:kit may be a Toolkit"):
        load_toolkit(["own_things:kit", "own_things:kit"])


@pytest.mark.parametrize("spec", ["own_things:Named", "own_things:instance"])
def test_a_custom_model_is_named_by_its_class_or_an_instance(spec):
    assert load_model(spec).model == "named"


def test_a_preset_is_known_by_its_name():
    assert isinstance(load_model("rules"), RulesChatModel)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("own_nowhere:Named", "own_nowhere"),
        (":Named", ":Named"),
        ("nonsense", "nonsense"),
        ("own_things:Other", "'own_things' has no 'Other'"),
        ("own_things:", "'own_things:' does not have the form"),
        ("openai:Named", "OPENAI_API_KEY"),
        ("own_things:one", "'own_things:one' must name a ChatModelBase"),
        ("own_things:Demanding", "'own_things:Demanding' cannot be called without arguments \\(TypeError"),
    ],
)
def test_a_spec_that_names_no_model_is_refused_with_the_reason(spec, complaint, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match=complaint):
        load_model(spec)


def test_mcp_servers_are_commands_urls_and_files(tmp_path):
    path = tmp_path / "servers.json"
    path.write_text('{"mcpServers": {"files": {"command": "npx", "args": ["-y", "files"]}}}')
    toolsets = load_mcp_servers(["uvx 'my server' --fast", "https://example.com/mcp", str(path)])
    assert [toolset.name for toolset in toolsets] == ["server", "server2", "files"]
    assert (toolsets[0]._command, toolsets[1]._url) == (["uvx", "my server", "--fast"], "https://example.com/mcp")
    with pytest.raises(ConfigError, match="must be a list of str"):
        load_mcp_servers([""])


def test_misspelt_agent_is_answered_with_the_agents(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    program = "from agentrt import Agent\nagent = Agent('a', model='rules')"
    (tmp_path / "own_app.py").write_text(program, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"has no 'agnt' \(did you mean 'agent'\?\); its agents: agent; it has Agent"):
        load_object("own_app:agnt")
