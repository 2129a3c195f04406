"""`llms.txt`, which tells language models what there is to read, and the whole text of the site in one file."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["SitePage", "llms_full_txt", "llms_txt", "site_pages"]

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "mkdocs.yml"


class SitePage(NamedTuple):
    """A page in the navigation, with the section of the site that it is in, and what it says."""

    section: str
    url: str
    text: str

    @property
    def title(self) -> str:
        """The first heading."""
        return self.text[self.text.index("# ") + 2 :].partition("\n")[0]

    @property
    def summary(self) -> str:
        """The first sentence of the first paragraph."""
        paragraphs = re.split(r"\n{2,}", self.text.partition(f"# {self.title}\n")[2].strip())
        prose = next((text for text in paragraphs if re.match(r"[\w`\[]", text)), "")
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
        return re.split(r"(?<=\.)\s", plain, maxsplit=1)[0]


def site_pages(generated: Mapping[Path, str]) -> Iterator[SitePage]:
    """Yield the pages in the order of the navigation; the text of those just generated is given."""
    config = CONFIG.read_text(encoding="utf-8")
    site = re.findall(r"^site_url: (.*)$", config, re.MULTILINE)[0]
    section = ""
    for line in config[config.index("\nnav:") :].splitlines():
        if match := re.match(r"  - (\w.*):$", line):
            section = match[1]
        elif match := re.search(r"([\w/.-]+)\.md$", line):
            path = ROOT / "docs" / f"{match[1]}.md"
            yield SitePage(section, site + _place(match[1]), generated.get(path) or _text_of(path))


def llms_txt(generated: Mapping[Path, str]) -> str:
    """Return the list of pages that https://llmstxt.org describes."""
    config = CONFIG.read_text(encoding="utf-8")
    name, description = (re.findall(rf"^{key}: (.*)$", config, re.M)[0] for key in ("site_name", "site_description"))
    lines, section = [f"# {name}\n\n> {description}"], ""
    for page in site_pages(generated):
        if page.section != section:
            section = page.section
            lines.append(f"\n## {section}\n")
        lines.append(f"- [{page.title}]({page.url})" + (f": {page.summary}" if page.summary else ""))
    return "\n".join(lines) + "\n"


def llms_full_txt(generated: Mapping[Path, str]) -> str:
    """Return all pages, one after the other."""
    return "\n\n".join(f"<!-- {page.url} -->\n\n{page.text.strip()}" for page in site_pages(generated)) + "\n"


def _text_of(path: Path) -> str:
    """Return what is written in the page, with the files that it includes from a line on, as `--8<-- "FILE:LINE:"`."""

    def included(match: re.Match[str]) -> str:
        lines = (ROOT / match[1]).read_text(encoding="utf-8").splitlines()
        return "\n".join(lines[int(match[2]) - 1 :])

    return re.sub(r'^--8<-- "(.*):(\d+):"$', included, path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def _place(name: str) -> str:
    name = re.sub(r"(^|/)index$", r"\1", name)
    return name if not name or name.endswith("/") else f"{name}/"
