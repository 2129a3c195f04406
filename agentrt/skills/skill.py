"""One skill: its front matter and body, judged as the reference of the format judges them, and more strictly."""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrt._runtime.options import import_extra
from agentrt._runtime.text import lazy_pattern, one_line
from agentrt.errors import SkillError

FILE_NAMES = ("SKILL.md", "skill.md")
"""The file with the instructions; the first one counts, as in the reference."""

MAX_CHARACTERS = 100_000
"""How long that file may be."""

_MAX_SKILL_NAME = 64
_MAX_LENGTHS = {"description": 1_024, "compatibility": 500}  # characters, as in the reference
_KNOWN_FIELDS = ("allowed-tools", "compatibility", "description", "license", "metadata", "name")
_FIELDS_MARK = "---"
# The parser's time grows with the square of the number of lines, and each look at a skill parses them.
_MAX_FIELD_LINES = 200
_UNPRINTABLE = lazy_pattern("[^\t\n\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in YAML
# Japanese and Korean are each written in several scripts.
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO")


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill as it was read.

    `allowed_tools` is the list as the skill has it, such as `("Read", "Bash(git:*)")`, or `None` without one. `digest`
    is of the names and bytes of all its `files`; these are paths within its folder, with "/" on every platform.
    """

    name: str
    description: str
    allowed_tools: tuple[str, ...] | None
    body: str
    digest: str
    files: tuple[str, ...] = ()
    license: str | None = None
    compatibility: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def make_skill(folder_name: str, data: bytes, digest: str, files: tuple[str, ...]) -> Skill:
    """Return the skill whose instructions are `data`; raises `SkillError`."""
    instructions = _Instructions(folder_name, data)
    fields = instructions.fields
    problems = instructions.problems()
    if problems:
        raise SkillError(problems, skill=folder_name)
    license_text, compatibility, metadata = map(fields.get, ("license", "compatibility", "metadata"))
    return Skill(
        unicodedata.normalize("NFKC", fields["name"].strip()),
        fields["description"].strip(),
        _split_tools(fields["allowed-tools"]) if "allowed-tools" in fields else None,
        instructions.body,
        digest,
        files,
        None if license_text is None else str(license_text),
        compatibility,
        {str(key): str(value) for key, value in metadata.items()} if isinstance(metadata, dict) else {},
    )


class _Instructions:
    """The fields and the body of a SKILL.md, and what is wrong with the fields."""

    def __init__(self, folder_name: str, data: bytes) -> None:
        self.folder_name = folder_name
        front, self.body = self._split(self._decode(data))
        if front.count("\n") > _MAX_FIELD_LINES:
            raise self._refusal(f"the fields of SKILL.md have more than {_MAX_FIELD_LINES} lines: write less there")
        strictyaml = import_extra("load_skill()", "skills", "strictyaml")
        try:
            fields = strictyaml.load(front).data
        except Exception as error:  # noqa: BLE001  # the parser raises errors of many classes, `RecursionError` too
            reason = one_line(str(error), 300) or type(error).__name__
            if (unprintable := _UNPRINTABLE.search(front)) is not None:  # the parser fails at its own error
                reason = f"they have the character {unprintable.group()!a}, which YAML does not take: leave it out"
            raise self._refusal(f"the fields of SKILL.md are not valid YAML: {reason}") from None
        if not isinstance(fields, dict):
            raise self._refusal("the fields of SKILL.md are not 'name: value' lines")
        self.fields: dict[str, Any] = fields

    def problems(self) -> list[str]:
        """Return what is wrong with the fields."""
        unknown = [f"'{one_line(name, 60)}'" for name in sorted(set(self.fields) - set(_KNOWN_FIELDS))]
        names = ", ".join(unknown[:10])
        problems = (
            [f"SKILL.md has the unknown fields {names}: only {', '.join(_KNOWN_FIELDS)} are allowed"] if unknown else []
        )
        problems += self._problems_of_name()
        description = self.fields.get("description")
        if not isinstance(description, str) or not description.strip():
            problems.append("the field 'description' is missing or empty")
        for name, limit in _MAX_LENGTHS.items():
            text = self.fields.get(name, "")
            if not isinstance(text, str):
                problems.append(f"the field '{name}' must be text")
            elif len(text) > limit:
                problems.append(f"the field '{name}' has {len(text):,} characters, and may have {limit:,}")
        return problems

    def _problems_of_name(self) -> list[str]:
        value = self.fields.get("name")
        if not isinstance(value, str) or not value.strip():
            return ["the field 'name' is missing or empty: write 'name:' and the name of the folder"]
        name = unicodedata.normalize("NFKC", value.strip())
        problems = []
        if len(name) > _MAX_SKILL_NAME:
            problems.append(f"it has {len(name)} characters, and may have {_MAX_SKILL_NAME}")
        if name != name.lower():
            problems.append("it has capital letters: write it in lower case")
        if name.startswith("-") or name.endswith("-") or "--" in name:
            problems.append("it has a hyphen at its start or end, or two in a row")
        if not all(character.isalnum() or character == "-" for character in name):
            problems.append("it may have letters, digits and hyphens only")
        if unicodedata.normalize("NFKC", self.folder_name) != name:
            problems.append(f"it is not the name of its folder, {one_line(self.folder_name, 80)!r}")
        # Python has no table of scripts, but the names of letters begin with them.
        letters = [unicodedata.name(letter, "unknown").split()[0] for letter in name if letter.isalpha()]
        scripts = sorted({"CJK" if script in _EAST_ASIAN else script for script in letters})
        if len(scripts) > 1:  # one letter may look like another of a different script
            problems.append(f"it has letters of several scripts: {', '.join(scripts)}")
        return [f"the name {one_line(name, 80)!r} is refused: {problem}" for problem in problems]

    def _decode(self, data: bytes) -> str:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise self._refusal(
                f"SKILL.md is not text in UTF-8: its byte {error.start} is invalid; save the file as UTF-8"
            ) from None
        if len(text) > MAX_CHARACTERS:
            raise self._refusal(
                f"SKILL.md has {len(text):,} characters, and may have {MAX_CHARACTERS:,}: move parts into other files"
            )
        # As a file that is opened as text is read, which is what the reference sees.
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def _split(self, text: str) -> tuple[str, str]:
        """Return the text of the fields, and the body."""
        if not text.startswith(_FIELDS_MARK):
            reason = "begins with a byte order mark" if text.startswith("\ufeff") else "does not begin with '---'"
            raise self._refusal(f"SKILL.md {reason}: write its fields first, between two lines '---'")
        # The first '---' after the start ends the fields, wherever it stands: the reference cuts there.
        parts = text.split(_FIELDS_MARK, 2)
        if len(parts) < 3:
            raise self._refusal("the fields of SKILL.md have no end: write a line '---' after them")
        return parts[1], parts[2].strip()

    def _refusal(self, problem: str) -> SkillError:
        return SkillError(problem, skill=self.folder_name)


def _split_tools(value: object) -> tuple[str, ...]:
    """Return the names in the field, which white space or commas separate outside of parentheses.

    The reference takes any value; one that is neither text nor a list of texts names no tool.
    """
    if isinstance(value, list):
        return tuple(name for item in value if isinstance(item, str) for name in _split_tools(item))
    names, name, depth = [], "", 0
    for character in value if isinstance(value, str) else "":
        depth = max(0, depth + (character == "(") - (character == ")"))
        if depth or not (character.isspace() or character == ","):
            name += character
        elif name:
            names.append(name)
            name = ""
    return (*names, name) if name else tuple(names)
