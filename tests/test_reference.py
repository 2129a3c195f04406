"""The reference has everything that is public, and its generated pages are those that the code makes."""

import importlib
import pkgutil
import re
import zlib
from functools import cache
from pathlib import Path

import pytest

import agentrt
from agentrt import errors
from scripts.finish_site import SITE, foreign_resources, link_to_repository, names_in
from scripts.reference import FOLDER, generated_files
from scripts.reference.events import event_classes, example_of
from scripts.reference.modules import MODULES, page_of, public_names
from scripts.reference.pictures import draw_chains
from scripts.reference.site_map import llms_full_txt
from tests.documents import NAVIGATION, REPOSITORY

REFERENCE = FOLDER / "reference"


@cache
def files_of_the_site() -> dict[Path, str]:
    return generated_files()


def test_generated_files_are_those_that_the_code_makes():
    files = files_of_the_site()
    changed = [str(path) for path, text in files.items() if path.read_text(encoding="utf-8") != text]
    assert not changed, "run `python3 dev.py docs`, and commit what it changes"
    assert set(REFERENCE.glob("modules/*.md")) <= set(files)


def test_every_public_module_has_a_page():
    public = {info.name for info in pkgutil.iter_modules(agentrt.__path__, "agentrt.") if "._" not in info.name}
    exporting = {name for name in public if importlib.import_module(name).__all__}
    assert exporting <= set(MODULES)


def test_the_whole_text_has_all_pages_with_what_they_include():
    text = llms_full_txt(files_of_the_site())
    assert text.count("<!-- https://") == len(NAVIGATION)
    assert "--8<--" not in text
    assert text.count("# Architecture\n") == 1
    assert "## Which file do I open?" in text


def test_every_module_that_exports_names_has_a_page():
    assert not [module for module in MODULES if REFERENCE / page_of(module) not in NAVIGATION]


def test_the_page_of_a_module_lists_all_its_public_names():
    texts = {module: (REFERENCE / page_of(module)).read_text(encoding="utf-8") for module in MODULES}
    for module, text in texts.items():
        for public in public_names(module):
            assert f"[`{public.name}`](" in text
            assert f"\n::: {public.home}.{public.name}\n" in texts[public.home]


def test_every_event_has_a_section_with_an_example():
    text = (REFERENCE / "events.md").read_text(encoding="utf-8")
    types = [example_of(event_class).type for event_class in event_classes()]
    assert sorted(re.findall(r"^### (.*)$", text, re.MULTILINE)) == sorted(types)


def test_the_example_of_an_event_can_be_read_back():
    for event_class in event_classes():
        event = example_of(event_class)
        assert event_class.from_json(event.to_json()) == event


def test_every_error_has_a_section_with_a_remedy():
    sections = re.split(r"^### ", (REFERENCE / "errors.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert sorted(section.partition("\n")[0] for section in sections) == sorted(errors.__all__)
    assert not [section for section in sections if "Remedy" not in section]


def test_a_sphinx_inventory_gives_the_names_of_the_site():
    lines = b"agentrt.Agent py:class 1 a/#$ -\nagentrt.agent.Agent py:class 1 a/#$ -\n"
    head = b"# Sphinx inventory version 2\n# Project: agentrt\n# Version: 0\n# The rest is compressed using zlib.\n"
    assert names_in(head + zlib.compress(lines)) == {"agentrt.Agent", "agentrt.agent.Agent"}


def test_links_that_leave_the_site_lead_to_the_repository():
    page = SITE / "middlewares" / "index.html"
    html = '<a href="../../examples/plan.py#L1">1</a><a href="../../examples">2</a><a href="../start/">3</a>'
    assert re.findall('"(.*?)"', link_to_repository(html, page)) == [
        f"{REPOSITORY}/blob/main/examples/plan.py#L1",
        f"{REPOSITORY}/tree/main/examples",
        "../start/",
    ]


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://cdn.example/a.js"></script>', ["https://cdn.example/a.js"]),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', ["//fonts.example/a.css"]),
        ('<pre class="mermaid"><code>flowchart LR</code></pre>', ["Mermaid"]),
        ('<a href="https://code.example" data-md-component="source">code</a>', ["the repository's figures"]),
        ('<a href="https://a.example">a</a><link rel="canonical" href="https://b.example"><img src="c.svg">', []),
    ],
)
def test_what_a_page_loads_from_other_servers_is_found(html, found):
    assert foreign_resources(html) == found


def test_a_picture_shows_every_layer_in_both_colour_schemes():
    description = {"hooks": [{"hook": "on_x", "wraps": "a", "layers": [{"class": "Outer"}, {"class": "<In>"}]}]}
    picture = draw_chains(description)
    assert picture.count('class="layer"') == 2
    assert all(text in picture for text in (">on_x<", ">Outer<", ">&lt;In&gt;<", "prefers-color-scheme: dark"))
