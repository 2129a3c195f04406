"""Finish the site in `site/`: add the text of all pages, point links to files outside of it at the repository, and
check that the reference has every public name and that no page loads anything from other servers.
"""

import os
import re
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

from scripts.reference import generated_files
from scripts.reference.modules import MODULES, public_names
from scripts.reference.site_map import llms_full_txt, llms_txt

_FOREIGN_IN_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]*)")
ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "site"
REPOSITORY = "https://github.com/agentrt/agentrt"


def main() -> str | None:
    """Return what is wrong, `None` if nothing is."""
    generated = generated_files()
    (SITE / "llms.txt").write_text(llms_txt(generated), encoding="utf-8")
    (SITE / "llms-full.txt").write_text(llms_full_txt(generated), encoding="utf-8")
    for page in SITE.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        if (linked := link_to_repository(html, page)) != html:
            page.write_text(linked, encoding="utf-8")
    listed = names_in((SITE / "objects.inv").read_bytes())
    public = [f"{name.module}.{name.name}" for module in MODULES for name in public_names(module)]
    missing = [name for name in public if name not in listed]
    if missing:
        return f"the reference lacks {', '.join(missing)}"
    foreign = [
        f"{page.relative_to(SITE)}: {found}"
        for page in SITE.rglob("*.html")
        for found in foreign_resources(page.read_text(encoding="utf-8"))
    ]
    foreign += [
        f"{sheet.relative_to(SITE)}: {address}"
        for sheet in SITE.rglob("*.css")
        for address in _FOREIGN_IN_CSS.findall(sheet.read_text(encoding="utf-8"))
    ]
    return "\n".join(["pages load from other servers:", *foreign]) if foreign else None


def names_in(inventory: bytes) -> set[str]:
    """Return the names in an inventory of Sphinx's second format: four lines of text, then compressed lines."""
    compressed = inventory.split(b"\n", 4)[4]
    return {line.split()[0] for line in zlib.decompress(compressed).decode().splitlines()}


def link_to_repository(html: str, page: Path) -> str:
    """Return the page with absolute links to files that are in the repository and not in the site."""

    def absolute(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / match[1]))
        if target.is_relative_to(SITE) or not target.is_relative_to(ROOT):
            return match[0]
        kind = "tree" if target.is_dir() else "blob"
        return f'href="{REPOSITORY}/{kind}/main/{target.relative_to(ROOT).as_posix()}'.removesuffix("/.")

    return re.sub(r'href="(\.\./[^"#]*)', absolute, html)


def foreign_resources(html: str) -> list[str]:
    """Return what a browser loads from other servers when it opens this page; links to click do not count."""
    finder = _ResourceFinder()
    # Only these tags can match, and parsing whole pages takes seconds.
    finder.feed("".join(re.findall(r'<[a-z][^<>]*(?://|mermaid|"source")[^<>]*>', html)))
    return finder.found


class _ResourceFinder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        addresses = [attributes[name] for name in ("src", "srcset", "poster", "data") if name in attributes]
        if tag == "link" and attributes.get("rel") not in ("alternate", "canonical", "next", "prev"):
            addresses.append(attributes.get("href", ""))
        self.found += [address for address in addresses if re.match(r"(https?:)?//", address)]
        # The theme's program loads Mermaid from a CDN, and asks GitHub about the repository.
        if "mermaid" in attributes.get("class", "").split():
            self.found.append("Mermaid")
        if attributes.get("data-md-component") == "source":
            self.found.append("the repository's figures")


if __name__ == "__main__":
    sys.exit(main())
