"""Run the agent of the tutorial in a browser, and write three pictures of its run to `docs/pictures`."""

import json
import subprocess
import types
from pathlib import Path

from agentrt.serving import create_app
from tests.documents import ROOT, programs_of
from tests.servers.browser.chromium import install_chromium
from tests.serving.conftest import run_server

DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorials" / "why-was-this-answer-bad.md"
FOLDER = DOCS / "pictures"
BROWSER = Path(".pytest_cache/d/browser")  # where the tests have it


def main() -> None:
    """Write the pictures, each as WebP."""
    shop = types.ModuleType("shop")
    exec(programs_of(TUTORIAL)[0].source, shop.__dict__)  # our own page
    BROWSER.mkdir(parents=True, exist_ok=True)
    FOLDER.mkdir(exist_ok=True)
    chromium = install_chromium(BROWSER.absolute())
    with run_server(create_app(shop.agent, playground=True)) as url:
        spec = {
            "url": url,
            "packages": str(chromium.packages),
            "program": str(chromium.program),
            "environment": chromium.environment,
            "folder": str(FOLDER),
        }
        script = Path(__file__).with_name("pictures.mjs")
        subprocess.run(["node", script, json.dumps(spec)], check=True, timeout=300)


main()
