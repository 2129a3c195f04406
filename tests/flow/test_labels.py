"""Labels, what tools declare, and what is refused of both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.tool import FlowLabel, FunctionTool, MCPToolset, ToolFlow

NAMES = st.frozensets(st.sampled_from("abc"))
LABELS = st.builds(FlowLabel, st.booleans(), st.none() | NAMES, NAMES)


@given(LABELS, LABELS, LABELS)
def test_labels_join_like_a_semilattice(first, second, third):
    assert first | second == second | first
    assert (first | second) | third == first | (second | third)
    assert first | first == first == first | FlowLabel()


def test_what_both_may_read_is_what_each_may_read():
    joined = FlowLabel(readers=["ann", "bob"]) | FlowLabel(False, ["bob", "eve"], ["page"])
    assert joined == FlowLabel(False, ["bob"], ["page"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ToolFlow(trusted_output="id"),
        lambda: ToolFlow(trusted_input="to"),
        lambda: ToolFlow(output_readers="ann"),
        lambda: ToolFlow(sends_to=["to"]),
        lambda: FlowLabel(sources="page"),
        lambda: FlowLabel("yes"),
        lambda: MCPToolset("mail", command=["x"], flows={"send": True}),
        lambda: FunctionTool(print, json_schema={"type": "object"}, flow=("to",)),
    ],
)
def test_what_would_check_nothing_is_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_a_flow_of_a_server_holds_for_the_names_that_fit():
    send = ToolFlow(trusted_input=["to"])
    toolset = MCPToolset("mail", command=["x"], flows={"send_*": send, "*": ToolFlow(True)})
    assert toolset.options_of("send_all")["flow"] is send
    assert toolset.options_of("list")["flow"] == ToolFlow(True)
