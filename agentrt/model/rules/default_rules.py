"""The rules that `RulesChatModel` has unless others are given: small talk, files, sums, and any tool by its name."""

from agentrt.model.rules.answers import (
    describe_changes,
    describe_file,
    describe_list,
    describe_matching_files,
    describe_matching_lines,
)
from agentrt.model.rules.questions import (
    asks_about_a_word,
    asks_for_a_number,
    asks_what_changed,
    asks_what_it_says,
    asks_which_file,
    has_failed,
    is_in_the_system_prompt,
    is_listed_elsewhere,
    names_a_file,
)
from agentrt.model.rules.rule import Rule
from agentrt.model.rules.tools import CALCULATE, LIST_FILES, READ_FILE, RECENT_FILES, SEARCH_FILES, call_by_name

__all__ = ["AT_A_LOSS", "DEFAULT_RULES"]

_SELF_DESCRIPTION = "I am a set of rules, not a language model. My tools:{tools}{examples}"
AT_A_LOSS = f"I cannot answer that: {_SELF_DESCRIPTION}"
"""The answer when no rule applies."""

_DEEDS = (
    r"^(?:please\s+)?(?:write|summari[sz]e|translate|delete|remove|create|edit|rename|move|send|install|fix|draw|buy|book)"
    r"\b"
)
_GREETS = r"^\W*(?:hi|hello|hey|help|good (?:morning|afternoon|evening)|你好|您好|帮助)\b(?: there)?\W*$"
_ASKS_WHO = r"\bwhat can (?:you|i|this)\b|\b(?:who|what) are you\b|\bhow (?:does this|do you) work\b|你是谁|你能做什么"
_LISTS = (
    r"\b(?:list|show|which|what|how many)(?: me)?(?: all)?(?: of)?(?: the)? files\b(?!.*\b(?:in|under|with)\b)"
    r"|^\W*(?:ls|dir)\W*$|\bwhat(?: is|'s) (?:here|in (?:this|the) (?:folder|directory))\b|列出.*文件|哪些文件"
)
_READ_AS_LISTED = Rule(is_listed_elsewhere, describe_file, READ_FILE)
_LIST_INSTEAD = Rule(has_failed, "I could not read {path}: {error}", LIST_FILES, then=_READ_AS_LISTED)

# The first that applies decides, so what is special comes before what is general: an order to do something is never
# taken for a question about files, and a tool is sought by its name only after what the files may say.
DEFAULT_RULES: tuple[Rule, ...] = (
    Rule(rf"{_GREETS}|{_ASKS_WHO}", f"Hello. {_SELF_DESCRIPTION}"),
    Rule(r"^\W*(?:thanks|thank you)\b", "You are welcome."),
    Rule(is_in_the_system_prompt, "{fact}"),
    Rule(_DEEDS, call=call_by_name),
    Rule(_DEEDS, AT_A_LOSS),
    Rule(asks_what_changed, describe_changes, RECENT_FILES),
    Rule(asks_which_file, describe_matching_files, SEARCH_FILES),
    Rule(asks_for_a_number, "{expression} = {result}", CALCULATE),
    Rule(names_a_file, describe_file, READ_FILE, then=_LIST_INSTEAD),
    Rule(_LISTS, describe_list, LIST_FILES),
    Rule("", call=call_by_name),
    Rule(
        asks_about_a_word,
        describe_matching_lines,
        SEARCH_FILES,
        then=Rule(asks_what_it_says, describe_file, READ_FILE),
    ),
)
"""The rules of a `RulesChatModel` that is given no others."""
