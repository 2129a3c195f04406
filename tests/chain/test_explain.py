"""What `explain` writes: every chain from its outermost layer to its core, for people, programs and pages."""

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentrt import Agent
from agentrt._runtime.chain.compile import compile_chains
from agentrt._runtime.chain.explain import explain
from agentrt.hooks import HOOKS, MiddlewareBase
from agentrt.middleware import RetryMiddleware
from agentrt.model import ScriptedChatModel
from tests.chain.helpers import CORES, Guard, compile_with


class Prompt(MiddlewareBase):
    key = "prompts & <more>"
    position = "innermost"
    wrapped_by = (Guard, "Retry")

    async def on_system_prompt(self, agent, current_prompt):
        return current_prompt


class Tools(MiddlewareBase):
    async def on_acting(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        return await next_handler()

    async def on_compress_context(self, agent, input_kwargs, next_handler):
        await next_handler()

    async def on_observe(self, agent, input_kwargs, next_handler):
        await next_handler()

    async def on_print(self, agent, input_kwargs, next_handler):
        await next_handler()


def place_of(function: Any) -> str:
    """Return where a function of these tests is, from the folder in which they run."""
    file = Path(function.__code__.co_filename).relative_to(Path.cwd())
    return f"{file.as_posix()}:{function.__code__.co_firstlineno}"


GUARDS, TOOLS, PROMPT = (Guard("1"), Guard("2")), Tools(), Prompt()
CHAINS = compile_with(*GUARDS, TOOLS, PROMPT)
CHAINED = [spec for spec in HOOKS if CHAINS.layers[spec.name]]


def explain_as(format: Any) -> str:
    return explain(CHAINS, "assistant", CORES, {id(TOOLS): ["search", "fetch"]}, format)


def test_text_names_layers_from_the_outermost_to_the_core() -> None:
    text = explain_as("text")
    assert text.startswith("Agent 'assistant': the chains, outermost first\n")
    [acting] = [part for part in text.split("\n\n") if part.startswith("on_acting (stream): ")]
    assert acting.splitlines()[1:] == [
        f"  1. Guard  {place_of(Guard.on_acting)}",
        f"  2. Guard [Guard#2]  {place_of(Guard.on_acting)}",
        f"  3. Tools  {place_of(Tools.on_acting)}",
        f"  core  {place_of(CORES['on_acting'])}",
    ]


@pytest.mark.parametrize("format", ["text", "json"])
def test_text_says_what_each_hook_wraps_and_never_sees(format: Any) -> None:
    text = explain_as(format)
    assert all(spec.wraps in text and spec.never in text for spec in CHAINED)


def test_text_names_the_tools_that_each_middleware_brings() -> None:
    assert "\nTools of Tools: search, fetch" in explain_as("text")
    assert explain_as("text").count("Tools of") == 1


def test_text_names_the_hooks_without_a_layer() -> None:
    chains = compile_with(TOOLS)
    text = explain(chains, "assistant", CORES, {})
    names = ", ".join(name for name, layers in chains.layers.items() if name in CORES and not layers)
    assert f"No layer, the core is called directly: {names}" in text
    assert "on_reply (stream)" not in text


def test_hooks_are_listed_in_the_order_of_a_reply() -> None:
    text = explain_as("text")
    assert [line.split()[0] for line in text.splitlines() if line.startswith("on_")] == [spec.name for spec in CHAINED]


def test_text_is_the_default_format() -> None:
    assert explain(CHAINS, "assistant", CORES, {id(TOOLS): ["search", "fetch"]}) == explain_as("text")


def test_json_says_the_same_to_a_program() -> None:
    description = json.loads(explain_as("json"))
    assert description["agent"] == "assistant"
    assert [hook["hook"] for hook in description["hooks"]] == [name for name in CHAINS.layers if name in CORES]
    [acting] = [hook for hook in description["hooks"] if hook["hook"] == "on_acting"]
    assert acting["shape"] == "stream"
    assert acting["core"] == place_of(CORES["on_acting"])
    assert acting["layers"] == [
        {"class": "Guard", "key": "Guard", "where": place_of(Guard.on_acting)},
        {"class": "Guard", "key": "Guard#2", "where": place_of(Guard.on_acting)},
        {"class": "Tools", "key": "Tools", "where": place_of(Tools.on_acting)},
    ]


def test_json_lists_middlewares_with_tools_and_constraints() -> None:
    assert json.loads(explain_as("json"))["middlewares"] == [
        {"class": "Guard", "key": "Guard", "tools": []},
        {"class": "Guard", "key": "Guard#2", "tools": []},
        {"class": "Tools", "key": "Tools", "tools": ["search", "fetch"]},
        {
            "class": "Prompt",
            "key": "prompts & <more>",
            "tools": [],
            "position": "innermost",
            "wrapped_by": ["Guard", "Retry"],
        },
    ]


def test_json_shows_a_hook_without_a_layer_as_empty() -> None:
    description = json.loads(explain(compile_with(), "assistant", CORES, {}, "json"))
    assert all(hook["layers"] == [] for hook in description["hooks"])


def test_mermaid_draws_every_chain_to_its_core() -> None:
    lines = [re.sub(r"<br/>.*:\d+\"", '"', line) for line in explain_as("mermaid").splitlines()]
    assert lines[0] == "flowchart LR"
    begin = lines.index('  subgraph on_acting["on_acting"]')
    assert lines[begin + 1 : begin + 9] == [
        '    on_acting_1["Guard"]',
        '    on_acting_2["Guard [Guard#2]"]',
        '    on_acting_3["Tools"]',
        '    on_acting_core["core"]',
        "    on_acting_1 --> on_acting_2",
        "    on_acting_2 --> on_acting_3",
        "    on_acting_3 --> on_acting_core",
        "  end",
    ]
    assert sum(line.startswith("  subgraph") for line in lines) == len(CHAINED)


def test_mermaid_labels_layers_with_location_and_tools() -> None:
    text = explain_as("mermaid")
    assert f'on_acting_1["Guard<br/>{place_of(Guard.on_acting)}"]' in text
    assert '"Tools of Tools: search, fetch"' in text


def test_mermaid_names_hooks_without_a_layer_in_one_box() -> None:
    chains = compile_with(Outer("1"))
    *_, direct = explain(chains, "assistant", CORES, {}).splitlines()
    diagram = explain(chains, "assistant", CORES, {}, "mermaid")
    assert f'direct["{direct.replace(": ", ":<br/>").replace(", on_", "<br/>on_")}"]' in diagram
    assert not [name for name in direct.partition(": ")[2].split(", ") if f"subgraph {name}" in diagram]


def test_mermaid_escapes_markup() -> None:
    assert '["Prompt [prompts &amp; &lt;more>]<br/>' in explain_as("mermaid")


class Outer(Guard):
    position = "outermost"
    wraps = ("Middle", "Inner")


class Middle(Guard):
    wraps = ("Inner",)


class Inner(Guard):
    wrapped_by = ("Outer", "Missing")


ORDERED = compile_with(Outer("1"), Middle("2"), Guard("3"), Inner("4"))


def test_text_says_why_each_layer_stands_where_it_does() -> None:
    text = explain(ORDERED, "assistant", CORES, {})
    [acting] = [part for part in text.split("\n\n") if part.startswith("on_acting (stream): ")]
    place = place_of(Guard.on_acting)
    assert acting.splitlines()[1:-1] == [
        f"  1. Outer  {place}",
        "     outermost",
        "     wraps Middle",
        f"  2. Middle  {place}",
        "     inside Outer",
        "     wraps Inner",
        f"  3. Guard  {place}",
        f"  4. Inner  {place}",
        "     inside Middle",
    ]


def test_json_gives_reasons_only_for_layers_with_constraints() -> None:
    hooks = json.loads(explain(ORDERED, "assistant", CORES, {}, "json"))["hooks"]
    [acting] = [hook for hook in hooks if hook["hook"] == "on_acting"]
    assert [layer.get("because") for layer in acting["layers"]] == [
        ["outermost", "wraps Middle"],
        ["inside Outer", "wraps Inner"],
        None,
        ["inside Middle"],
    ]


def test_mermaid_gives_the_reason_in_the_box_of_the_layer() -> None:
    text = explain(compile_with(Outer("1"), Inner("2")), "assistant", CORES, {}, "mermaid")
    place = place_of(Guard.on_acting)
    assert f'on_acting_1["Outer<br/>{place}<br/>outermost<br/>wraps Inner"]' in text
    assert f'on_acting_2["Inner<br/>{place}<br/>inside Outer"]' in text


def test_reasons_follow_the_layers_that_they_hold_for() -> None:
    class Both(Guard):
        wraps: ClassVar = {"Middle": "it sees both", "Inner": "it sees both"}
        wrapped_by: ClassVar = {Outer: "it is seen"}

    class Other(Guard):
        pass

    chains = compile_with(Outer("1"), Both("2"), Other("3"), Inner("4"))
    hooks = json.loads(explain(chains, "assistant", CORES, {}, "json"))["hooks"]
    [acting] = [hook for hook in hooks if hook["hook"] == "on_acting"]
    reasons = [layer.get("because") for layer in acting["layers"]]
    assert reasons[1] == ["inside Outer: it is seen", "wraps Inner: it sees both"]
    assert reasons[3] == ["inside Both: it sees both"]


def test_layers_of_other_chains_are_not_given_as_reasons() -> None:
    class Elsewhere(MiddlewareBase):
        wraps = ("Inner",)

        async def on_system_prompt(self, agent, current_prompt):
            return current_prompt

    hooks = json.loads(explain(compile_with(Elsewhere(), Inner("1")), "assistant", CORES, {}, "json"))["hooks"]
    assert not any("because" in layer for hook in hooks for layer in hook["layers"])


def test_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"explain\(format=...\) must be 'text', 'json' or 'mermaid', not 'yaml'"):
        explain_as("yaml")


@pytest.mark.parametrize("format", ["text", "json", "mermaid"])
def test_chains_without_all_the_cores_can_be_explained(format: Any) -> None:
    cores = {"on_reply": CORES["on_reply"]}
    chains = compile_chains(MiddlewareBase, HOOKS, cores, [GUARDS[0]])
    assert "on_reply" in explain(chains, "assistant", cores, {}, format)


def layer_place(middleware: MiddlewareBase) -> str:
    """Return where `explain` says that the hook on_model_call of the middleware is."""
    description = json.loads(explain(compile_with(middleware), "assistant", CORES, {}, "json"))
    [hook] = [hook for hook in description["hooks"] if hook["hook"] == "on_model_call"]
    return str(hook["layers"][0]["where"])


def middleware_in(file: str, module: str) -> MiddlewareBase:
    """Return a middleware whose source is said to be in that file."""
    source = "class Layer(Base):\n    async def on_model_call(self, agent, input_kwargs, next_handler):\n        pass\n"
    names: dict[str, Any] = {"Base": MiddlewareBase, "__name__": module}
    exec(compile(source, file, "exec"), names)  # a file of that name need not exist
    layer: MiddlewareBase = names["Layer"]()
    return layer


def test_code_of_a_library_is_named_by_module_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"agentrt_middleware\.retry:\d+", layer_place(RetryMiddleware()))
    agent = Agent("assistant", model=ScriptedChatModel([]))
    cores = [hook["core"] for hook in json.loads(agent.explain("json"))["hooks"]]
    assert all(re.fullmatch(r"agentrt(\.\w+)+:\d+", core) for core in cores)
    installed = tmp_path / "project" / ".venv" / "lib" / "site-packages" / "layers.py"
    monkeypatch.chdir(tmp_path)
    assert layer_place(middleware_in(str(installed), "layers")) == "layers:2"


def test_files_of_the_user_are_named_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app").mkdir()
    monkeypatch.chdir(tmp_path / "app")
    inside, outside = tmp_path / "app" / "web" / "layers.py", tmp_path / "shared" / "layers.py"
    assert layer_place(middleware_in(str(inside), "web.layers")) == "web/layers.py:2"
    assert layer_place(middleware_in(str(outside), "layers")) == f"{outside}:2"
    assert layer_place(middleware_in("<stdin>", "__main__")) == "<stdin>:2"


def test_places_are_whole_where_there_is_no_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "cwd", gone)
    assert layer_place(middleware_in(str(tmp_path / "layers.py"), "layers")) == f"{tmp_path / 'layers.py'}:2"


@pytest.mark.parametrize("format", ["text", "json", "mermaid"])
def test_ipython_shows_the_text_line_by_line(format: Any) -> None:
    shown: list[str] = []

    class Printer:
        def text(self, text: str) -> None:
            shown.append(text)

    page: Any = explain_as(format)
    page._repr_pretty_(Printer(), False)
    assert shown == [str(page)]
