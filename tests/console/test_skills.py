"""`agentrt skills check` prints what is wrong with skills."""

import pytest

from agentrt.__main__ import main
from tests.skills.test_reference import front, write_skill


def test_each_skill_of_a_folder_gets_its_lines(tmp_path, capsys):
    write_skill(tmp_path, "pdf", front())
    write_skill(tmp_path, "docs", "---\nname: docs\nx\x1b[31m: 1\n---\n")
    write_skill(tmp_path, "docs\ngood: usable, 1 file", "nothing")
    write_skill(tmp_path, "mail", front("mail2", more="version: 1\n"))
    assert main(["skills", "check", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    names = [line.split(":")[0].removeprefix(f"{tmp_path}/") for line in lines]
    assert names == ["docs", "docs good", "mail", "mail", "pdf"]
    assert lines[-1].startswith(f"{tmp_path}/pdf: usable, 1 file, digest ")
    assert "\x1b" not in "".join(lines)


def test_a_folder_that_is_a_skill_is_checked_itself(tmp_path, capsys):
    folder = write_skill(tmp_path, "pdf", front())
    assert main(["skills", "check", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"{folder}: usable")
    (folder / "SKILL.md").write_text("nothing")
    assert main(["skills", "check", str(folder)]) == 1


@pytest.mark.parametrize("folder", ["absent", "."])
def test_a_folder_without_skills_is_wrong_use(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["skills", "check", folder]) == 2
    assert f"agentrt: {folder!r}" in capsys.readouterr().err
