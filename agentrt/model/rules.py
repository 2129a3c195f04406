"""An offline model made of rules: it drives a real agent with real tools, with no key and no network.

It sees what any model sees, the messages and the tool schemas, and remembers nothing between calls. The rules are tried
in order on the user's latest question; the first that matches, and whose tool is there, decides. A rule is data. To
teach the model something, put rules of your own before the ones it has:

    RulesChatModel([Rule(r"time in (?P<city>\\w+)", call="get_time", arguments={"city": "{city}"}), *DEFAULT_RULES])
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio.lowlevel

from agentrt.block import ContentBlock, TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState, new_id
from agentrt.errors import ConfigError, Rejected
from agentrt.message import Msg
from agentrt.model.base import ChatModelBase, ModelResult
from agentrt.model.scripted import stream_response, whole_response
from agentrt.types import JSONSchema, ToolChoice

__all__ = ["DEFAULT_RULES", "Rule", "RulesChatModel"]

_LONGEST = 1_000  # characters that the pattern of a rule sees, so that none can take long

_Known = Mapping[str, str]
_Call = tuple[str, dict[str, Any]]
_Hit = tuple[str, int, str]  # a place that a search found: path, line, text


class _Tool(NamedTuple):
    name: str
    description: str
    parameters: Mapping[str, JSONSchema]
    required: Sequence[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """When `pattern` is found in the question: `call` a tool, tell the `answer`, or one after the other.

    `pattern` is a regular expression, in upper or lower case; its named groups, `question`, `system` (the system
    prompt), `tools` and, after a call, `result` are what is known. `arguments` and `answer` are templates over that:
    "It is {result} in {city}". `then` is a rule that is tried on the beginning of the result before the answer is told.
    Functions may stand for all three: `pattern` and `answer` take what is known, `call` also the tools.
    """

    pattern: str | Callable[[_Known], _Known | None]
    answer: str | Callable[[_Known], str] | None = None
    call: str | Callable[[_Known, Sequence[_Tool]], _Call | None] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    then: "Rule | None" = None

    def __post_init__(self) -> None:
        if self.answer is None and self.call is None:
            raise ConfigError(f"the rule for {self.pattern!r} does nothing: give it answer=, call= or both")
        if isinstance(self.pattern, str):
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigError(f"the pattern {self.pattern!r} is no regular expression: {error}") from error

    def _match(self, known: _Known) -> _Known | None:
        text = known.get("result", known["question"])[:_LONGEST]
        found = self.pattern(known) if callable(self.pattern) else _search(text, self.pattern)
        return None if found is None else {**known, **found}

    def _choose(self, known: _Known, tools: Sequence[_Tool]) -> _Call | None:
        if callable(self.call):
            return self.call(known, tools)
        tool = next((tool for tool in tools if tool.name == self.call), None)
        if tool is None:
            return None
        return tool.name, {key: _fill(value, known, tool.parameters.get(key)) for key, value in self.arguments.items()}

    def _say(self, known: _Known) -> str:
        return self.answer(known) if callable(self.answer) else str(_fill(self.answer or "{result}", known))


def _fill(template: Any, known: _Known, schema: JSONSchema | None = None) -> Any:
    def value(match: re.Match[str]) -> str:
        if match[1] in known:
            return known[match[1]]
        raise ConfigError(f"the template {template!r} of a rule names what is not known: it may name {sorted(known)}")

    filled = re.sub(r"\{(\w+)\}", value, template) if isinstance(template, str) else template
    wants_number = isinstance(filled, str) and schema and schema.get("type") in ("integer", "number")
    return next(iter(_numbers(filled)), filled) if wants_number else filled


class RulesChatModel(ChatModelBase):
    """A model that follows `rules`, `DEFAULT_RULES` when none are given; a plain set of rules, and no language model.

    The same messages and tools always give the same answer. What no rule matches is answered with what it can do.
    """

    capabilities = frozenset({"tools"})

    def __init__(self, rules: Sequence[Rule] | None = None, *, model: str = "rules", stream: bool = True) -> None:
        super().__init__(model=model, stream=stream)
        self.rules = tuple(DEFAULT_RULES if rules is None else rules)

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        await anyio.lowlevel.checkpoint()
        response = whole_response([self._decide(messages, tools or [], tool_choice or ToolChoice())], messages)
        return stream_response(response) if self.stream else response

    def _decide(self, messages: list[Msg], schemas: list[JSONSchema], choice: ToolChoice) -> ContentBlock:
        tools = _offered(schemas, choice)
        known, steps = _read(messages, tools)
        pursued = (_pursue(rule, known, tools, steps, choice.mode != "none") for rule in self.rules)
        decision = next((each for each in pursued if each is not None), _fill(_AT_A_LOSS, known))
        if isinstance(decision, str) and choice.mode not in ("auto", "none"):
            decision = tools[0].name, _arguments(tools[0], known["question"], insist=True)
        if isinstance(decision, str):
            return TextBlock(decision)
        return ToolCallBlock(new_id(), decision[0], json.dumps(decision[1], ensure_ascii=False))


def _pursue(
    rule: Rule, known: _Known, tools: Sequence[_Tool], steps: Sequence[ToolResultBlock], may_call: bool
) -> _Call | str | None:
    """Return the call that is due, or the answer, or `None` when the rule does not apply."""
    matched = rule._match(known)
    if matched is None or rule.call is None:
        return None if matched is None else rule._say(matched)
    call = rule._choose(matched, tools)
    if call is None:
        return None
    place = next((n for n, step in enumerate(steps) if step.name == call[0]), None)
    if place is None and (may_call or "result" in known):
        return call if may_call else None  # without the follow-up, the rule before it tells what it has
    if place is None:
        return f"I would use {call[0]}, but I may not use it now."
    text, state = _text(steps[place]), steps[place].state
    if state is ToolResultState.DENIED:
        return f"I was not allowed to use {call[0]}."
    failed = state is not ToolResultState.SUCCESS
    matched = {**matched, "result": ""} | {"error" if failed else "result": text}
    further = _pursue(rule.then, matched, tools, steps[place + 1 :], may_call) if rule.then else None
    if further is None and failed:
        return f"I used {call[0]}, but it failed: {text[:300]}"
    return rule._say(matched) if further is None else further


def _offered(schemas: list[JSONSchema], choice: ToolChoice) -> list[_Tool]:
    bodies = [schema.get("function", schema) for schema in schemas]
    tools = [_tool(body) for body in bodies if choice.tools is None or body["name"] in choice.tools]
    allowed = [tool for tool in tools if choice.mode in ("auto", "none", "required", tool.name)]
    if not allowed and choice.mode not in ("auto", "none"):
        names = [tool.name for tool in tools]
        raise Rejected(f"tool_choice is {choice.mode!r}, but there is no such tool among {names}: offer one")
    return allowed


def _tool(body: JSONSchema) -> _Tool:
    shape = body.get("parameters") or body.get("input_schema") or {}
    return _Tool(body["name"], body.get("description") or "", shape.get("properties", {}), shape.get("required", ()))


def _read(messages: list[Msg], tools: Sequence[_Tool]) -> tuple[_Known, list[ToolResultBlock]]:
    places = (n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "user")
    place = next((n for n in places if messages[n].get_text_content()), 0)  # a note of the runtime is no question
    question = (messages[place].get_text_content() or "") if messages else ""
    system = "\n".join(msg.get_text_content() or "" for msg in messages if msg.role == "system")
    can = "; ".join(f"{tool.name} ({tool.description[:160]})" for tool in tools)
    known = {"question": " ".join(question[:_LONGEST].split()), "system": system, "tools": can or "none"}
    blocks = (block for msg in messages[place:] for block in msg.get_content_blocks())
    return known, [block for block in blocks if isinstance(block, ToolResultBlock)]


def _text(result: ToolResultBlock) -> str:
    output = result.output
    if not isinstance(output, str):
        output = "\n".join(part.text for part in output if isinstance(part, TextBlock))
    return output.removeprefix(f"{result.name} failed: ")


_DULL = """a about all am an and any anything are as at be been by can contain contains could define defined defines do
document documents does explain describe file files find folder for from give had has have he her here his hold holds
how i if in include includes into is it its know let line lines list look many may me mean mention mentioned mentions
much my no not of on open or our out please read say says search she should show so some tell text than that the their
them then there these they this to use used uses was we were what when where which who why will with word words you"""
_STOP_WORDS = frozenset(_DULL.split())


def _content_words(text: str) -> list[str]:
    """Return the words that say what a text is about, the rarest kind first: odd ones, names, long ones."""
    words = [re.sub(r"'s?$", "", word) for word in re.findall(r"\w+(?:[-'.]\w+)*", text)]
    kept = dict.fromkeys(word for word in words if word.lower() not in _STOP_WORDS and len(word) > 1)
    return sorted(kept, key=lambda word: (word[1:].isalpha() and word[1:].islower(), word.islower(), -len(word)))


def _stem(word: str) -> str:
    return word if len(word) < 5 else re.sub(r"(?:ing|ies|(?<!s)s)$", "", word, flags=re.IGNORECASE)


def _search(text: str, *patterns: str) -> dict[str, str] | None:
    match = next(filter(None, (re.search(pattern, text, re.IGNORECASE) for pattern in patterns)), None)
    return None if match is None else {name: text or "" for name, text in match.groupdict().items()}


def _numbers(text: str) -> list[int | float]:
    found = re.findall(r"-?\d{1,15}(?:\.\d{1,15})?", text)
    return [float(each) if "." in each else int(each) for each in found]


def _quoted(text: str) -> str:
    match = re.search(r"""["“`]([^"”`]+)["”`]|(?<!\w)'([^']+)'(?!\w)""", text)
    return (match[1] or match[2]) if match else ""


def _tool_taking(verbs: str, *names: str) -> Callable[[_Known, Sequence[_Tool]], _Call | None]:
    """Choose the first tool named after one of the `verbs` that needs one parameter of these `names`, or none."""

    def choose(known: _Known, tools: Sequence[_Tool]) -> _Call | None:
        for tool in tools:
            name = next((name for name in names if name in tool.parameters), "")
            fits = bool(name) == bool(names) and set(tool.required) <= {name}
            if fits and (not verbs or _words_of(tool) & {*verbs.split()}):
                return tool.name, {name: known[names[0]]} if name else {}
        return None

    return choose


def _words_of(tool: _Tool) -> set[str]:
    name = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", tool.name)
    return {word.lower() for word in [*name, *(word.removesuffix("s") for word in tool.description.split()[:1])]}


_CALCULATE = _tool_taking("", "expression", "expr", "formula", "equation")
_SEARCH = _tool_taking("search find grep look query", "text", "query", "pattern", "keyword", "term", "word", "q")
_READ = _tool_taking("read open show view cat get", "path", "file", "filename", "file_path", "file_name")
_LIST = _tool_taking("list ls dir tree files")


def _tool_by_name(known: _Known, tools: Sequence[_Tool]) -> _Call | None:
    said = {_stem(word.lower()) for word in _content_words(known["question"])}
    for tool in tools:
        named = {_stem(word) for word in _words_of(tool)} & said
        arguments = _arguments(tool, known["question"])
        if named and set(tool.required) <= set(arguments) and "expression" not in arguments:
            return tool.name, arguments
    return None


def _arguments(tool: _Tool, question: str, *, insist: bool = False) -> dict[str, Any]:
    """Fill the parameters with what the question says; the required ones with something, if the caller insists."""
    after = re.findall(r"\b(?:in|for|of|at|to|from|about|on)\s+((?:[A-Z][\w-]*\s?)+|\w[\w.-]*)", question)
    texts = [text.strip() for text in (_quoted(question), *after, *_content_words(question)) if text]
    numbers = iter(_numbers(question))
    said: dict[str, Iterator[Any]] = {"string": iter(texts), "integer": numbers, "number": numbers}
    spare = {"string": question, "integer": 0, "number": 0, "boolean": True, "array": [], "object": {}}
    arguments: dict[str, Any] = {}
    for name in tool.required:
        schema = tool.parameters.get(name, {})
        kind, options = schema.get("type", "string"), schema.get("enum")
        fitting = said.get(kind, iter(())) if options is None else (e for e in options if str(e) in question)
        value = next(fitting, (options or [spare.get(kind)])[0] if insist else None)
        arguments |= {} if value is None and not insist else {name: value}
    return arguments


_FILES = r"\b(?:files?|documents?|notes?|where|find|search|look|anything)\b.{0,60}?\b"
_WHICH_FILE = (
    _FILES + r"the (?P<exact>words?|text|term|phrase|string)\s+(?P<text>.+)",
    _FILES + r"(?:(?:contain|mention|hold|include|define|say|use)(?:s|ing)?|has|have|(?:is|are) about)\s+(?P<text>.+)",
    r"\b(?:where|in (?:which|what) files?) (?:is|are|does|do|can i find)\s+(?P<text>.+)",
)
_LABEL = re.compile(r"^(?:(?:the|a|an|words?|text|name|class|function|method)\s+)+", re.IGNORECASE)
_TAIL = re.compile(r"\s+(?:in (?:it|(?:the|this|these|all|any)\b.*)|anywhere|mentioned|used|defined)$", re.IGNORECASE)


def _asks_which_file(known: _Known) -> _Known | None:
    question = known["question"].rstrip(" .?!")
    found = _search(question, *_WHICH_FILE)
    if found is None or _file_in(question.removesuffix(found["text"])):
        return None  # it is the named file that is asked
    quoted, text = _quoted(found["text"]), _LABEL.sub("", _TAIL.sub("", found["text"])).strip(" ,;:'\"")
    # Several words that nobody quoted will hardly stand in one place; another rule looks for the rarest of them.
    exact = quoted or found.get("exact") or " " not in text
    return {"text": quoted or text} if exact and re.search(r"\w", text) else None


def _asks_about_a_word(known: _Known) -> _Known | None:
    words = [_quoted(known["question"]), *map(_stem, _content_words(known["question"]))]
    return next(({"text": word} for word in words if word), None)


_SPOKEN = {"plus": "+", "minus": "-", "times|multiplied by|x": "*", "divided by": "/"}


def _asks_for_a_number(known: _Known) -> _Known | None:
    question = known["question"]
    for spoken, written in _SPOKEN.items():
        question = re.sub(rf"\b(?:{spoken})\b", written, question, flags=re.IGNORECASE)
    runs = re.findall(r"(?<![\w./-])[-(\d.][-+*/%().\d\s]*[\d)](?!\w)", question)
    sums = [run for run in runs if re.search(r"\d[\s)]*[-+*/%][-+*/%\s(.]*\d", run)]
    longest = max((run for run in sums if not re.fullmatch(r"\d+(?:[-/.]\d+){2,}", run)), key=len, default="")
    asks = re.search(r"\b(?:what(?:'s| is)|calculate|compute|evaluate|how much)\b|=", question, re.IGNORECASE)
    return {"expression": longest} if longest and (asks or 2 * len(longest) > len(question)) else None


_READS = (
    r"^(?:please )?(?:read|open|show|print|cat) (?:me )?(?:the )?(?:file )?(?P<path>[^\s?!]+)[.?!]*$",
    r"\bwhat(?: does|'s in| is in) (?:the )?(?:file )?(?P<path>[^\s?!]+)(?: say\b|\?*$)",
)


def _file_in(text: str) -> str | None:
    tokens = (token.strip(",;:?!()[]'\"`*").rstrip(".") for token in text.split())
    return next((token for token in tokens if re.fullmatch(r"[\w./-]*\w\.[A-Za-z]\w{0,9}", token)), None)


def _names_file(known: _Known) -> _Known | None:
    path = _file_in(known["question"]) or (_search(known["question"], *_READS) or {"path": ""})["path"]
    return {"path": path} if path and path.lower() not in _STOP_WORDS else None


def _failed(known: _Known) -> _Known | None:
    return {} if "error" in known else None


def _listed_elsewhere(known: _Known) -> _Known | None:
    """After a list: the file whose name, with or without its ending, is the one that could not be read."""
    wanted = known["path"].rpartition("/")[2].lower()
    names = {path: path.rpartition("/")[2].lower() for path in known["result"].splitlines() if path != known["path"]}
    return next(({"path": path} for path, name in names.items() if wanted in (name, name.partition(".")[0])), None)


def _asks_what_it_says(known: _Known) -> _Known | None:
    asks = re.search(r"\b(?:says?|explain|describe|tell me)\b", known["question"], re.IGNORECASE)
    best, _ = _best(_hits(known), _content_words(known["question"]))
    return {"path": best[0][0]} if asks and best else None


def _stands_in_the_system_prompt(known: _Known) -> _Known | None:
    asked = _search(known["question"], r"\bwhat (?P<what>time|date|day) is it\b")
    return asked and _search(known["system"], rf"(?m)^(?P<fact>{asked['what']}: .*)")


def _hits(known: _Known) -> list[_Hit]:
    matches = (re.match(r"([^:]{1,300}):(\d{1,9}):(.*)", line) for line in known["result"].splitlines())
    return [(match[1], int(match[2]), match[3].strip()) for match in matches if match]


def _best(hits: Iterable[_Hit], words: Sequence[str]) -> tuple[list[_Hit], int]:
    """Return the places that hold the most of the words, and how many of them they hold."""
    patterns = [re.compile(rf"(?<![^\W_]){re.escape(_stem(word))}", re.IGNORECASE) for word in words]
    counts = {hit: sum(each.search(hit[2]) is not None for each in patterns) for hit in hits}
    most = max(counts.values(), default=0)
    return ([hit for hit, count in counts.items() if count == most] if most else []), most


def _places(hits: Sequence[_Hit]) -> str:
    more = [f"... and {len(hits) - 10} more"] if len(hits) > 10 else []
    return "\n".join([f"{path}, line {line}: {text.strip()[:160]}" for path, line, text in hits[:10]] + more)


def _say_found(known: _Known) -> str:
    text, hits, verb = known["text"], _hits(known), "contain"
    better = {"contain": rf"(?<!\w){re.escape(text)}(?!\w)"}
    if re.search(r"\bdefine[sd]?\b", known["question"], re.IGNORECASE):
        better["define"] = rf"^(?:async )?(?:class|def|function) {re.escape(text)}\b|^{re.escape(text)} = "
    for each, pattern in better.items():
        if chosen := [hit for hit in hits if re.search(pattern, hit[2], re.IGNORECASE)]:
            hits, verb = chosen, each
    files = list({hit[0]: hit for hit in reversed(hits)}.values())[::-1]
    if len(files) < 2:
        told = [f"{path} {verb}s {text!r} on line {line}: {where[:160]}" for path, line, where in files]
        return told[0] if told else _say_lines(known)
    least = "At least " if "\n... " in known["result"] else ""
    return f"{least}{len(files)} files {verb} {text!r}:\n{_places(files)}"


def _say_lines(known: _Known) -> str:
    words = _content_words(known["question"])
    best, held = _best(_hits(known), words)
    if best:
        return _places(best) if held == len(words) else f"No line says all of that. The nearest:\n{_places(best)}"
    nothing = re.match(r"\W*(?:no\b|none|nothing|0\b|$)", known["result"], re.IGNORECASE)
    return f"I searched, and found no file here that contains {known['text']!r}." if nothing else known["result"]


def _say_read(known: _Known) -> str:
    path, lines = known["path"], known["result"].splitlines()
    topic = [word for word in _content_words(known["question"]) if word.lower() not in path.lower()]
    if topic:
        best, _ = _best(((path, number, line) for number, line in enumerate(lines, 1)), topic)
        return _places(best) or f"{path} says nothing about {' or '.join(map(repr, topic))}."
    return "\n".join([f"{path} has {len(lines)} lines{', beginning' * (len(lines) > 20)}:", *lines[:20]])


def _say_list(known: _Known) -> str:
    paths = [path for path in known["result"].splitlines() if path and not re.match(r"no |\.\.\. ", path)]
    count = f"There {'is 1 file' if len(paths) == 1 else f'are {len(paths)} files'}"
    counted = re.search(r"\bhow many\b", known["question"], re.IGNORECASE) or not paths
    return f"{count}." if counted else "\n".join([f"{count}:", *paths[:100], *["..."][: len(paths) > 100]])


_WHAT_I_AM = "I am a set of rules and no language model. My tools: {tools}"
_AT_A_LOSS = f"I cannot answer that: {_WHAT_I_AM}"
_DEEDS = r"^(?:please\s+)?(?:write|translate|delete|remove|create|edit|rename|move|send|install|fix|draw|buy|book)\b"
_LISTS = r"\b(?:list|show|which|what|how many)(?: me)?(?: all)?(?: of)?(?: the)? files\b(?!.*\b(?:in|under|with)\b)"
_READ_AS_LISTED = Rule(_listed_elsewhere, _say_read, _READ)
_LIST_INSTEAD = Rule(_failed, "I could not read {path}: {error}", _LIST, then=_READ_AS_LISTED)

DEFAULT_RULES: tuple[Rule, ...] = (
    Rule(r"^\W*(?:hi|hello|hey|help)\b\W*$|\bwhat can you do\b|\bwho are you\b", f"Hello. {_WHAT_I_AM}"),
    Rule(r"^\W*(?:thanks|thank you)\b", "You are welcome."),
    Rule(_stands_in_the_system_prompt, "{fact}"),
    Rule(_DEEDS, call=_tool_by_name),
    Rule(_DEEDS, _AT_A_LOSS),
    Rule(_asks_which_file, _say_found, _SEARCH),
    Rule(_asks_for_a_number, "{expression} = {result}", _CALCULATE),
    Rule(_names_file, _say_read, _READ, then=_LIST_INSTEAD),
    Rule(_LISTS, _say_list, _LIST),
    Rule("", call=_tool_by_name),
    Rule(_asks_about_a_word, _say_lines, _SEARCH, then=Rule(_asks_what_it_says, _say_read, _READ)),
)
