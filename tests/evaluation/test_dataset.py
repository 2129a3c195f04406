"""Cases and data sets: their names, their files, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError, UsageError
from agentrt.evaluation import Case, Dataset, Judge, SimulatedUser, contains
from agentrt.message import UserMsg
from agentrt.middleware import LoggingMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.testing import fail_model, fail_tool, slow_tool

HOSTILE = '"><script>alert(1)</script>\x1b[2J\u2028 =1+1,\n"x"'


def test_a_case_is_named_by_its_first_words() -> None:
    assert str(Case("Where is\n my order?")) == "Where is my order?"
    assert str(Case("word " * 40)) == "word " * 11 + "word ..."
    assert str(Case(["One", UserMsg("user", "Two")])) == "One Two"
    assert str(Case(SimulatedUser(ScriptedChatModel([]), "Send it back"))) == "Send it back"
    assert str(Case("Where?", name="order")) == "order"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Case(7), "inputs"),
        (lambda: Case([]), "inputs"),
        (lambda: Case("x", name=""), "name"),
        (lambda: Case("x", name="x" * 201), "200"),
        (lambda: Case("x", labels={"a": 1}), "labels"),
        (lambda: Case("x", labels="a"), "labels"),
        (lambda: Case("x", metadata=[1]), "metadata"),
        (lambda: Case("x", faults=[7]), "fail_tool"),
        (lambda: Case("x", approve="yes"), "approve"),
        (lambda: Dataset("", [Case("x")]), "name"),
        (lambda: Dataset("d", []), "no cases"),
        (lambda: Dataset("d", ["x"]), "list of Case"),
        (lambda: Dataset("d", [Case("x"), Case("x", 1)]), "'x': name each"),
        (lambda: Case("x", labels=0), "labels"),
        (lambda: Case("x", metadata=[]), "metadata"),
        (lambda: Dataset("d", Case("x")), "list of Case"),
        (lambda: Dataset("d", 7), "list of Case"),
        (lambda: Dataset("d", [Case("x")], lambda trial: True), "list of functions"),
        (lambda: Judge(ScriptedChatModel([]), "Good?", ["bad"]), "scale"),
        (lambda: Dataset("d", [Case("x")], ["contains"]), r"contains\(\)"),
        (lambda: Dataset("d", [Case("x")], [dict]), r"contains\(\)"),
        (lambda: SimulatedUser("", "goal"), "openai"),
        (lambda: SimulatedUser("openai:x", " "), "goal"),
        (lambda: SimulatedUser("openai:x", "goal", 0), "max_turns"),
    ],
)
def test_wrong_values_are_named(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_json_files_hold_all_that_is_plain(suffix: str, tmp_path: Path) -> None:
    faults = [fail_tool("get_order", 2), fail_model(at=[1, 3]), slow_tool("get_order", 0.5)]
    cases = [
        Case("Where?", {"city": "Oslo"}, name=HOSTILE, labels={"kind": HOSTILE}, faults=faults, approve=True),
        Case(["One", "Two"], ["a", "b"], metadata={"n": [1, None]}),
        Case(SimulatedUser("openai:gpt-5-mini", "Send it back", 3)),
    ]
    path = tmp_path / f"returns.{suffix}"
    Dataset("returns", cases).save(path)
    loaded = Dataset.load(path, [contains()])
    assert [case.to_json() for case in loaded] == [case.to_json() for case in cases]
    assert loaded.cases[0].faults == faults
    assert (loaded.name, len(loaded), len(loaded.evaluators)) == ("returns", 3, 1)


def test_csv_holds_text_labels_and_metadata(tmp_path: Path) -> None:
    cases = [
        Case(HOSTILE, "14 days", name="late", labels={"kind": "policy"}, metadata={"source": "mail, one"}),
        Case("Where is it?"),
    ]
    Dataset("returns", cases).save(tmp_path / "returns.csv")
    loaded = Dataset.load(tmp_path / "returns.csv")
    assert [case.to_json() for case in loaded] == [case.to_json() for case in cases]


def test_csv_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("inputs,expected,labels.kind\r\nWhere?,here,\r\nWhen?,,time\r\n", "utf-8-sig")
    first, second = Dataset.load(tmp_path / "a.csv")
    assert (first.expected, first.labels) == ("here", None)
    assert (second.expected, second.labels) == (None, {"kind": "time"})


@pytest.mark.parametrize(
    "case",
    [
        Case("x", faults=[LoggingMiddleware()]),
        Case("x", approve=lambda call: True),
        Case(UserMsg("user", "x")),
        Case("x", expected=object()),
        Case("x", expected=float("nan")),
        Case(SimulatedUser(ScriptedChatModel([]), "goal")),
    ],
    ids=["layer", "function", "message", "object", "nan", "model"],
)
def test_what_a_file_cannot_hold_is_named(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Dataset("d", [case]).save(tmp_path / "a.json")
    assert not list(tmp_path.iterdir())


def test_csv_keeps_the_ends_of_lines(tmp_path: Path) -> None:
    cases = [Case("One\r\ntwo\rthree\nfour", "=1+1", name='a,"b', labels={"a.b": "é"})]
    Dataset("d", cases).save(tmp_path / "a.csv")
    assert Dataset.load(tmp_path / "a.csv").cases == cases


def test_a_case_that_cannot_be_saved_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    Dataset("d", [Case("x")]).save(tmp_path / "a.csv")
    before = (tmp_path / "a.csv").read_bytes()
    with pytest.raises(UsageError, match="surrogates"):
        Dataset("d", [Case("\ud800")]).save(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes() == before


def test_values_are_saved_as_they_are_or_not_at_all() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(UsageError, match="JSON"):
        Case("x", circle).to_json()
    assert Case.from_json(Case("x", []).to_json()).expected == []
    # The order of a set depends on the process.
    assert Case("x", {"d", "b", "c", "a"}).to_json()["expected"] == ["a", "b", "c", "d"]


def test_csv_refuses_what_is_more_than_text(tmp_path: Path) -> None:
    for case in (
        Case(["One", "Two"]),
        Case("x", approve=True),
        Case("x", 7),
        Case("x", ""),
        Case("x", labels={"a": ""}),
    ):
        with pytest.raises(UsageError, match=r"\.json"):
            Dataset("d", [case]).save(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{", "not JSON"),
        ("a.json", "[]", "no cases"),
        ("a.json", '{"cases": 7}', "list of cases"),
        ("a.json", '[{"inputs": "x", "wrong": 1}]', "case 1 of .*'wrong'"),
        ("a.json", '[{"inputs": "x"}, {"inputs": "y", "faults": [{"kind": "burn"}]}]', "case 2 of"),
        ("a.json", '[{"inputs": {"goal": "x"}}]', "simulated user"),
        ("a.jsonl", '{"inputs": "x"}\n{', "line 2"),
        ("a.json", '{"name": 7, "cases": [{"inputs": "x"}]}', "a.json.*name"),
        ("a.json", '[{"inputs": "x", "faults": 7}]', "case 1 of .*faults"),
        ("a.json", '[{"inputs": "x", "faults": [{"kind": "slow_tool", "tool": "a", "seconds": "b"}]}]', "seconds"),
        ("a.json", '[\n{"inputs": }]', "a.json': not JSON.*line 2"),
        ("a.jsonl", "", "no cases"),
        ("a.jsonl", '"x"', "case 1"),
        ("a.csv", "inputs,inputs\nx,y\n", "no two of one name"),
        ("a.csv", "inputs;expected\nx;y\n", "one column 'inputs'.*inputs;expected"),
        ("a.csv", "inputs,name\nx\n", "fewer cells"),
        ("a.csv", "inputs\nx,y\n", "more cells"),
        ("a.csv", "question\nx\n", "inputs"),
        ("a.txt", "x", "csv"),
    ],
)
def test_damaged_files_are_refused_with_the_place(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        Dataset.load(tmp_path / name)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Dataset.load("nowhere.json")


def test_a_list_in_a_json_file_is_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "plain.json").write_text(json.dumps([{"inputs": "x"}, {"inputs": ["y", "z"]}]), encoding="utf-8")
    dataset = Dataset.load(tmp_path / "plain.json")
    assert (dataset.name, [case.turns for case in dataset]) == ("plain", [["x"], ["y", "z"]])


@pytest.mark.parametrize("case", Dataset("d", [Case("One"), Case("Two", name="second")]), ids=str)
def test_pytest_takes_the_cases_by_their_names(case: Case, request: pytest.FixtureRequest) -> None:
    assert request.node.name.endswith(f"[{case}]")
