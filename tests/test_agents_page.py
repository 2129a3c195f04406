"""AGENTS.md is one page, and what it names is there."""

import re

import dev
from tests.documents import ROOT

TEXT = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"`python3 dev\.py (\w+)( [^`]*)?`", TEXT)


def test_the_page_names_every_job_of_dev_and_no_other():
    assert {job for job, _ in COMMANDS} == dev.JOBS.keys()


def test_every_path_on_the_page_exists():
    arguments = [part for _, rest in COMMANDS for part in rest.split() if "/" in part]
    paths = [quoted for quoted in re.findall(r"`([^` ]+)`", TEXT) if "/" in quoted or quoted.endswith((".md", ".toml"))]
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(paths) > 10
    assert [path for path in (*arguments, *paths, *links) if not (ROOT / path).exists()] == []


def test_the_page_stays_one_page():
    assert len(TEXT.splitlines()) <= 60
