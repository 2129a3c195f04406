"""The model made of rules picks tools by what they are for, and tells in words what they say."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import ConfigError, Rejected
from agentrt.message import (
    AssistantMsg,
    ContentBlock,
    HintBlock,
    Msg,
    SystemMsg,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    UserMsg,
)
from agentrt.model import DEFAULT_RULES, ChatResponse, Rule, RulesChatModel
from agentrt.types import JSONSchema, ToolChoice

FILES = {
    "people.txt": "Anna Smith: phone number 555-1234\nBob Jones: phone number 555-9999\n",
    "animals/otters.md": "# Otters\n\nAn otter swims well.\nIt holds hands in its sleep.\n\nAn otterhound is a dog.\n",
    "animals/birds.md": "# Birds\n\nAn owl hunts at night.\n",
    "zoo.py": "from zoo import Cage\n\n\nclass Cage:\n    pass\n\n\nlock = Cage()\n",
}


def list_files() -> str:
    return "\n".join(sorted(FILES))


def read_file(path: str) -> str:
    if path not in FILES:
        raise FileNotFoundError(f"there is no {path!r}")
    return FILES[path]


def search_text(text: str) -> str:
    lines = ((path, *each) for path, whole in FILES.items() for each in enumerate(whole.splitlines(), 1))
    hits = [f"{path}:{number}: {line}" for path, number, line in lines if text.lower() in line.lower()]
    return "\n".join(hits) or "no matches"


def calculate(expression: str) -> str:
    return str(eval(expression, {"__builtins__": {}}))  # what the model may write is part of the test


def schema(name: str, description: str, *required: str, **properties: JSONSchema) -> JSONSchema:
    shapes = {**{each: {"type": "string"} for each in required}, **properties}
    parameters = {"type": "object", "properties": shapes, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


FUNCTIONS: dict[str, Callable[..., str]] = {
    each.__name__: each for each in (list_files, read_file, search_text, calculate)
}
TOOLS = [
    schema("list_files", "List the files."),
    schema("read_file", "Read one file.", "path"),
    schema("search_text", "Find the lines that hold a text.", "text"),
    schema("calculate", "Work out an arithmetic expression.", "expression"),
]


class Conversation:
    """A conversation with a model: `say` runs the tools that it asks for, and returns its answer."""

    def __init__(self, model: RulesChatModel | None = None, tools: list[JSONSchema] | None = None) -> None:
        self.model = model or RulesChatModel(stream=False)
        self.tools = TOOLS if tools is None else tools
        self.functions = dict(FUNCTIONS)
        self.messages: list[Msg] = []
        self.calls: list[tuple[str, Any]] = []

    async def say(self, question: str) -> str:
        self.messages.append(UserMsg("user", question))
        reply = AssistantMsg("assistant", [])
        for _ in range(5):
            (block,) = await blocks_of(self.model, [*self.messages, reply], self.tools)
            reply.content = [*reply.content, block]
            if isinstance(block, TextBlock):
                self.messages.append(reply)
                return block.text
            assert isinstance(block, ToolCallBlock)
            reply.content.append(self._run(block))
        raise AssertionError(f"no answer after {self.calls}")

    def _run(self, call: ToolCallBlock) -> ToolResultBlock:
        arguments = json.loads(call.input)
        self.calls.append((call.name, arguments))
        try:
            return ToolResultBlock(call.id, call.name, [TextBlock(self.functions[call.name](**arguments))])
        except (ArithmeticError, OSError, SyntaxError, TypeError, ValueError) as error:
            text = f"{call.name} failed: {error!r}"
            return ToolResultBlock(call.id, call.name, [TextBlock(text)], ToolResultState.ERROR)


async def blocks_of(
    model: RulesChatModel, messages: list[Msg], tools: list[JSONSchema], choice: ToolChoice | None = None
) -> list[ContentBlock]:
    result = await model(messages, tools, choice)
    if isinstance(result, ChatResponse):
        return result.content
    return [piece async for piece in result][-1].content


async def decide(
    question: str, tools: list[JSONSchema], choice: ToolChoice | None = None, *after: ContentBlock
) -> tuple[str, Any] | str:
    messages = [UserMsg("user", question), AssistantMsg("assistant", list(after))]
    (block,) = await blocks_of(RulesChatModel(stream=False), messages, tools, choice)
    if isinstance(block, ToolCallBlock):
        return block.name, json.loads(block.input)
    assert isinstance(block, TextBlock)
    return block.text


@pytest.fixture
def talk() -> Conversation:
    return Conversation()


@pytest.mark.parametrize(
    "question",
    [
        "Which file contains the word otter?",
        "Which file contains otter?",
        'Which file contains "otter"?',
        "what file mentions otter",
        "Which of the files hold the word 'otter'?",
        "In which file is the word otter?",
        "Where is the word otter used?",
        "Where is otter mentioned?",
        "Which file defines otter?",
        "Is there a file that mentions the otter?",
        "Find otter",
        "Please search for the word otter in the files.",
        "Tell me which file has the word otter in it.",
        "How many files contain the word otter?",
        "What about the otter?",
    ],
)
async def test_a_question_for_a_place_searches_for_its_text_alone(question: str) -> None:
    assert await decide(question, TOOLS) == ("search_text", {"text": "otter"})


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Which file contains the word owl?", "animals/birds.md contains 'owl' on line 3: An owl hunts at night."),
        ("Where is the word otter?", "animals/otters.md contains 'otter' on line 3: An otter swims well."),
        ("Which file defines Cage?", "zoo.py defines 'Cage' on line 4: class Cage:"),
        ("Which file contains the word zebra?", "I searched, and found no file here that contains 'zebra'.\n\nAsk"),
        ("What is Anna's phone number?", "people.txt contains 'Anna' on line 1: Anna Smith: phone number 555-1234"),
        (
            "Which files contain the word an?",
            "2 files contain 'an':\nanimals/otters.md, line 3: An otter swims well.\n"
            "animals/birds.md, line 3: An owl hunts at night.",
        ),
    ],
)
async def test_an_answer_names_the_places_that_a_search_found(question: str, answer: str) -> None:
    assert (await Conversation().say(question)).startswith(answer)


async def test_a_search_result_that_was_cut_is_not_taken_for_all(talk: Conversation) -> None:
    talk.functions["search_text"] = lambda text: f"a.txt:1: {text}\nb.txt:2: {text}\n... and 7 more lines"

    assert (await talk.say("How many files contain the word owl?")).startswith("At least 2 files contain 'owl':")


async def test_a_result_in_another_format_is_quoted_as_it_is(talk: Conversation) -> None:
    talk.functions["search_text"] = lambda text: "Owls are mostly found in forests"

    assert await talk.say("Where is the word owl?") == "Owls are mostly found in forests"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is in zoo.py?", f"zoo.py has 8 lines:\n{FILES['zoo.py'].rstrip()}"),
        ("What does animals/otters.md say about sleeping?", "animals/otters.md, line 4: It holds hands in its sleep."),
        ("What does zoo.py say about otters?", "zoo.py says nothing about 'otters'."),
    ],
)
async def test_a_file_that_is_named_is_read(question: str, answer: str, talk: Conversation) -> None:
    assert await talk.say(question) == answer
    assert [name for name, _ in talk.calls] == ["read_file"]


async def test_a_long_file_is_shown_up_to_its_twentieth_line(talk: Conversation) -> None:
    talk.functions["read_file"] = lambda path: "\n".join(map(str, range(1, 1001)))
    answer = await talk.say("Show me long.txt")

    assert answer.startswith("long.txt has 1000 lines, beginning:\n1\n2\n")
    assert answer.endswith("\n20")


async def test_a_file_that_is_nowhere_is_said_to_be_unreadable_and_why() -> None:
    assert await Conversation().say("Read void.txt") == (
        "I used read_file, but it failed: FileNotFoundError(\"there is no 'void.txt'\")"
    )


async def test_a_search_in_vain_says_what_can_be_asked() -> None:
    answer = await Conversation().say("What is the capital of France?")

    assert answer.startswith("I searched, and found no file here that contains 'France'.\n\nAsk me, for example: ")


async def test_the_questions_that_are_suggested_can_be_answered() -> None:
    [suggestions] = re.findall(r"Ask me, for example: (.*)", await Conversation().say("hi"))

    for question in re.findall('"([^"]+)"', suggestions):
        talk = Conversation()
        await talk.say(question)
        assert talk.calls, question


async def test_questions_are_suggested_only_for_tools_that_are_there() -> None:
    assert (await Conversation(tools=TOOLS[3:]).say("hi")).endswith('Ask me, for example: "What is 17 * 23?"')
    assert (await Conversation(tools=[]).say("hi")).endswith("My tools: none")


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("2+3等于多少？", "calculate"),
        ("计算 6*7", "calculate"),
        ("哪个文件包含otter？", "search_text"),
    ],
)
async def test_short_and_chinese_questions_find_their_tool(question: str, name: str, talk: Conversation) -> None:
    await talk.say(question)

    assert [called for called, _ in talk.calls] == [name]


async def test_files_are_listed() -> None:
    assert await Conversation().say("List the files") == list_files()


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("What is 17 * 23 + 2 ** 8?", "17 * 23 + 2 ** 8"),
        ("1+1", "1+1"),
        ("Calculate (2 + 3) * -4.5", "(2 + 3) * -4.5"),
        ("how much is 12 times 12", "12 * 12"),
        ("What is 3 x 4?", "3 * 4"),
        ("What is 20 divided by 5 minus 1?", "20 / 5 - 1"),
        ("17 % 5 = ?", "17 % 5"),
    ],
)
async def test_arithmetic_is_given_to_the_calculator(question: str, expression: str) -> None:
    assert await decide(question, TOOLS) == ("calculate", {"expression": expression})


async def test_a_number_is_answered_with_its_expression() -> None:
    assert await Conversation().say("What is 6 times 7?") == "6 * 7 = 42"


@pytest.mark.parametrize(
    "question", ["What happened on 2024-11-15?", "What is new in 3.11.4?", "Which file contains 1+1?"]
)
async def test_dates_versions_and_search_texts_are_not_calculated(question: str) -> None:
    name, _ = await decide(question, TOOLS)

    assert name != "calculate"


@pytest.mark.parametrize(
    ("question", "tool", "arguments"),
    [
        ("Where is the word owl?", schema("grep", "", "pattern"), {"pattern": "owl"}),
        ("Where is the word owl?", schema("lines", "Finds lines.", "query"), {"query": "owl"}),
        ("What is in a.txt?", schema("cat", "", "filename"), {"filename": "a.txt"}),
        ("What is 1 + 1?", schema("python", "", "expression"), {"expression": "1 + 1"}),
        ("What is the weather in New York?", schema("get_weather", "", "city"), {"city": "New York"}),
        ("Roll dice 3 times", schema("rollDice", "", "times", times={"type": "integer"}), {"times": 3}),
        ("Delete a.txt", schema("delete_file", "", "path"), {"path": "a.txt"}),
    ],
)
async def test_a_tool_is_known_by_its_schema(question: str, tool: JSONSchema, arguments: dict[str, Any]) -> None:
    name = tool["function"]["name"]

    assert await decide(question, [schema("unrelated", "", "path"), tool]) == (name, arguments)


async def test_only_results_since_the_question_count(talk: Conversation) -> None:
    first = await talk.say("What is 1 + 1?")

    assert await talk.say("What is 1 + 1?") == first
    assert len(talk.calls) == 2


async def test_a_note_of_the_runtime_is_not_taken_for_the_question() -> None:
    messages = [UserMsg("user", "What is 1 + 1?"), UserMsg("runtime", [HintBlock("Answer now.")])]
    (block,) = await blocks_of(RulesChatModel(stream=False), messages, TOOLS)

    assert isinstance(block, ToolCallBlock)


async def test_the_time_is_taken_from_the_system_prompt() -> None:
    messages = [SystemMsg("system", "Be kind.\n\n## Current Context\nTime: 12:30"), UserMsg("user", "What time is it?")]
    (block,) = await blocks_of(RulesChatModel(stream=False), messages, TOOLS)

    assert isinstance(block, TextBlock)
    assert block.text == "Time: 12:30"


async def test_a_failure_of_a_tool_is_in_the_answer() -> None:
    assert await Conversation().say("What is 1 / 0?") == (
        "I used calculate, but it failed: ZeroDivisionError('division by zero')"
    )


async def test_a_denied_call_is_in_the_answer_and_not_repeated() -> None:
    call = ToolCallBlock("1", "read_file", '{"path": "a.txt"}')
    result = ToolResultBlock("1", "read_file", "no", ToolResultState.DENIED)

    assert await decide("Read a.txt", TOOLS, None, call, result) == "I was not allowed to use read_file."


@pytest.mark.parametrize("question", ["Hello!", "What can you do?", "???", "Write a poem about owls", "Delete zoo.py"])
async def test_what_it_cannot_do_it_says_and_which_tools_it_has(question: str, talk: Conversation) -> None:
    answer = await talk.say(question)

    assert "I am a set of rules, not a language model" in answer
    assert all(name in answer for name in FUNCTIONS)
    assert not talk.calls


async def test_without_tools_it_says_that_it_cannot_answer() -> None:
    assert (await Conversation(tools=[]).say("Which file contains the word owl?")).startswith("I cannot answer that")


async def test_tool_choice_none_is_answered_in_words() -> None:
    result = ToolResultBlock("1", "search_text", "a.txt:1: the owl")
    none = ToolChoice("none")

    assert await decide("What is 1 + 1?", TOOLS, none) == "I would use calculate, but I may not use it now."
    assert await decide("Tell me about the owl", TOOLS, none, result) == "a.txt contains 'owl' on line 1: the owl"


@pytest.mark.parametrize("mode", ["required", "calculate"])
async def test_a_required_call_is_made_even_when_nothing_asks_for_it(mode: str) -> None:
    assert await decide("Hello!", [TOOLS[3]], ToolChoice(mode)) == ("calculate", {"expression": "Hello"})


async def test_the_tool_that_tool_choice_names_is_called() -> None:
    name, _ = await decide("What is 1 + 1?", TOOLS, ToolChoice("search_text"))

    assert name == "search_text"


@pytest.mark.parametrize("choice", [ToolChoice("fly"), ToolChoice("required", tools=["fly"])])
async def test_a_tool_that_is_not_there_cannot_be_required(choice: ToolChoice) -> None:
    with pytest.raises(Rejected, match="but the tools offered are"):
        await decide("Hello!", TOOLS, choice)


async def test_only_the_tools_that_tool_choice_names_are_used() -> None:
    assert isinstance(await decide("What is 1 + 1?", TOOLS, ToolChoice(tools=["read_file"])), str)


async def test_the_arguments_of_a_required_call_fit_its_schema() -> None:
    tool = schema("report", "", "count", "mood", "sure", "tags", "note")
    tool["function"]["parameters"]["properties"] |= {
        "count": {"type": "integer"},
        "mood": {"enum": ["good", "bad"]},
        "sure": {"type": "boolean"},
        "tags": {"type": "array"},
    }
    name, arguments = await decide("3 otters in bad shape", [tool], ToolChoice("report"))

    assert name == "report"
    assert arguments == {"count": 3, "mood": "bad", "sure": True, "tags": [], "note": "bad"}


async def test_an_answer_streams_word_by_word() -> None:
    result = await RulesChatModel()([UserMsg("user", "Thanks")])
    assert not isinstance(result, ChatResponse)
    *pieces, last = [piece async for piece in result]

    assert [piece.content[0].text for piece in pieces] == ["You ", "are ", "welcome."]
    assert last.content[0].text == "You are welcome."
    assert last.usage is not None


async def test_a_call_streams_in_pieces() -> None:
    result = await RulesChatModel()([UserMsg("user", "Where is the word hippopotamus?")], TOOLS)
    assert not isinstance(result, ChatResponse)
    *pieces, last = [piece async for piece in result]

    assert len(pieces) > 1
    assert "".join(piece.content[0].input for piece in pieces) == last.content[0].input
    assert last.finished_reason == "tool_calls"


@pytest.mark.parametrize(
    "question",
    [
        "(" * 10_000,
        "1+" * 10_000,
        "a " * 50_000,
        '"' * 10_001,
        "A" * 50_000 + " in AAAA-",
        "which file contains " + "the word " * 5_000,
        "file " * 5_000 + "contains",
        "read " + "a/" * 20_000,
        "1" * 50_000 + " + 1",
        "\n" * 50_000,
        "\x00\ud800🦦",
    ],
)
async def test_a_question_of_any_size_and_shape_soon_gets_an_answer(question: str) -> None:
    assert await Conversation().say(question)


@pytest.mark.parametrize("result", ["otter " * 500_000, ":" * 500_000, "a.txt:1: otter\n" * 50_000])
@pytest.mark.parametrize("question", ["What does a.txt say about otters?", "Where is the word otter?"])
async def test_a_result_of_any_size_soon_gets_an_answer(question: str, result: str, talk: Conversation) -> None:
    talk.functions |= {"read_file": lambda path: result, "search_text": lambda text: result}

    assert await talk.say(question)


SENTENCE = (
    "what where which file files contains the word in of list read 1 + * ( ) ? . \" ' otter a.txt it say calculate"
)
WORDS = st.sampled_from(SENTENCE.split())


@settings(deadline=None)
@given(st.one_of(st.text(max_size=80), st.lists(WORDS, max_size=12).map(" ".join)))
async def test_conversations_end_and_equal_questions_answer_equally(question: str) -> None:
    assert await Conversation().say(question) == await Conversation().say(question)


TIME = schema("get_time", "", "city")


async def test_a_users_rule_calls_a_tool_with_captured_arguments() -> None:
    rule = Rule(r"time in (?P<city>\w+)", "It is {result} in {city}.", "get_time", {"city": "{city}"})
    talk = Conversation(RulesChatModel([rule]), [TIME])
    talk.functions["get_time"] = lambda city: "noon"

    assert await talk.say("What is the TIME in Rome?") == "It is noon in Rome."
    assert talk.calls == [("get_time", {"city": "Rome"})]


async def test_a_rule_without_an_answer_passes_on_what_the_tool_says() -> None:
    talk = Conversation(RulesChatModel([Rule("time", call="get_time", arguments={"city": "Rome"})]), [TIME])
    talk.functions["get_time"] = lambda city: "noon"

    assert await talk.say("time?") == "noon"


async def test_the_first_rule_whose_tool_is_offered_decides() -> None:
    talk = Conversation(
        RulesChatModel([Rule("owl", call="fly"), Rule("owl", "first"), Rule("owl", "second"), *DEFAULT_RULES])
    )

    assert await talk.say("owl") == "first"


async def test_an_argument_is_a_number_where_the_schema_wants_one() -> None:
    rule = Rule(r"roll (?P<times>\d+)", call="roll", arguments={"times": "{times}"})
    talk = Conversation(RulesChatModel([rule]), [schema("roll", "", times={"type": "integer"})])
    talk.functions["roll"] = lambda times: f"{times}"

    assert await talk.say("roll 3") == "3"
    assert talk.calls == [("roll", {"times": 3})]


async def test_what_a_tool_says_may_lead_to_another_call() -> None:
    read = Rule(r"^(?P<path>\S+)", "{path} says: {result}", "read_file", {"path": "{path}"})
    chain = Rule("first file", call="list_files", then=read)

    assert (await Conversation(RulesChatModel([chain])).say("first file")).startswith("animals/birds.md says: # Birds")


async def test_a_captured_text_with_braces_is_left_alone() -> None:
    talk = Conversation(RulesChatModel([Rule("say (?P<text>.+)", "{text}")]))

    assert await talk.say("say {result} {0}") == "{result} {0}"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Rule("owl"), "does nothing: give it answer=, call= or both"),
        (lambda: Rule("(owl", "x"), "is not a regular expression"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_when_it_is_built(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


async def test_a_template_with_an_unknown_name_says_which_are_known() -> None:
    with pytest.raises(
        ConfigError, match=r"'\{bird\}' of a rule names 'bird', which is not known: it may name .*'question'"
    ):
        await Conversation(RulesChatModel([Rule("owl", "{bird}")])).say("owl")
