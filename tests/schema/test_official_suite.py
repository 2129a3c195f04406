"""The official suite (github.com/json-schema-org/JSON-Schema-Test-Suite), which the source of `jsonschema` has.

Each test of it holds, unless its schema is refused for an address: that of a part, or of another schema.
"""

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrt._runtime.schema.parts import SchemaError
from agentrt._runtime.schema.validator import Validator
from tests.servers.node_packages import cache_folder
from tests.services import unavailable

pytestmark = pytest.mark.slow

SOURCE = "jsonschema==4.26.0"
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
# A draft of one's own is taken for the newest.
NOT_PROMISED = {"no validation: invalid number, but it still validates"}
REFUSED = ("must name a part of this schema", "begins a schema of its own")


@pytest.fixture(scope="module")
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = cache_folder(request.config, tmp_path_factory, "json-schema-suite")
    archive = folder / f"{SOURCE.replace('==', '-')}.tar.gz"
    if not archive.exists():
        download = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), SOURCE]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *download], capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            unavailable("the official suite", done.stderr[-500:])
    return archive


def groups_of(suite: Path, draft: str) -> Iterator[dict[str, Any]]:
    with tarfile.open(suite) as archive:
        for name in archive.getnames():
            _, _, place = name.partition(f"/json/tests/{draft}/")
            if place.endswith(".json") and "/" not in place:
                file = archive.extractfile(name)
                assert file is not None
                yield from json.load(file)


@pytest.mark.parametrize("draft", DRAFTS)
def test_official_suite_holds_for_each_schema_that_is_accepted(suite: Path, draft: str) -> None:
    tested = refused = 0
    wrong = []
    for group in groups_of(suite, draft):
        schema = group["schema"]
        try:
            named = {"$schema": DRAFTS[draft], **schema} if isinstance(schema, dict) else schema
            validator = Validator(named, formats=False)
        except SchemaError as error:
            refused += 1
            if not any(words in str(error) for words in REFUSED):
                wrong.append((group["description"], str(error)))
            continue
        for each in group["tests"]:
            tested += 1
            if (validator.problem(each["data"]) is None) != each["valid"] and each["description"] not in NOT_PROMISED:
                wrong.append((group["description"], each["description"]))
    assert wrong == []
    assert tested > 500
    assert refused < tested / 20
