"""An offline model made of rules: it drives a real agent with real tools, with no key and no network.

It sees what any model sees, the messages and the tool schemas, and remembers nothing between calls. The rules are tried
in order on the user's latest question; the first that matches, and whose tool is there, decides. A rule is data. To
teach the model something, put rules of your own before the ones it has:

    RulesChatModel([Rule(r"time in (?P<city>\\w+)", call="get_time", arguments={"city": "{city}"}), *DEFAULT_RULES])
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio.lowlevel

from agentrt._runtime.block import ContentBlock, TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState, new_id
from agentrt._runtime.model_interface.base import ChatModelBase, ModelResult
from agentrt._runtime.model_interface.capabilities import ModelCapabilities
from agentrt.errors import ConfigError, Rejected
from agentrt.message import Msg
from agentrt.model.scripted import stream_response, whole_response
from agentrt.types import JSONSchema, ToolChoice

_MAX_QUESTION = 1_000  # characters of a question or a result that patterns see, so that none can take long
_MAX_PLACES = 10
_MAX_FILE_LINES = 20

Facts = Mapping[str, str]
"""The facts by name: `question`, `system`, `tools`, `examples`, the groups of patterns, `called` and `result`."""
PlannedCall = tuple[str, dict[str, Any]]
"""The name of a tool, and the arguments for it."""


class OfferedTool(NamedTuple):
    """A tool, as its schema describes it."""

    name: str
    description: str
    parameters: Mapping[str, JSONSchema]
    required: Sequence[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """When `pattern` is found in the question: `call` a tool, give the `answer`, or one after the other.

    `pattern` is a regular expression, whose case does not matter; its named groups, `question`, `system` (the system
    prompt), `tools`, `examples` (of questions for them) and, after a call, `result` are what is known. `arguments` and
    `answer` are templates over that: "It is {result} in {city}". `then` is a rule that is tried on the beginning of the
    result, before the answer is given. Functions may stand for all three: `pattern` and `answer` take what is known,
    `call` also the tools.
    """

    pattern: str | Callable[[Facts], Facts | None]
    answer: str | Callable[[Facts], str] | None = None
    call: str | Callable[[Facts, Sequence[OfferedTool]], PlannedCall | None] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    then: "Rule | None" = None

    def __post_init__(self) -> None:
        if self.answer is None and self.call is None:
            raise ConfigError(f"the rule for {self.pattern!r} does nothing: give it answer=, call= or both")
        if isinstance(self.pattern, str):
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigError(f"the pattern {self.pattern!r} is not a regular expression: {error}") from error

    def pursue(
        self, facts: Facts, tools: Sequence[OfferedTool], results: Sequence[ToolResultBlock], may_call: bool
    ) -> PlannedCall | str | None:
        """Return the call that is due, or the answer, or `None` when the rule does not apply.

        The model remembers nothing, so each round pursues a rule from its beginning: the results since the question say
        how far it has come.
        """
        text = facts.get("result", facts["question"])[:_MAX_QUESTION]
        groups = self.pattern(facts) if callable(self.pattern) else _search(self.pattern, text)
        if groups is None:
            return None
        facts = {**facts, **groups}
        if self.call is None:
            return self._answer(facts)
        call = self._planned_call(facts, tools)
        if call is None:
            return None
        place = next((n for n, result in enumerate(results) if result.name == call[0]), None)
        if place is not None:
            return self._follow_up(facts, tools, results[place:], may_call)
        if may_call:
            return call
        # A follow-up that may not call leaves it to the rule before it, which has a result.
        return None if "result" in facts else f"I would use {call[0]}, but I may not use it now."

    def _follow_up(
        self, facts: Facts, tools: Sequence[OfferedTool], results: Sequence[ToolResultBlock], may_call: bool
    ) -> PlannedCall | str:
        """Return the next call, or the answer, after the first of these results, which is that of the rule's call."""
        result = results[0]
        text = result.text.removeprefix(f"{result.name} failed: ")  # the answer says it anyway
        if result.state is ToolResultState.DENIED:
            return f"I was not allowed to use {result.name}."
        if result.state is not ToolResultState.SUCCESS:
            return f"I used {result.name}, but it failed: {text[:300]}"
        facts = {**facts, "called": result.name, "result": text}
        further = self.then.pursue(facts, tools, results[1:], may_call) if self.then else None
        return self._answer(facts) if further is None else further

    def _planned_call(self, facts: Facts, tools: Sequence[OfferedTool]) -> PlannedCall | None:
        if callable(self.call):
            return self.call(facts, tools)
        tool = next((tool for tool in tools if tool.name == self.call), None)
        if tool is None:
            return None
        return tool.name, {name: _fill(value, facts, tool, name) for name, value in self.arguments.items()}

    def _answer(self, facts: Facts) -> str:
        return self.answer(facts) if callable(self.answer) else str(_fill(self.answer or "{result}", facts))


def _fill(template: Any, facts: Facts, tool: OfferedTool | None = None, name: str = "") -> Any:
    """Return the template with what is known in place of the names in braces, as a number where a tool wants one."""

    def value(match: re.Match[str]) -> str:
        if match[1] in facts:
            return facts[match[1]]
        raise ConfigError(
            f"the template {template!r} of a rule names {match[1]!r}, which is not known: it may name {sorted(facts)}"
        )

    if not isinstance(template, str):
        return template
    text = re.sub(r"\{(\w+)\}", value, template)
    is_number = tool is not None and tool.parameters.get(name, {}).get("type") in ("integer", "number")
    return next(iter(_numbers_in(text)), text) if is_number else text


class RulesChatModel(ChatModelBase):
    """A model that follows `rules`, `DEFAULT_RULES` when none are given; a plain set of rules, not a language model.

    The same messages and tools always give the same answer. A question without a rule gets a list of its tools.
    """

    _capabilities = ModelCapabilities(inputs=frozenset({"text"}), tools=True)
    _completes_streams = True

    def __init__(self, rules: Sequence[Rule] | None = None, *, model: str = "rules", stream: bool = True) -> None:
        super().__init__(model=model, stream=stream)
        self.rules = tuple(DEFAULT_RULES if rules is None else rules)
        candidates: tuple[object, ...] = self.rules
        for rule in candidates:
            if not isinstance(rule, Rule):
                raise ConfigError(
                    f"RulesChatModel(rules=...) takes rules, not {rule!r:.200}: write Rule(pattern, answer)"
                )

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        await anyio.lowlevel.checkpoint()
        response = whole_response([self._decide(messages, tools or [], tool_choice or ToolChoice())], messages)
        return stream_response(response) if self.stream else response

    def _decide(self, messages: list[Msg], schemas: list[JSONSchema], choice: ToolChoice) -> ContentBlock:
        tools = _allowed_tools(schemas, choice)
        facts, results = _read_conversation(messages, tools)
        pursued = (rule.pursue(facts, tools, results, choice.mode != "none") for rule in self.rules)
        decision = next((decision for decision in pursued if decision is not None), _fill(_AT_A_LOSS, facts))
        if isinstance(decision, str) and choice.mode not in ("auto", "none"):
            decision = tools[0].name, _arguments_for(tools[0], facts["question"], insist=True)
        if isinstance(decision, str):
            return TextBlock(decision)
        return ToolCallBlock(new_id(), decision[0], json.dumps(decision[1], ensure_ascii=False))


def _allowed_tools(schemas: list[JSONSchema], choice: ToolChoice) -> list[OfferedTool]:
    """Return the tools that may be called, as a provider's API would narrow them by the tool choice."""
    tools = []
    for schema in schemas:
        body = schema.get("function", schema)
        if choice.tools is None or body["name"] in choice.tools:
            shape = body.get("parameters") or body.get("input_schema") or {}
            description, properties = body.get("description") or "", shape.get("properties", {})
            tools.append(OfferedTool(body["name"], description, properties, shape.get("required", ())))
    allowed = [tool for tool in tools if choice.mode in ("auto", "none", "required", tool.name)]
    if not allowed and choice.mode not in ("auto", "none"):
        names = [tool.name for tool in tools]
        raise Rejected(f"tool_choice is {choice.mode!r}, but the tools offered are {names}: offer one that it allows")
    return allowed


def _read_conversation(messages: list[Msg], tools: Sequence[OfferedTool]) -> tuple[Facts, list[ToolResultBlock]]:
    """Return what is known at the user's latest question, and the results since then."""
    # A note of the runtime is a message of the user's role without text, and not a question.
    asking = (n for n in reversed(range(len(messages))) if messages[n].role == "user")
    place = next((n for n in asking if messages[n].get_text_content()), 0)
    question = (messages[place].get_text_content() or "") if messages else ""
    examples = [f'"{example}"' for example in _EXAMPLES if _choose_tool({"question": example}, tools)]
    facts = {
        "question": " ".join(question[:_MAX_QUESTION].split()),
        "system": "\n".join(msg.get_text_content() or "" for msg in messages if msg.role == "system"),
        "tools": "".join(f"\n- {tool.name}: {tool.description[:160]}" for tool in tools) or " none",
        "examples": f"\n\nAsk me, for example: {', '.join(examples)}" if examples else "",
    }
    blocks = (block for msg in messages[place:] for block in msg.get_content_blocks())
    return facts, [block for block in blocks if isinstance(block, ToolResultBlock)]


# The three rules: what it is, a line of the system prompt, and the tool that the question is for.

_COMMON_WORD_LIST = """a about all am an and any anything are as at be been by can contain contains could define defined
defines do does describe explain file files find folder for from give had has have he her here his how i if in include
includes into is it its know let line lines list look many may me mean mention mentioned mentions much my no not of on
open or our please read say says search she should show so some tell text than that the their them then there these
they this to use used uses was we were what when where which who why will with word words you"""
_COMMON_WORDS = frozenset(_COMMON_WORD_LIST.split())
_EXAMPLES = "List the files", "Which file contains the word zebra?", "Read README.md", "What is 17 * 23?"
_DEED = r"^(?:please\s+)?(?:write|summari[sz]e|translate|delete|remove|create|edit|rename|move|send|draw|buy|book)\b"
_SEARCHES = {"search", "find", "grep", "look", "query"}
_READS = {"read", "open", "show", "view", "cat"}
_OPERATORS = {r"\bplus\b": "+", r"\bminus\b": "-", r"\b(?:times|multiplied by|x)\b": "*", r"\bdivided by\b": "/"}


def _find_in_prompt(facts: Facts) -> Facts | None:
    """Find the `fact` in a line of the system prompt, such as "Time: 12:00"."""
    asked_for = _search(r"\bwhat (?P<what>time|date|day) is it\b", facts["question"])
    return asked_for and _search(rf"(?m)^(?P<fact>{asked_for['what']}: .*)", facts["system"])


def _choose_tool(facts: Facts, tools: Sequence[OfferedTool]) -> PlannedCall | None:
    """Choose by what the question has: a sum, a file, a word to search for, the name of a tool, or any word."""
    question = facts["question"]
    words = _content_words(question)
    if re.search(_DEED, question, re.IGNORECASE):
        return _call_by_name(question, tools)
    return (
        _call_with(tools, set(), _sum_in(question), "expression", "expr", "formula")
        or _call_with(tools, _SEARCHES, _searched_text(question), "text", "query", "pattern", "keyword", "q")
        or _call_with(tools, _READS, _file_in(question), "path", "file", "filename", "file_path")
        or _call_by_name(question, tools)
        or _call_with(tools, _SEARCHES, words[0] if words else "", "text", "query", "pattern", "keyword", "q")
    )


def _call_with(tools: Sequence[OfferedTool], verbs: set[str], value: str, *names: str) -> PlannedCall | None:
    """Return a call of the first tool named after a verb that needs one parameter of these names alone."""
    for tool in tools if value else ():
        name = next((name for name in names if name in tool.parameters), None)
        if name is not None and set(tool.required) <= {name} and (not verbs or verbs & _words_of_tool(tool)):
            return tool.name, {name: value}
    return None


def _call_by_name(question: str, tools: Sequence[OfferedTool]) -> PlannedCall | None:
    """Return a call of the first tool that the question names, if the question has what the tool requires."""
    named = {_stem(word.lower()) for word in _content_words(question)}
    spoken = {_stem(word) for word in re.findall(r"\w+", question.lower())}
    for tool in tools:
        arguments = _arguments_for(tool, question)
        # Common words, as in "list the files", name only a tool that needs nothing else.
        is_named = not (named if tool.required else spoken).isdisjoint(map(_stem, _words_of_tool(tool)))
        if is_named and set(tool.required) <= set(arguments) and "expression" not in arguments:
            return tool.name, arguments
    return None


def _describe_result(facts: Facts) -> str:
    """Answer with the result: the places that a search has found, the lines of a file, or all of it."""
    result, question, verbs = facts["result"], facts["question"], set(re.findall("[a-z]+", facts["called"].lower()))
    if total := _sum_in(question):
        return f"{total} = {result}" if len(result) < 100 and "\n" not in result else result
    matches = (re.match(r"([^:]{1,300}):(\d{1,9}):(.*)", line) for line in result.splitlines())
    places = [(match[1], match[2], match[3].strip()) for match in matches if match]
    if places or verbs & _SEARCHES:
        return _describe_places(facts, places)
    path = _file_in(question)
    if not path or not verbs & _READS:
        return result
    lines = result.splitlines()
    topic = [word for word in _content_words(question) if word.lower() not in path.lower() and word not in _READS]
    if topic:
        found = _best([(path, str(n), line.strip()) for n, line in enumerate(lines, 1)], topic)
        return _list_places(found) or f"{path} says nothing about {' or '.join(map(repr, topic))}."
    beginning = ", beginning" if len(lines) > _MAX_FILE_LINES else ""
    return "\n".join([f"{path} has {len(lines)} line{'s' * (len(lines) != 1)}{beginning}:", *lines[:_MAX_FILE_LINES]])


def _describe_places(facts: Facts, places: Sequence[tuple[str, str, str]]) -> str:
    question, result = facts["question"], facts["result"]
    words = _content_words(question)
    text = _searched_text(question) or (words[0] if words else "")
    if not places:
        nothing = re.match(r"\W*(?:no\b|none|nothing|0\b|$)", result, re.IGNORECASE)
        return f"I searched, and found no file here that contains {text!r}.{facts['examples']}" if nothing else result
    verb = "contain"
    # Most tools search for parts of words; whole words are better, and a definition is best if it is asked for.
    whole = [place for place in places if re.search(rf"(?<!\w){re.escape(text)}(?!\w)", place[2], re.IGNORECASE)]
    if re.search(r"\bdefine[sd]?\b", question, re.IGNORECASE):
        definition = rf"^(?:async )?(?:class|def|function) {re.escape(text)}\b|^{re.escape(text)} = "
        if defining := [place for place in whole if re.search(definition, place[2])]:
            whole, verb = defining, "define"
    places = whole or places
    files = list({place[0]: place for place in reversed(_best(places, words) or places)}.values())[::-1]
    if len(files) == 1:
        path, line, excerpt = files[0]
        return f"{path} {verb}s {text!r} on line {line}: {excerpt[:160]}"
    least = "At least " if "\n... " in result else ""
    return f"{least}{len(files)} files {verb} {text!r}:\n{_list_places(files)}"


def _best(places: Sequence[tuple[str, str, str]], words: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return the places whose lines hold the most of the words."""
    patterns = [re.compile(rf"(?<![^\W_]){re.escape(_stem(word))}", re.IGNORECASE) for word in words]
    counts = [sum(pattern.search(place[2]) is not None for pattern in patterns) for place in places]
    highest = max(counts, default=0)
    return [place for place, count in zip(places, counts, strict=True) if count == highest and highest]


def _list_places(places: Sequence[tuple[str, str, str]]) -> str:
    lines = [f"{path}, line {line}: {text[:160]}" for path, line, text in places[:_MAX_PLACES]]
    return "\n".join([*lines, *([f"... and {len(places) - _MAX_PLACES} more"] if len(places) > _MAX_PLACES else [])])


def _arguments_for(tool: OfferedTool, question: str, *, insist: bool = False) -> dict[str, Any]:
    """Fill the parameters with what the question says; the required ones with something, if the caller insists."""
    after = re.findall(r"\b(?:in|for|of|at|to|from|about|on)\s+((?:[A-Z][\w-]*\s?)+|\w[\w.-]*)", question)
    texts = [text.strip() for text in (_quotation_in(question), *after, *_content_words(question)) if text]
    numbers = iter(_numbers_in(question))
    # Each number and each text is used once, in the order of the parameters.
    candidates: dict[str, Iterator[Any]] = {"string": iter(texts), "integer": numbers, "number": numbers}
    spare = {"string": question, "integer": 0, "number": 0, "boolean": True, "array": [], "object": {}}
    arguments: dict[str, Any] = {}
    for name in tool.required:
        schema = tool.parameters.get(name, {})
        kind, options = schema.get("type", "string"), schema.get("enum")
        if options is None:
            value = next(candidates.get(kind, iter(())), spare.get(kind) if insist else None)
        else:
            mentioned = (option for option in options if str(option) in question)
            value = next(mentioned, (options or [spare.get(kind)])[0] if insist else None)
        if value is not None or insist:
            arguments[name] = value
    return arguments


def _sum_in(question: str) -> str:
    """Return the longest sum, in digits or with operators in words; dates and versions do not count."""
    for words, operator in _OPERATORS.items():
        question = re.sub(words, operator, question, flags=re.IGNORECASE)
    runs = re.findall(r"(?<![0-9A-Za-z_./-])[-(\d.][-+*/%().\d\s]*[\d)](?![0-9A-Za-z_])", question)
    sums = [run for run in runs if re.search(r"\d[\s)]*[-+*/%][-+*/%\s(.]*\d", run)]
    longest = max((run for run in sums if not re.fullmatch(r"\d+(?:[-/.]\d+){2,}", run)), key=len, default="")
    asks = re.search(r"\b(?:what(?:'s| is)|calculate|compute|how much)\b|=|等于|多少|计算", question, re.IGNORECASE)
    return longest if asks or 2 * len(longest) > len(question) else ""


def _searched_text(question: str) -> str:
    """Return what a question for a place quotes, or the one word that it names."""
    asks = r"\b(?:files?|where|find|search)\b.{0,60}?\b(?:the (?:word|text|name)|contain|mention|define|use|has)\w*\s+"
    found = _search(rf"{asks}(?P<text>\S.*)|哪[个些]?文件.*?(?:包含|提到|含有|有)\s*(?P<chinese>\S+)", question)
    if found is None:
        return ""
    label = r"^(?:(?:the|a|an|word|text|name|class|function)\s+)+(?=\S)"
    text = re.sub(label, "", found["text"] or found["chinese"], flags=re.IGNORECASE)
    return _quotation_in(text) or next(iter(_content_words(text)), text.split()[0].rstrip("?.!,"))


def _file_in(question: str) -> str:
    """Return the first word that looks like the path of a file, or that the question wants to have read."""
    tokens = (token.strip(",;:?!()[]'\"`*").rstrip(".") for token in question.split())
    path = next((token for token in tokens if re.fullmatch(r"[\w./-]*\w\.[A-Za-z]\w{0,9}", token)), "")
    named = _search(r"^(?:please )?(?:read|open|show|cat) (?P<path>\S+)\W*$|\bwhat does (?P<other>\S+) say\b", question)
    path = path or (named["path"] or named["other"] if named else "")
    return "" if path.lower() in _COMMON_WORDS else path


def _content_words(text: str) -> list[str]:
    """Return the words that say what the text is about, the rarest kind first: odd ones, names, long ones."""
    words = [re.sub(r"'s?$", "", word) for word in re.findall(r"\w+(?:[-'.]\w+)*", text)]
    subjects = dict.fromkeys(word for word in words if word.lower() not in _COMMON_WORDS and len(word) > 1)
    return sorted(subjects, key=lambda word: (word[1:].isalpha() and word[1:].islower(), word.islower(), -len(word)))


def _words_of_tool(tool: OfferedTool) -> set[str]:
    """Return the words of the tool's name and the first of its description, which is often its verb."""
    name = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", tool.name)
    return {word.lower() for word in [*name, *(word.removesuffix("s") for word in tool.description.split()[:1])]}


def _stem(word: str) -> str:
    return word if len(word) < 5 else re.sub(r"(?:ing|ies|(?<!s)s)$", "", word, flags=re.IGNORECASE)


def _search(pattern: str, text: str) -> dict[str, str] | None:
    """Return the groups of a pattern that is in the text, or `None`."""
    match = re.search(pattern, text, re.IGNORECASE)
    return None if match is None else {name: text or "" for name, text in match.groupdict().items()}


def _numbers_in(text: str) -> list[int | float]:
    numbers = re.findall(r"-?\d{1,15}(?:\.\d{1,15})?", text)
    return [float(number) if "." in number else int(number) for number in numbers]


def _quotation_in(text: str) -> str:
    match = re.search(r"""["“`]([^"”`]+)["”`]|(?<!\w)'([^']+)'(?!\w)""", text)
    return (match[1] or match[2]) if match else ""


_SELF_DESCRIPTION = "I am a set of rules, not a language model. My tools:{tools}{examples}"
_AT_A_LOSS = f"I cannot answer that: {_SELF_DESCRIPTION}"
_GREETS = r"^\W*(?:hi|hello|hey|help|good (?:morning|afternoon|evening)|你好|您好|帮助)\b(?: there)?\W*$"
_ASKS_WHO = r"\bwhat can (?:you|i|this)\b|\b(?:who|what) are you\b|你是谁|你能做什么"

DEFAULT_RULES: tuple[Rule, ...] = (
    Rule(
        rf"{_GREETS}|{_ASKS_WHO}|^\W*(?P<thanks>thanks|thank you)\b",
        lambda facts: "You are welcome." if facts["thanks"] else str(_fill(f"Hello. {_SELF_DESCRIPTION}", facts)),
    ),
    Rule(_find_in_prompt, "{fact}"),
    Rule("", _describe_result, _choose_tool),
)
"""The rules of a `RulesChatModel` that is given no others: what it is, what the prompt says, and what a tool says."""
