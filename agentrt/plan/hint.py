"""The words about the plan that a model reads with each request."""

from functools import cached_property
from typing import ClassVar

from agentrt._runtime.text import repr_of
from agentrt.errors import ConfigError
from agentrt.plan.plan import Plan

# Allowed in every state of a subtask.
_ASIDE = (
    "- Ask the user for what you need to know.\n"
    "- Change the steps with 'revise_current_plan', if they no longer fit.\n"
    "- If the user asks for something else, do that first, and return to the plan afterwards."
)

# The placeholders of each situation, with sample values.
_SITUATION_FIELDS: dict[str, dict[str, object]] = {
    "at_the_beginning": {"plan": "", "index": 0},
    "when_a_subtask_in_progress": {"plan": "", "subtask_idx": 0, "subtask_name": "", "subtask": ""},
    "when_no_subtask_in_progress": {"plan": "", "index": 0},
    "at_the_end": {"plan": "", "index": 0},
}


class DefaultPlanToHint:
    """Describes the plan and the allowed next steps; a subclass may override the words for each situation.

    In these, `{plan}` stands for the plan, `{subtask_idx}`, `{subtask_name}` and `{subtask}` for the subtask in
    progress, and `{index}` for how many subtasks are closed. Other braces are written twice.
    """

    hint_prefix: ClassVar[str] = "<system-hint>"
    hint_suffix: ClassVar[str] = "</system-hint>"

    # In capitals, since eager models start at once where they should plan first.
    no_plan: ClassVar[str] = (
        "If what the user asks for takes many steps, such as a program to be written or a topic to be researched in "
        "several sources, you NEED to call 'create_plan' first. Otherwise answer without a plan."
    )
    at_the_beginning: ClassVar[str] = (
        "The current plan:\n```\n{plan}\n```\nWhat you can do now:\n"
        "- Call 'update_subtask_state' with subtask_idx=0 and state='in_progress', and begin with that subtask.\n"
        "- If it cannot be started, find out why: ask the user, or change the steps with 'revise_current_plan'.\n"
        "- If the user asks for something else, do that first, and return to the plan afterwards.\n"
        "- If the user no longer wants the plan, make sure of it and call 'finish_plan'."
    )
    when_a_subtask_in_progress: ClassVar[str] = (
        "The current plan:\n```\n{plan}\n```\n"
        "The subtask at index {subtask_idx}, named '{subtask_name}', is 'in_progress':\n```\n{subtask}\n```\n"
        "What you can do now:\n"
        "- Work on that subtask.\n"
        "- Call 'finish_subtask' with its specific outcome, once it has one.\n" + _ASIDE
    )
    when_no_subtask_in_progress: ClassVar[str] = (
        "The current plan:\n```\n{plan}\n```\n"
        "The first {index} subtasks are closed, and none is 'in_progress'. What you can do now:\n"
        "- Call 'update_subtask_state' for the next subtask with state='in_progress', and work on it.\n" + _ASIDE
    )
    at_the_end: ClassVar[str] = (
        "The current plan:\n```\n{plan}\n```\nAll subtasks are closed. What you can do now:\n"
        "- Call 'finish_plan' with the specific outcome, and sum up for the user what was done.\n" + _ASIDE
    )

    def __init__(self) -> None:
        for situation, fields in _SITUATION_FIELDS.items():
            words = getattr(self, situation)
            try:
                words.format_map(fields)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                # Checked now, not in the middle of a conversation.
                names = ", ".join(f"{{{field}}}" for field in fields)
                raise ConfigError(
                    f"{type(self).__name__}.{situation} must be a str in which only {names} stand for something, not "
                    f"{repr_of(words)}: write other braces twice, as in '{{{{'"
                ) from None

    def __call__(self, plan: Plan | None) -> str | None:
        """Return the hint for the plan, `None` for no hint."""
        return self._hint_without_plan if plan is None else self._enclose(self._describe(plan))

    # Formatted once, since most requests of such an agent have no plan.
    @cached_property
    def _hint_without_plan(self) -> str | None:
        return self._enclose(self.no_plan)

    def _enclose(self, hint: str) -> str | None:
        return f"{self.hint_prefix}{hint}{self.hint_suffix}" if hint else None

    def _describe(self, plan: Plan) -> str:
        markdown = self._quote(plan.to_markdown())
        current = plan.subtask_in_progress()
        if current is not None:
            subtask = plan.subtasks[current]
            return self.when_a_subtask_in_progress.format(
                plan=markdown,
                subtask_idx=current,
                subtask_name=self._quote(subtask.name),
                subtask=self._quote(subtask.to_markdown(detailed=True)),
            )
        # By the rules, closed subtasks come first; an abandoned one further on does not count yet.
        closed = next((place for place, subtask in enumerate(plan.subtasks) if not subtask.is_closed), None)
        if closed is None:
            return self.at_the_end.format(plan=markdown, index=len(plan.subtasks))
        template = self.when_no_subtask_in_progress if closed else self.at_the_beginning
        return template.format(plan=markdown, index=closed)

    def _quote(self, text: str) -> str:
        # The plan may repeat text that a tool has read, which must not end the quotation.
        for mark in (self.hint_prefix, self.hint_suffix, "```"):
            if mark:
                text = text.replace(mark, mark[0] + "\u200b" + mark[1:])
        return text
