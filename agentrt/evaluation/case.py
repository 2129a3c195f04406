"""Cases and data sets: the inputs of an evaluation, and their files."""

import csv
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, is_dataclass
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any

from agentrt._runtime.text import repr_of
from agentrt.errors import ConfigError, UsageError
from agentrt.evaluation.spending import is_text
from agentrt.evaluation.user import SimulatedUser
from agentrt.hooks import MiddlewareBase
from agentrt.message import Msg, ToolCallBlock
from agentrt.testing import InjectedFault
from agentrt.types import JSONObject

Turn = str | Msg
Approve = bool | Callable[[ToolCallBlock], bool | Awaitable[bool]] | None
"""The answer to questions about tool calls; `None` leaves the reply waiting."""
Evaluator = Callable[[Any], Any]

_MAX_CASE_NAME = 200
_TITLE_LENGTH = 60  # characters of the input that name a case
_FORMATS = (".json", ".jsonl", ".csv")
_CSV_COLUMNS = ("name", "inputs", "expected")
_CSV_GROUPS = ("labels", "metadata")

# For each option of a case a check, and words for the error.
_CASE_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "labels": (
        lambda labels: (
            labels is None
            or (isinstance(labels, Mapping) and all(isinstance(text, str) for pair in labels.items() for text in pair))
        ),
        "a dict of str",
    ),
    "metadata": (lambda metadata: metadata is None or isinstance(metadata, Mapping), "a dict"),
    "faults": (
        lambda faults: (
            isinstance(faults, (list, tuple))
            and all(isinstance(fault, (InjectedFault, MiddlewareBase)) for fault in faults)
        ),
        "a list of faults, such as fail_tool('search')",
    ),
    "approve": (
        lambda approve: approve is None or isinstance(approve, bool) or callable(approve),
        "a bool or a function",
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One task for an agent, named by its `str`: `name`, or the first words of its input.

    `inputs` is a message, a list of them for several turns, or a `SimulatedUser`. `expected` is for evaluators.
    `labels` are for groups in the report. `faults` are those of `agentrt.testing`, or middlewares, and are the
    innermost layers. `approve` answers questions about tool calls: a `bool`, or a function of the `ToolCallBlock`; with
    `None` the trial ends at the question.
    """

    inputs: Turn | Sequence[Turn] | SimulatedUser
    expected: Any = None
    _: KW_ONLY
    name: str | None = None
    labels: Mapping[str, str] | None = None
    faults: Sequence[InjectedFault | MiddlewareBase] = ()
    approve: Approve = None
    metadata: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        # Read as `Any`, since a file may hold anything.
        values: dict[str, Any] = {part.name: getattr(self, part.name) for part in fields(self)}
        inputs, name = values["inputs"], values["name"]
        turns = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        is_user = isinstance(inputs, SimulatedUser)
        if not is_user and not (turns and all(isinstance(turn, (str, Msg)) for turn in turns)):
            raise ConfigError(
                f"Case(inputs) must be a str, a Msg, a list of these, or a SimulatedUser, not {inputs!r:.100}"
            )
        if name is not None and not (is_text(name) and len(name) <= _MAX_CASE_NAME):
            raise ConfigError(f"Case(name=...) must be a str of 1 to {_MAX_CASE_NAME} characters, not {name!r:.100}")
        # From here on, errors name the case.
        for option, (fits, kind) in _CASE_OPTIONS.items():
            if not fits(values[option]):
                raise ConfigError(f"{self!s:.60}: Case({option}=...) must be {kind}, not {values[option]!r:.100}")

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        words = " ".join(self.question.split())
        return words if len(words) <= _TITLE_LENGTH else f"{words[:_TITLE_LENGTH]}..."

    @property
    def turns(self) -> list[Turn]:
        """The messages of the user; empty for a simulated one."""
        if isinstance(self.inputs, SimulatedUser):
            return []
        return [self.inputs] if isinstance(self.inputs, (str, Msg)) else list(self.inputs)

    @property
    def question(self) -> str:
        """The text of the turns, or the goal of the simulated user."""
        if isinstance(self.inputs, SimulatedUser):
            return self.inputs.goal
        return "\n".join(map(text_of_turn, self.turns))

    def to_json(self) -> JSONObject:
        """Return the case as JSON; raises `UsageError` for a part that JSON cannot hold."""
        inputs: Any = self.inputs
        if isinstance(inputs, SimulatedUser):
            inputs = inputs.to_json()
        elif any(isinstance(turn, Msg) for turn in self.turns):
            raise UsageError(f"case {str(self)!r:.100} has a Msg as its input: write str to save it")
        layers = [fault for fault in self.faults if not isinstance(fault, InjectedFault)]
        if layers or callable(self.approve):
            what = f"the layer {layers[0]!r:.100}" if layers else "a function as approve"
            raise UsageError(f"case {str(self)!r:.100} has {what}, which a file cannot hold: build the case in Python")
        faults = [fault.to_json() for fault in self.faults if isinstance(fault, InjectedFault)]
        try:
            values: JSONObject = {
                "inputs": inputs,
                "expected": plain_value(self.expected),
                "name": self.name,
                "labels": None if self.labels is None else dict(self.labels),
                "faults": faults or None,
                "approve": self.approve,
                "metadata": plain_value(self.metadata),
            }
            json.dumps(values, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"case {str(self)!r:.100} cannot be JSON: {error}") from error
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, value: Any) -> "Case":
        """Return the case that `to_json` wrote; raises `ConfigError` for anything else."""
        names = [part.name for part in fields(cls)]
        if not isinstance(value, dict) or "inputs" not in value:
            raise ConfigError(f"a case is a JSON object with inputs, not {value!r:.100}")
        unknown = sorted(set(value) - set(names))
        if unknown:
            raise ConfigError(f"a case has no {unknown[0]!r:.100}: it has {', '.join(names)}")
        inputs = value["inputs"]
        if isinstance(inputs, dict):
            inputs = SimulatedUser.from_json(inputs)
        faults = value.get("faults") or ()
        if isinstance(faults, list):  # anything else is refused with the other options
            faults = [InjectedFault.from_json(fault) for fault in faults]
        return cls(**{**value, "inputs": inputs, "faults": faults})


class Dataset(Collection[Case]):
    """Cases with their evaluators; it iterates over the cases.

    `cassette` is the path of a file that answers the models, those of judges and simulated users included. Requests
    that it lacks are sent, and recorded. Each trial has its own answers, so a rerun is free and equal.
    """

    def __init__(
        self,
        name: str,
        cases: Iterable[Case],
        evaluators: Iterable[Evaluator] = (),
        *,
        cassette: str | PathLike[str] | None = None,
    ) -> None:
        if not is_text(name):
            raise ConfigError(f"Dataset(name) must be a str, not {name!r:.100}")
        self.name = name
        self.cassette = None if cassette is None else Path(cassette)
        self.evaluators = list(name_evaluators("Dataset(evaluators)", evaluators).values())
        values: Any = cases
        listed = list(values) if isinstance(values, Iterable) else [values]
        wrong = [case for case in listed if not isinstance(case, Case)]
        if wrong or isinstance(values, Case):
            raise ConfigError(f"Dataset(cases) must be a list of Case, not {(wrong or [values])[0]!r:.100}")
        self.cases: list[Case] = listed
        if not self.cases:
            raise ConfigError(f"the data set {name!r:.100} has no cases: give at least one Case(...)")
        # Trials of two reports are compared by the names of their cases.
        [(title, count)] = Counter(map(str, self.cases)).most_common(1)
        if count > 1:
            raise ConfigError(
                f"{count} cases of the data set {name!r:.100} are named {title!r:.100}: name each of them"
            )

    def __iter__(self) -> Iterator[Case]:
        return iter(self.cases)

    def __contains__(self, case: object) -> bool:
        return case in self.cases

    def __len__(self) -> int:
        return len(self.cases)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r:.100} with {len(self.cases)} cases>"

    def save(self, path: str | PathLike[str]) -> None:
        """Write the cases, without evaluators, as the suffix says: .json, .jsonl or .csv.

        A row of CSV has one turn, `expected` as text, and a column for each label (labels.x) and each item of the
        metadata (metadata.x). Raises `UsageError` for a case that does not fit.
        """
        file = _path_of(path)
        # Before the file is opened, so that an error leaves no incomplete file.
        values = [case.to_json() for case in self.cases]
        if file.suffix == ".csv":
            rows = [_csv_row(case, value) for case, value in zip(self.cases, values, strict=True)]
            columns = [*_CSV_COLUMNS, *sorted({name for row in rows for name in row} - set(_CSV_COLUMNS))]
            stream = StringIO(newline="")
            writer = csv.DictWriter(stream, columns)
            writer.writeheader()
            writer.writerows(rows)
            text = stream.getvalue()
        elif file.suffix == ".jsonl":
            text = "".join(f"{json.dumps(value)}\n" for value in values)
        else:
            text = json.dumps({"name": self.name, "cases": values}, indent=1) + "\n"
        try:
            file.write_bytes(text.encode())
        except UnicodeEncodeError as error:
            raise UsageError(f"the data set {self.name!r:.100} has text that CSV cannot hold: {error}") from error

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        evaluators: Iterable[Evaluator] = (),
        *,
        cassette: str | PathLike[str] | None = None,
    ) -> "Dataset":
        """Read cases from a file that `save` wrote, or one like it; raises `ConfigError` with the place of an error."""
        file = _path_of(path)
        try:
            text = file.read_bytes().decode("utf-8-sig")  # spreadsheets write a byte order mark
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the data set {str(file)!r:.200} cannot be read: {error}") from error
        name, values = file.stem, _values_in(file, text)
        if isinstance(values, dict):
            name, values = values.get("name", name), values.get("cases")
        if not isinstance(values, list) or not is_text(name):
            raise ConfigError(f"{str(file)!r:.200} must have a list of cases, and a name that is a str or left out")
        cases = []
        for number, value in enumerate(values, 1):
            try:
                cases.append(Case.from_json(value))
            except ConfigError as error:
                raise ConfigError(f"case {number} of {str(file)!r:.200}: {error}") from error
        return cls(name, cases, evaluators, cassette=cassette)


def text_of_turn(turn: Turn) -> str:
    """Return the text of a turn."""
    return turn if isinstance(turn, str) else turn.get_text_content() or ""


def plain_value(value: Any) -> Any:
    """Return a value in a form for JSON: dataclasses, models and mappings as dicts."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain_value(asdict(value))
    dump = getattr(value, "model_dump", None)  # of a pydantic model
    if callable(dump):
        return dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): plain_value(part) for key, part in value.items()}
    if isinstance(value, (set, frozenset)):  # whose own order may be another one in each process
        return sorted(map(plain_value, value), key=repr)
    if isinstance(value, (list, tuple)):
        return [plain_value(part) for part in value]
    return value


def name_evaluators(option: str, evaluators: Any) -> dict[str, Evaluator]:
    """Return the evaluators by their names, numbered if several have one name."""
    if not isinstance(evaluators, Iterable):
        raise ConfigError(f"{option} must be a list of functions, such as [contains()], not {repr_of(evaluators, 100)}")
    named: dict[str, Evaluator] = {}
    for evaluator in evaluators:
        if isinstance(evaluator, type) or not callable(evaluator):
            raise ConfigError(
                f"{option} must be functions of a trial, such as contains(), not {repr_of(evaluator, 100)}"
            )
        name = title = str(getattr(evaluator, "__name__", None) or type(evaluator).__name__)
        number = 1
        while name in named:
            number += 1
            name = f"{title}#{number}"
        named[name] = evaluator
    return named


def _path_of(path: str | PathLike[str]) -> Path:
    file = Path(path)
    if file.suffix not in _FORMATS:
        raise ConfigError(f"a data set is a file with the suffix {', '.join(_FORMATS)}, not {str(file)!r:.200}")
    return file


def _csv_row(case: Case, value: JSONObject) -> dict[str, str]:
    """Return the row of a case; raises `UsageError` for values other than text."""
    surplus = sorted(set(value) - {*_CSV_COLUMNS, *_CSV_GROUPS})
    row = {name: value[name] for name in _CSV_COLUMNS if name in value}
    for group in _CSV_GROUPS:
        row.update({f"{group}.{key}": part for key, part in value.get(group, {}).items()})
    # An empty cell is read as a column that the case does not have.
    wrong = [name for name, part in row.items() if not isinstance(part, str) or (name != "inputs" and not part)]
    if surplus or wrong:
        raise UsageError(
            f"case {str(case)!r:.100} has {(surplus or wrong)[0]!r:.100}, which CSV cannot hold: save it as .json"
        )
    return row


def _values_in(file: Path, text: str) -> Any:
    line = 0
    try:
        if file.suffix == ".csv":
            reader = csv.DictReader(StringIO(text, newline=""), strict=True)
            line = 1
            columns = list(reader.fieldnames or ())
            if columns.count("inputs") != 1 or len(set(columns)) < len(columns):
                raise csv.Error(f"there must be one column 'inputs', and no two of one name, not {columns!r:.100}")
            cases = []
            for row in reader:
                line = reader.line_num
                cases.append(_case_of_csv(row))
            return cases
        if file.suffix == ".json":
            return json.loads(text)
        values = []
        for part in text.split("\n"):
            line += 1
            if part.strip():
                values.append(json.loads(part))
        return values
    except (csv.Error, ValueError, RecursionError) as error:
        place = f", line {line}" if line else ""
        kind = "" if file.suffix == ".csv" else "not JSON: "
        raise ConfigError(f"{str(file)!r:.200}{place}: {kind}{error}") from error


def _case_of_csv(row: dict[Any, Any]) -> JSONObject:
    case: JSONObject = {}
    for name, cell in row.items():
        if not isinstance(name, str) or not isinstance(cell, str):  # more or fewer cells than columns
            raise csv.Error(f"the row has {'more' if name is None else 'fewer'} cells than there are columns")
        group, dot, key = name.partition(".")
        if dot and group in _CSV_GROUPS:
            if cell:
                case.setdefault(group, {})[key] = cell
        elif cell or name == "inputs":
            case[name] = cell
    return case
