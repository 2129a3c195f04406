"""Folders of strangers: each is refused with its reason, and nothing outside of it is read."""

import os
import socket
from pathlib import Path
from threading import get_ident

import pytest

from agentrt.errors import ConfigError, SkillError
from agentrt.skills import SkillFolder, load_skill, source
from agentrt.skills.skill import make_skill
from agentrt.workspace import LocalWorkspace
from agentrt.workspace.folder import Folder
from tests.skills.test_reference import front, write_skill

SECRET = "the secret of another program"


def link_to_file(folder, secret):
    (folder / "notes.md").symlink_to(secret)


def link_to_folder(folder, secret):
    (folder / "notes").symlink_to(secret.parent)


def link_to_nothing(folder, secret):
    (folder / "notes.md").symlink_to(secret.parent / "absent")


def link_to_itself(folder, secret):
    (folder / "notes").symlink_to(folder)


def link_deep_inside(folder, secret):
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "c").symlink_to(secret)


def hidden_link(folder, secret):
    (folder / ".git").mkdir()
    (folder / ".git" / "config").symlink_to(secret)


def link_as_instructions(folder, secret):
    (folder / "SKILL.md").unlink()
    (folder / "SKILL.md").symlink_to(secret)


def folder_as_instructions(folder, secret):
    (folder / "SKILL.md").unlink()
    (folder / "SKILL.md").mkdir()


def pipe(folder, secret):
    os.mkfifo(folder / "notes.md")


def pipe_as_instructions(folder, secret):
    (folder / "SKILL.md").unlink()
    os.mkfifo(folder / "SKILL.md")


def unix_socket(folder, secret):
    here = os.getcwd()
    os.chdir(folder)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("s")
    finally:
        os.chdir(here)


def device(folder, secret):
    try:
        os.mknod(folder / "zero", 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


def huge_file(folder, secret):
    with open(folder / "data.bin", "wb") as file:
        file.truncate(10_000_001)


def many_huge_files(folder, secret):
    for number in range(12):
        with open(folder / f"{number}.bin", "wb") as file:
            file.truncate(10_000_000)


def many_files(folder, secret):
    for number in range(1_000):
        (folder / f"{number}.md").touch()


def many_folders(folder, secret):
    for number in range(1_001):
        (folder / f"{number}").mkdir()


def deep_folders(folder, secret):
    folder.joinpath(*["d"] * 40).mkdir(parents=True)


FILES = {
    "link to a file": (link_to_file, "'notes.md' is a link"),
    "link to a folder": (link_to_folder, "'notes' is a link"),
    "link to nothing": (link_to_nothing, "'notes.md' is a link"),
    "link to itself": (link_to_itself, "'notes' is a link"),
    "link deep inside": (link_deep_inside, "'a/b/c' is a link"),
    "link in a hidden folder": (hidden_link, "'.git/config' is a link"),
    "link as SKILL.md": (link_as_instructions, "'SKILL.md' is a link"),
    "folder as SKILL.md": (folder_as_instructions, "no file SKILL.md"),
    "pipe": (pipe, "'notes.md' is a pipe"),
    "pipe as SKILL.md": (pipe_as_instructions, "'SKILL.md' is a pipe"),
    "socket": (unix_socket, "a socket"),
    "device": (device, "a device"),
    "huge file": (huge_file, "'data.bin' has more than 10,000,000 bytes"),
    "many huge files": (many_huge_files, "more than 100,000,000 bytes together"),
    "many files": (many_files, "more than 1,000 files"),
    "many folders": (many_folders, "more than 1,000 folders"),
    "deep folders": (deep_folders, "32 inside each other"),
}


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "outside" / "passwd"
    path.parent.mkdir()
    path.write_text(front(description=SECRET))  # it could pass for instructions
    return path


@pytest.mark.parametrize("case", FILES)
def test_files_that_do_not_belong_refuse_the_skill(case, tmp_path, secret):
    make, problem = FILES[case]
    folder = write_skill(tmp_path, "pdf", front())
    make(folder, secret)
    with pytest.raises(SkillError) as raised:
        load_skill(folder)
    assert problem in str(raised.value)
    assert SECRET not in str(raised.value)
    assert raised.value.skill == "pdf"


BOMB = "metadata:\n  a: &a x\n  b: [*a, *a]\n"
TEXTS = {
    "YAML bomb": (front(more=BOMB), "not valid YAML"),
    "alias": (front(more="license: &a x\ncompatibility: *a\n"), "not valid YAML"),
    "tag of Python": (front(description="!!python/object/apply:os.system [touch /tmp/x]"), "not valid YAML"),
    "tag": (front(description="!env SECRET"), "not valid YAML"),
    "field twice": (front(more="name: doc\n"), "not valid YAML"),
    "list in one line": (front(more="allowed-tools: [Bash, Read]\n"), "not valid YAML"),
    "merge key": (front(more="metadata:\n  <<: *a\n"), "not valid YAML"),
    "nested without end": (front(more="metadata:\n " + "- " * 40_000 + "x\n"), "not valid YAML"),
    "very many fields": (front(more="".join(f"a{n}: 1\n" for n in range(10_000))), "more than 200 lines"),
    "too long": (front(body="a" * 100_001), "may have 100,000"),
    "longer than any text": (front(body="a" * 400_001), "more than 100,000 characters"),
    "byte order mark": ("\ufeff" + front(), "byte order mark"),
    "UTF-16": (front().encode("utf-16"), "not text in UTF-8"),
    "half a character": (front().encode() + b"\xe2\x82", "not text in UTF-8"),
    "surrogate": (front().encode() + b"\xed\xa0\x80", "not text in UTF-8"),
    "null": (front(description="a\0b"), r"the character '\x00', which YAML does not take"),
    "bell": (front(more="license: a\ab\n"), r"the character '\x07', which YAML does not take"),
    "path as the name": (front("../pdf"), "letters, digits and hyphens only"),
    "name of another": (front("docs"), "not the name of its folder"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_text_that_does_not_fit_refuses_the_skill(case, tmp_path):
    text, problem = TEXTS[case]
    folder = write_skill(tmp_path, "pdf", text)
    with pytest.raises(SkillError) as raised:
        load_skill(folder)
    assert problem in str(raised.value)


@pytest.mark.parametrize("name", ["pаypal", "αbc", "pdf\u0455", "技a", "ｐdf\u0430"])  # that is the point
def test_a_name_in_letters_of_two_scripts_is_refused(name, tmp_path):
    folder = write_skill(tmp_path, name, front(name))
    with pytest.raises(SkillError, match="letters of several scripts"):
        load_skill(folder)


@pytest.mark.parametrize("name", ["日本語のスキル", "한국어漢字", "почта", "λόγος", "naïve-1"])
def test_a_name_in_one_way_of_writing_is_accepted(name, tmp_path):
    assert load_skill(write_skill(tmp_path, name, front(name))).name == name


def test_a_folder_that_is_a_link_is_refused(tmp_path, secret):
    real = write_skill(tmp_path / "elsewhere", "pdf", front())
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "pdf").symlink_to(real)
    with pytest.raises(SkillError, match="link"):
        load_skill(tmp_path / "skills" / "pdf")


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_becomes_a_link_after_the_check_is_not_followed(what, tmp_path, secret, monkeypatch):
    folder = write_skill(tmp_path, "pdf", front())
    (folder / "notes").mkdir()
    (folder / "notes" / "passwd").write_text("harmless")
    look = Folder.entries

    def look_and_swap(self: Folder, limit: int) -> list[tuple[str, int]]:
        found = look(self, limit)
        target = folder / "notes" / "passwd" if what == "file" else folder / "notes"
        if self.path == (target.parent if what == "file" else folder):
            target.rename(tmp_path / "old")
            target.symlink_to(secret if what == "file" else secret.parent)
        return found

    monkeypatch.setattr(Folder, "entries", look_and_swap)
    with pytest.raises(SkillError, match="cannot be read"):
        load_skill(folder)


@pytest.mark.parametrize("path", ["../outside/passwd", "/etc/passwd", "notes/../../outside/passwd", "a\0b", "", "."])
async def test_no_path_leads_out_of_a_skill(path, tmp_path, secret):
    write_skill(tmp_path / "skills", "pdf", front())
    for place in (tmp_path / "skills", LocalWorkspace(tmp_path / "skills")):
        skill, data = await SkillFolder(place).read("pdf", path)
        assert (skill.name, data) == ("pdf", None)


@pytest.mark.parametrize("name", ["..", ".", "", "../outside", "/", "no"])
async def test_no_name_leads_to_another_folder(name, tmp_path, secret):
    (secret.parent / "SKILL.md").write_text(front("outside"))
    write_skill(tmp_path / "skills", "pdf", front())
    for place in (tmp_path / "skills", LocalWorkspace(tmp_path / "skills")):
        with pytest.raises(SkillError):
            await SkillFolder(place).load(name)


@pytest.mark.parametrize("place", ["", None, 3, b"skills"])
def test_what_is_no_folder_is_refused_by_its_value(place):
    with pytest.raises(ConfigError, match="not "):
        load_skill(place)
    with pytest.raises(ConfigError, match="not "):
        SkillFolder(place)


async def test_no_fields_hold_up_the_event_loop(tmp_path, monkeypatch):
    threads = set()

    def make_in_thread(*values):
        threads.add(get_ident())
        return make_skill(*values)

    monkeypatch.setattr(source, "make_skill", make_in_thread)
    write_skill(tmp_path, "pdf", front())
    for place in (tmp_path, LocalWorkspace(tmp_path)):
        await SkillFolder(place).load("pdf")
        await SkillFolder(place).read("pdf", "SKILL.md")
    assert threads
    assert get_ident() not in threads


def test_the_digest_depends_on_every_name_and_byte(tmp_path):
    def digest_of(files: dict[str, str]) -> str:
        folder = write_skill(tmp_path / str(len(os.listdir(tmp_path))), "pdf", front())
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return load_skill(folder).digest

    lists = [
        {},
        {"a": ""},
        {"b": ""},
        {"a": "b"},
        {"ab": ""},
        {".hidden": ""},
        {"a/b": ""},
        {"a/b": "", "c": ""},
        {"a/c": "", "b": ""},
    ]
    assert len({digest_of(files) for files in lists}) == len(lists)
    assert digest_of({"x": "1", "y": "2"}) == digest_of({"y": "2", "x": "1"})


async def test_a_skill_in_a_workspace_reads_as_on_the_disk(tmp_path):
    folder = write_skill(tmp_path, "pdf", front(more="allowed-tools: Read, Bash(git log:*) Write\n"))
    (folder / "a").mkdir()
    (folder / "a" / "b.md").write_text("More.")
    for place in (tmp_path, LocalWorkspace(tmp_path)):
        skills = SkillFolder(place)
        assert await skills.names() == ["pdf"]
        assert await skills.load("pdf") == load_skill(folder)
        assert (await skills.read("pdf", "a/b.md"))[1] == b"More."
    assert load_skill(folder).files == ("SKILL.md", "a/b.md")
    assert load_skill(folder).allowed_tools == ("Read", "Bash(git log:*)", "Write")


def test_the_current_folder_may_be_a_skill(tmp_path, monkeypatch):
    folder = write_skill(tmp_path, "pdf", front())
    monkeypatch.chdir(folder)
    assert load_skill(".") == load_skill(Path(folder)) == load_skill(str(folder) + "/")
