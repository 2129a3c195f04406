"""`load_skill` accepts a folder exactly if the reference of the format does, and reads the same from it."""

import tempfile
from pathlib import Path

import pytest
import skills_ref
from hypothesis import example, given
from hypothesis import strategies as st

from agentrt.errors import SkillError
from agentrt.skills import load_skill


def accepted_by_reference(folder):
    try:
        return not skills_ref.validate(folder)
    except Exception:  # noqa: BLE001  # it lets errors of its parser fly
        return False


def accepted(folder):
    try:
        load_skill(folder)
    except SkillError:
        return False
    return True


def write_skill(parent, name, text, file_name="SKILL.md"):
    folder = Path(parent) / name
    folder.mkdir(parents=True)
    (folder / file_name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def front(name="pdf", description="Reads PDF files.", more="", body="Do this."):
    return f"---\nname: {name}\ndescription: {description}\n{more}---\n{body}\n"


VALID = {
    "plain": ("pdf", front()),
    "crlf": ("pdf", front().replace("\n", "\r\n")),
    "no body": ("pdf", front(body="")),
    "every field": (
        "pdf",
        front(more="license: MIT\ncompatibility: Needs git.\nallowed-tools: Read Bash(git:*)\nmetadata:\n  a: 1\n"),
    ),
    "digits": ("a1-2b", front("a1-2b")),
    "64 characters": ("a" * 64, front("a" * 64)),
    "accents": ("café", front("café")),
    "Chinese": ("技能", front("技能")),
    "quoted": ("pdf", front('"pdf"')),
    "longest description": ("pdf", front(description="a" * 1024)),
    "longest compatibility": ("pdf", front(more="compatibility: " + "a" * 500 + "\n")),
    "tools as a list": ("pdf", front(more="allowed-tools:\n  - Read\n  - Write\n")),
    "tools as a mapping": ("pdf", front(more="allowed-tools:\n  Read: yes\n")),
    "block text": ("pdf", "---\nname: pdf\ndescription: |\n  One.\n  Two.\n---\n"),
    "fence in the body": ("pdf", front(body="---\nmore\n---")),
    "ligature in the folder": ("ﬁle", front("file")),
    "fence in the description": ("pdf", front(description="a --- b", more="version: 1\n")),
    "comment": ("pdf", front(more="# a comment\n")),
}
BROKEN = {
    "no fields": ("pdf", "Do this."),
    "no end": ("pdf", "---\nname: pdf\ndescription: d\n"),
    "blank line first": ("pdf", "\n" + front()),
    "no name": ("pdf", "---\ndescription: d\n---\n"),
    "empty name": ("pdf", front('""')),
    "no description": ("pdf", "---\nname: pdf\n---\n"),
    "blank description": ("pdf", front(description='"  "')),
    "capitals": ("Pdf", front("Pdf")),
    "hyphen first": ("-pdf", front("-pdf")),
    "hyphen last": ("pdf-", front("pdf-")),
    "two hyphens": ("a--b", front("a--b")),
    "underscore": ("a_b", front("a_b")),
    "space": ("a b", front("a b")),
    "65 characters": ("a" * 65, front("a" * 65)),
    "another folder": ("doc", front("pdf")),
    "unknown field": ("pdf", front(more="version: 1\n")),
    "long description": ("pdf", front(description="a" * 1025)),
    "long compatibility": ("pdf", front(more="compatibility: " + "a" * 501 + "\n")),
    "list as compatibility": ("pdf", front(more="compatibility:\n  - a\n")),
    "list as name": ("pdf", "---\nname:\n  - pdf\ndescription: d\n---\n"),
    "list as fields": ("pdf", "---\n- name\n- description\n---\n"),
    "nothing in the fields": ("pdf", "---\n---\n"),
}


@pytest.mark.parametrize("case", VALID)
def test_valid_skills_are_accepted_as_by_the_reference(case, tmp_path):
    folder = write_skill(tmp_path, *VALID[case])
    assert accepted_by_reference(folder)
    skill, properties = load_skill(folder), skills_ref.read_properties(folder)
    assert (skill.name, skill.description) == (properties.name, properties.description)
    assert (skill.license, skill.compatibility) == (properties.license, properties.compatibility)
    assert skill.metadata == (properties.metadata or {})


@pytest.mark.parametrize("case", BROKEN)
def test_broken_skills_are_refused_as_by_the_reference(case, tmp_path):
    folder = write_skill(tmp_path, *BROKEN[case])
    assert not accepted_by_reference(folder)
    assert not accepted(folder)


@pytest.mark.parametrize("file_name", ["skill.md", "SKILL.MD", "Skill.md", "README.md"])
def test_the_file_has_the_names_that_the_reference_takes(file_name, tmp_path):
    folder = write_skill(tmp_path, "pdf", front(), file_name)
    assert accepted(folder) == accepted_by_reference(folder)


LETTERS = st.sampled_from("abz09-éßAÉ _.ﬁ²")  # of one script, since we refuse two
NAMES = st.one_of(st.text(LETTERS, min_size=1, max_size=12), st.sampled_from(["a" * 64, "a" * 65, "true", "1", "null"]))
TEXTS = st.one_of(
    st.text(st.sampled_from("ab: \"'-#&*!|>{}[]%@`,.?\\é\t"), max_size=30), st.sampled_from(["a" * 1024, "a" * 1025])
)
FIELDS = st.sampled_from(["license", "compatibility", "allowed-tools", "metadata", "description", "version", "name"])


@given(
    name=NAMES,
    is_of_folder=st.booleans(),
    description=TEXTS,
    fields=st.lists(st.tuples(FIELDS, TEXTS), max_size=3),
    end=st.sampled_from(["---\n", "--- \n", "----\n", "\n---", ""]),
)
@example(name="0 ", is_of_folder=True, description="d", fields=[], end="---\n")
@example(name="²", is_of_folder=True, description="d", fields=[], end="---\n")
def test_any_front_matter_gets_the_verdict_of_the_reference(name, is_of_folder, description, fields, end):
    lines = [f"name: {name}", f"description: {description}", *(f"{field}: {text}" for field, text in fields)]
    text = "\n".join(["---", *lines, end, "Body."])
    with tempfile.TemporaryDirectory() as parent:
        folder = write_skill(parent, name if is_of_folder and name not in (".", "..") else "other", text)
        assert accepted(folder) == accepted_by_reference(folder)


@given(st.binary(max_size=80))
@example(b"\xef\xbb\xbf---\nname: pdf\ndescription: d\n---\n")
@example("---\nname: pdf\ndescription: d\n---\n".encode("utf-16"))
@example(b"---\nname: pdf\ndescription: \xff\n---\n")
def test_any_bytes_get_the_verdict_of_the_reference(data):
    with tempfile.TemporaryDirectory() as parent:
        folder = write_skill(parent, "pdf", data)
        assert accepted(folder) == accepted_by_reference(folder)
        folder = write_skill(parent, "x", b"---\nname: x\ndescription: " + data + b"\n---\n")
        assert accepted(folder) == accepted_by_reference(folder)
