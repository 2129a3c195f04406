"""The layer of skills: it lists them, asks before one is used, and binds calls to the tools that it names."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from agentrt._runtime.options import import_extra
from agentrt._runtime.text import escape_controls, one_line
from agentrt.agent import Agent, Run
from agentrt.errors import ConfigError, MiddlewareConfigError, SkillError, ToolError
from agentrt.hooks import CheckPermissionValues, MiddlewareBase, ModelCallValues, NextCheckPermission, NextModelCall
from agentrt.message import TextBlock, ToolResultState
from agentrt.model import ModelResult
from agentrt.permission import covers
from agentrt.skills import Skill, SkillFolder
from agentrt.tool import FunctionTool, ToolBase, ToolContext, ToolFlow
from agentrt.types import STRUCTURED_OUTPUT, PermissionBehavior, PermissionDecision, PermissionMode, ToolResponse
from agentrt.workspace import FileSystemBase
from agentrt_middleware.context.requests import INSIDE_OF_ADDITIONS, escape_markup, hint_message
from agentrt_middleware.skills.allowed_tools import TOOL_NAMES, rules_for_entries
from agentrt_middleware.skills.catalog import SkillCatalog
from agentrt_middleware.skills.copies import SkillCopies
from agentrt_middleware.validation import check_flag, check_number

_ALLOW, _ASK, _DENY = PermissionBehavior.ALLOW, PermissionBehavior.ASK, PermissionBehavior.DENY

# Of the conversation: the list in its prompt, the skills that came later, and the digests that the user agreed to.
_LISTED, _LATER, _AGREED = "listed", "later", "agreed"
# Of one reply: the skills in use with their lists of tools, and the digest that each call of use_skill asks about.
_ACTIVE, _ASKED = "active", "asked"

_MAX_SHOWN_FILES = 200
# The tags of Unicode, which models read as letters and no font shows.
_INVISIBLE_LETTERS = {code: f"\\U{code:08x}" for code in range(0xE0000, 0xE0080)}
_HOW_TO = (
    "Skills are instructions for certain tasks. When a task fits the description of one, call use_skill with its name "
    "before you start, and follow what it returns."
)
_NEW_SKILLS = "These skills have been added since the conversation began:"


class SkillsMiddleware(MiddlewareBase):
    """Offers the skills in these folders to the model, and asks the user before each is first used.

    `folders` are paths of folders of skills, or workspaces that have them at their root. The system prompt lists names
    and descriptions; the instructions come as results of the tool `use_skill`, other files by `read_skill_file`. The
    user agrees to the files as they are: if one of them changes, the next use asks again. An allow rule for `use_skill`
    and the mode BYPASS answer the question about a first use, and only BYPASS that about a change.

    While a skill with a list of `allowed-tools` is in use, which is until the end of the reply, each call of another
    tool asks, whatever rules and modes say, in sub-agents as well. With `grant=True`, calls of the tools in the list
    need no rule: only deny and ask rules, and what asks in every case, still hold for them. `tool_names` adds to the
    names by which skills know tools, such as `{"WebFetch": "fetch"}`. At most `max_skills` are listed.

    Needs the extra: `pip install "agentrt[skills]"`.
    """

    inherited = True
    # Two would each list skills and bring tools of the same names.
    key = "skills"
    wraps: ClassVar = INSIDE_OF_ADDITIONS
    needs_hooks: ClassVar = ("on_check_permission", "on_model_call")

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str] | FileSystemBase],
        *,
        grant: bool = False,
        tool_names: Mapping[str, str] | None = None,
        max_skills: int = 200,
    ) -> None:
        places: object = folders
        if not isinstance(places, (list, tuple)) or not places:
            raise MiddlewareConfigError(
                f"SkillsMiddleware(folders=...) must be a list of folders, such as ['skills/'], not {folders!r:.200}"
            )
        check_flag("SkillsMiddleware(grant=...)", grant)
        check_number("SkillsMiddleware(max_skills=...)", max_skills, whole=True)
        names: object = {} if tool_names is None else tool_names
        if not isinstance(names, Mapping) or not all(
            isinstance(name, str) and name for pair in names.items() for name in pair
        ):
            raise MiddlewareConfigError(
                f"SkillsMiddleware(tool_names=...) must be a dict of names of tools, such as {{'Read': 'read_file'}}, "
                f"not {tool_names!r:.200}"
            )
        import_extra("SkillsMiddleware", "skills", "strictyaml")
        try:
            self._catalog = SkillCatalog([SkillFolder(place) for place in places])
            self._copies = SkillCopies(self._catalog)
        except ConfigError as error:
            raise MiddlewareConfigError(f"SkillsMiddleware(folders=...): {error}") from None
        self.folders, self.grant, self.max_skills = list(places), grant, max_skills
        self.tool_names: dict[str, str] = {**TOOL_NAMES, **names}

    def list_tools(self) -> Sequence[ToolBase]:
        # Trusted, since the user has agreed to what they return.
        flow = ToolFlow(trusted_output=True)
        functions = (self.use_skill, self.read_skill_file, self.stop_skill)
        # One at a time, since they change what the reply may do.
        return [
            FunctionTool(
                function,
                is_read_only=True,
                idempotent=True,
                is_concurrency_safe=False,
                flow=flow,
                changes_conversation=True,
            )
            for function in functions
        ]

    def describe(self, agent: Agent) -> Sequence[str]:
        places = ", ".join(str(place) for place in self.folders)
        effect = "and run without a rule" if self.grant else "and need what they need without it"
        return [f"skills in {places}; calls outside of a list of allowed-tools ask, those inside {effect}"]

    async def on_system_prompt(self, agent: Agent, current_prompt: str) -> str:
        if agent.lineage.is_inherited(self):  # a sub-agent has no tools to use them
            return current_prompt
        listed = await self._list_of(agent)
        if not listed:
            return current_prompt
        section = f"{_HOW_TO}\n{_skills_in_words(listed)}"
        return f"{current_prompt}\n\n{section}" if current_prompt else section

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        if agent.run.is_internal or agent.lineage.is_inherited(self):
            return await next_handler(**input_kwargs)
        later = await self._later(agent)
        if not later:
            return await next_handler(**input_kwargs)
        # Last, so that what comes before it stays the same from request to request.
        hint = hint_message(f"{_NEW_SKILLS}\n{_skills_in_words(later)}", "skills")
        return await next_handler(messages=[*input_kwargs["messages"], hint])

    async def on_tools(self, agent: Agent, current_tools: list[ToolBase]) -> list[ToolBase]:
        runs = [run for run in self._runs(agent) if self._active(run)]
        # By what it has, so that the tools of workspaces are not loaded where nobody uses them.
        is_command = (isinstance(getattr(tool, "read_only", None), Mapping) for tool in current_tools)
        place = next((place for place, is_one in enumerate(is_command) if is_one), None)
        if not runs or place is None:
            return current_tools
        folders = {
            f"/skills/{name}": folder
            for run in runs
            for name in self._active(run)
            if (folder := await self._copies.folder_of(name, run.agent.state_of(self)[_AGREED][name])) is not None
        }
        # A copy, since the tool is shared by all conversations.
        command: Any = current_tools[place].with_name(current_tools[place].name)
        command.read_only = {**command.read_only, **folders}
        return [*current_tools[:place], command, *current_tools[place + 1 :]]

    async def on_check_permission(
        self, agent: Agent, input_kwargs: CheckPermissionValues, next_handler: NextCheckPermission
    ) -> PermissionDecision:
        decision = await next_handler(**input_kwargs)
        tool, arguments = input_kwargs["tool"], input_kwargs["tool_input"]
        # The model does not make the calls of hidden tools, and the answer in a form goes to the user.
        if decision.behavior is _DENY or tool.is_hidden or tool.name == STRUCTURED_OUTPUT:
            return decision
        own = getattr(getattr(tool, "function", None), "__func__", None)
        if own is SkillsMiddleware.use_skill:
            return await self._decide_use(agent, input_kwargs["tool_call"].id, tool, arguments, decision)
        if own is SkillsMiddleware.read_skill_file:
            return decision
        if own is SkillsMiddleware.stop_skill:
            is_bound = self._active(agent.run).get(arguments.get("name", "")) is not None
            message = f"{arguments.get('name')!r:.100} would no longer bind calls to its allowed-tools"
            return _asking(decision, message) if is_bound else decision
        return self._decide_by_lists(agent, tool, arguments, decision)

    # The tools.

    async def use_skill(self, context: ToolContext, name: str) -> ToolResponse:
        """Return the instructions of a skill, to follow until the task is done.

        Args:
            name: The name of the skill, from the list.
        """
        agent = _agent_of(context)
        try:
            skill, _ = await self._catalog.read(name)
        except SkillError as error:
            return _error_result(str(error))
        data = agent.run.state_of(self)
        agreed = agent.state_of(self).setdefault(_AGREED, {})
        # The files may have changed between the question, the answer and now.
        if skill.digest not in (agreed.get(skill.name), data.get(_ASKED, {}).get(context.tool_call.id)):
            return _error_result(f"the skill {skill.name} has changed since the user was asked: call use_skill again")
        agreed[skill.name] = skill.digest
        allowed = skill.allowed_tools
        data.setdefault(_ACTIVE, {})[skill.name] = None if allowed is None else list(allowed)
        parts = [skill.body]
        if len(skill.files) > 1:
            places = f"for read_skill_file, and for commands in a sandbox at /skills/{skill.name}"
            parts.append(f"Its files, {places}: {_files_in_words(skill)}")
        if allowed is not None:
            names = " ".join(allowed) or "none"
            parts.append(f"While this skill is in use, the user is asked about calls of other tools than: {names}")
        return ToolResponse([TextBlock("\n\n".join(parts))])

    async def read_skill_file(self, context: ToolContext, name: str, path: str) -> ToolResponse:
        """Return the text of a file of a skill that is in use.

        Args:
            name: The name of the skill.
            path: The path within the skill, such as "references/forms.md".
        """
        agent = _agent_of(context)
        try:
            skill, data = await self._catalog.read(name, path)
        except SkillError as error:
            return _error_result(str(error))
        # In use and not only agreed to, since a SKILL.md that is read so would bind no calls.
        is_agreed = agent.state_of(self).get(_AGREED, {}).get(skill.name) == skill.digest
        if not is_agreed or skill.name not in self._active(agent.run):
            return _error_result(f"the skill {skill.name} has changed, or is not in use: call use_skill first")
        if data is None:
            files = _files_in_words(skill)
            return _error_result(f"the skill {skill.name} has no file '{one_line(path, 100)}'; its files: {files}")
        try:
            return ToolResponse([TextBlock(data.decode())])
        except UnicodeDecodeError:
            return _error_result(f"'{one_line(path, 100)}' is not text in UTF-8")

    async def stop_skill(self, context: ToolContext, name: str) -> str:
        """Stop using a skill before the end of the reply, so that it no longer says which tools may be called.

        Args:
            name: The name of the skill.
        """
        self._active(_agent_of(context).run).pop(name, None)
        return f"The skill '{one_line(name, 100)}' is not in use."

    # The list of a conversation, and what came later.

    async def _list_of(self, agent: Agent) -> list[list[str]]:
        """Return the names and descriptions in the prompt, which stay as they were when the conversation began."""
        data = agent.state_of(self)
        if _LISTED not in data:
            skills = await self._catalog.skills()
            data[_LISTED] = [[skill.name, skill.description] for skill in skills[: self.max_skills]]
        listed: list[list[str]] = data[_LISTED]
        return listed

    async def _later(self, agent: Agent) -> list[list[str]]:
        """Return the skills that the prompt does not list; looks for new ones once in a reply."""
        data, scratch = agent.state_of(self), agent.run.scratch(self)
        if "looked" not in scratch:
            scratch["looked"] = True
            listed = await self._list_of(agent)
            known = {name for name, _ in (*listed, *data.get(_LATER, ()))}
            room = self.max_skills - len(known)
            # Those that are known are not read again: in each reply that would take as long as for the whole list.
            new = (await self._catalog.skills(known))[:room] if room > 0 else []
            if new:
                data.setdefault(_LATER, []).extend([skill.name, skill.description] for skill in new)
        later: list[list[str]] = data.get(_LATER, [])
        return later

    # The permissions of a call.

    async def _decide_use(
        self, agent: Agent, call_id: str, tool: ToolBase, arguments: dict[str, Any], decision: PermissionDecision
    ) -> PermissionDecision:
        try:
            skill, _ = await self._catalog.read(arguments["name"])
        except SkillError:  # nothing is read of it, and the result says why
            return decision
        agreed = agent.state_of(self).get(_AGREED, {}).get(skill.name)
        if agreed == skill.digest:
            return decision
        # As at the first question about this call: the answer is about the files as they were then.
        digest = agent.run.state_of(self).setdefault(_ASKED, {}).setdefault(call_id, skill.digest)
        permissions = agent.state.permission_context
        is_answered = permissions.mode == PermissionMode.BYPASS or (
            agreed is None and covers(permissions.rules, tool, arguments)
        )
        if is_answered:
            return decision
        what = "asks to be used" if agreed is None else "has changed since you agreed to it"
        count = f"{len(skill.files)} file{'s' if len(skill.files) > 1 else ''}"
        about = f"{count}, digest {digest[:12]}: {_description_in_words(skill.description, 300)}"
        return _asking(decision, f"the skill {skill.name} {what} ({about})")

    def _decide_by_lists(
        self, agent: Agent, tool: ToolBase, arguments: dict[str, Any], decision: PermissionDecision
    ) -> PermissionDecision:
        is_bound = False
        for lists in self._lists(agent):
            is_bound = True
            entries = [entry for listed in lists.values() for entry in listed]
            rules = rules_for_entries(entries, self.tool_names, tool.name)
            if not covers(rules, tool, arguments):
                names = ", ".join(lists)
                return _asking(decision, f"{tool.name} is not among the allowed-tools of the skill in use: {names}")
        is_open = decision.behavior is _ASK and not decision.bypass_immune
        if not (self.grant and is_bound and is_open):
            return decision
        if covers(agent.state.permission_context.rules, tool, arguments, behavior=_ASK):
            return decision
        return PermissionDecision(_ALLOW, "the skill in use allows it", "allowed-tools")

    def _lists(self, agent: Agent) -> Iterator[dict[str, list[str]]]:
        """Yield the lists of tools that bind this reply, and those that bind the replies around it."""
        for run in self._runs(agent):
            lists = {name: entries for name, entries in self._active(run).items() if entries is not None}
            if lists:
                yield lists

    def _runs(self, agent: Agent) -> Iterator[Run]:
        """Yield the reply in progress and those around it, as far as this layer is theirs."""
        run: Run | None = agent.run
        while run is not None:
            if any(layer is self for layer in run.agent.middlewares):
                yield run
            run = run.parent

    def _active(self, run: Run) -> dict[str, list[str] | None]:
        active: dict[str, list[str] | None] = run.state_of(self).get(_ACTIVE, {})
        return active


def _agent_of(context: ToolContext) -> Agent:
    agent: Agent | None = context.agent
    if agent is None:
        raise ToolError(f"{context.tool_call.name} belongs to a conversation: call it in a reply")
    return agent


def _error_result(problem: str) -> ToolResponse:
    """Return an error result; nothing of a skill is in it."""
    return ToolResponse([TextBlock(f"{problem[:1].upper()}{problem[1:]}.")], ToolResultState.ERROR)


def _asking(decision: PermissionDecision, message: str) -> PermissionDecision:
    """Return a question that only the user answers."""
    if decision.behavior is _ASK and decision.message:
        message = f"{message}; {decision.message}"
    return PermissionDecision(_ASK, message, "SkillsMiddleware", bypass_immune=True)


def _description_in_words(description: str, longest: int) -> str:
    """Return it with everything spelt out that only one of user and model would see."""
    return escape_controls(one_line(description, longest)).translate(_INVISIBLE_LETTERS)


def _skills_in_words(skills: Sequence[Sequence[str]]) -> str:
    lines = (
        f"<skill><name>{escape_markup(name)}</name>"
        f"<description>{escape_markup(_description_in_words(description, 1_100))}</description></skill>"
        for name, description in skills
    )
    return "\n".join(("<available_skills>", *lines, "</available_skills>"))


def _files_in_words(skill: Skill) -> str:
    names = [one_line(name.encode(errors="replace").decode(), 200) for name in skill.files]
    more = f" and {len(names) - _MAX_SHOWN_FILES} more" if len(names) > _MAX_SHOWN_FILES else ""
    return ", ".join(names[:_MAX_SHOWN_FILES]) + more
