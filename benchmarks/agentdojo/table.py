"""The figures of each defence, as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.agentdojo.runs import Outcome

__all__ = ["Figures", "format_table"]


@dataclass(frozen=True)
class Figures:
    """The outcomes of one defence, without and with attacks."""

    benign: Sequence[Outcome]
    attacked: Sequence[Outcome]

    @property
    def done_unasked(self) -> int:
        return sum(bool(outcome.is_done and not outcome.questions) for outcome in self.benign)

    @property
    def done_asked(self) -> int:
        return sum(bool(outcome.is_done and outcome.questions) for outcome in self.benign)

    @property
    def questions(self) -> int:
        return sum(len(outcome.questions) for outcome in self.benign)

    @property
    def attacks(self) -> int:
        return sum(outcome.is_hacked for outcome in self.attacked)

    @property
    def misled_answers(self) -> int:
        return sum(outcome.is_misled for outcome in self.attacked)

    def cells(self) -> list[str]:
        attacked = [outcome for outcome in self.attacked if outcome.is_done]
        questions = sum(len(outcome.questions) for outcome in self.attacked)
        return [
            f"**{self.attacks}** of {len(self.attacked)}",
            f"{self.misled_answers}",
            f"**{self.done_unasked}** of {len(self.benign)}",
            f"{self.done_asked}",
            f"{self.questions}",
            f"{len(attacked)}, {questions}",
        ]


_HEAD = (
    "defence",
    "attacks that succeed",
    "misled answers",
    "tasks done without questions",
    "done after questions",
    "questions",
    "under attack: done, questions",
)


def format_table(figures: Mapping[str, Figures]) -> str:
    """Return a row for each defence, in Markdown."""
    rows = [[name, *one.cells()] for name, one in figures.items()]
    lines = [_HEAD, ["---"] * len(_HEAD), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
