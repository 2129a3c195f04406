"""Our side of the standard's own kit: runs its scenarios with an agent that has the layer, in several ways."""

import json
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from agent_hooks import HostSurface, IdentityProvider, InterceptionBlocked
from agent_hooks.ctk import Capability, RunOutcome, RunRecord, Scenario
from agent_hooks.ctk.harness import ToolSpec
from agent_hooks.ctk.scripted import redact_paths

from agentrt import Agent
from agentrt.event import ConfirmResult, UserConfirmResultEvent
from agentrt.message import DataBlock, Msg, TextBlock, ToolCallBlock, URLSource
from agentrt.middleware import AgentHooksMiddleware
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import ToolBase
from agentrt.types import ToolResponse, ToolResultState
from tests.loop.helpers import saved_state

Way = Literal["awaited", "streamed", "resumed", "sub-agent"]
WAYS: list[Way] = ["awaited", "streamed", "resumed", "sub-agent"]


class ScenarioTool(ToolBase):
    """A tool that answers as a scenario says, and remembers its calls."""

    is_concurrency_safe = False
    input_schema: ClassVar = {"type": "object", "additionalProperties": True}

    def __init__(self, spec: ToolSpec, log: list[dict[str, Any]], *, ask: bool) -> None:
        self.name, self.description, self.ask = spec.name, spec.name, ask
        self._spec = spec
        self._log = log

    async def call(self, **arguments: Any) -> ToolResponse:
        value, is_error = self._spec.invoke(arguments)
        self._log.append({"name": self.name, "args": arguments})
        text = value if isinstance(value, str) else json.dumps(value)
        return ToolResponse([TextBlock(text)], ToolResultState.ERROR if is_error else ToolResultState.SUCCESS)


def fail(_: object) -> str:
    raise RuntimeError("the provider fails")


class Harness:
    """Runs the scenario of a vector in one of the ways."""

    name = "agentrt"
    tool_seam_host_error = "continue"
    capabilities: ClassVar = {
        Capability.MODEL_CALLS,
        Capability.TOOL_CALLS,
        Capability.PARALLEL_TOOL_CALLS,
        Capability.STREAMING,
        Capability.MULTI_TURN,
        Capability.INT64_JSON,
        Capability.BIGINT_JSON,
        Capability.HOST_DECLARATION,
    }

    def __init__(self, way: Way, vector: dict[str, Any]) -> None:
        self.way = way
        self.released = ""
        self.saved = ""
        self._pieces = [answer["respond"] for answer in vector["scenario"].get("model_script", ())]
        self._dropped: set[int] = set()
        self._records: list[Any] = []
        self._log: list[dict[str, Any]] = []

    def host_surface(self) -> HostSurface:
        return HostSurface.from_capabilities(sorted(item.value for item in self.capabilities))

    def setup(
        self, scenario, interceptors, resolver, mode, composition, identity_provider="jcs-sha256", redact=None
    ) -> None:
        if identity_provider == "ctk-fault":
            identity_provider = IdentityProvider("ctk-fault", fail)
        self._set_up(
            scenario,
            interceptors=interceptors,
            resolver=resolver,
            mode=mode,
            composition=composition,
            identity_provider=identity_provider,
            redactor=(lambda context: redact_paths(context, redact)) if redact else None,
        )

    def setup_declared(self, scenario, document, registry) -> None:
        self._set_up(scenario, declaration=document, registry=registry)

    def _set_up(self, scenario: Scenario, **options: Any) -> None:
        self._scenario = scenario
        self._layer = AgentHooksMiddleware(on_record=self._records.append, **options)

    def teardown(self) -> None:
        pass

    async def run(self) -> RunRecord:
        tools = [ScenarioTool(spec, self._log, ask=self.way == "resumed") for spec in self._scenario.tools.values()]
        streams = self.way != "awaited"
        model = ScriptedChatModel([*self._answers(streams)], stream=streams)
        agent = Agent("worker", model=model, tools=tools, middlewares=[self._layer])
        outcome, final = RunOutcome.BLOCKED, None
        try:
            final = await (self._ask_supervisor(agent) if self.way == "sub-agent" else self._ask(agent))
            outcome = RunOutcome.COMPLETED
        except InterceptionBlocked:
            pass
        except ConnectionError:  # a stream that was cut, which leaves a record of what no verdict covered
            pass
        self.saved = agent.state.model_dump_json()
        records = self._records_once()
        return RunRecord(
            outcome=outcome,
            final_output=final,
            tool_invocations=self._log,
            identities=[(record.input_identity, record.enforced_identity) for record in records],
            records=[record.to_wire() for record in records],
        )

    async def _ask(self, agent: Agent) -> str | None:
        given = self._scenario.input
        role = given["role"] if given["role"] != "external" else "assistant"
        inputs: Any = Msg("user", given["content"], role)
        while True:
            message = await self._read(agent, inputs)
            if agent.state.reply_context is None:
                return message.get_text_content()
            inputs = self._answer(agent, message)
            if self.way == "resumed":
                state = saved_state(agent)
                agent = agent.with_state(state)

    async def _read(self, agent: Agent, inputs: Any) -> Msg:
        if self.way == "awaited":
            return await agent.reply(inputs)
        async with agent.reply_stream(inputs, yield_final_msg=True) as events:
            async for event in events:
                if isinstance(event, Msg):
                    message = event
                elif event.type == "TEXT_BLOCK_DELTA":
                    self.released += event.delta
        return message

    def _answer(self, agent: Agent, message: Msg) -> UserConfirmResultEvent:
        """Agree to what a tool asks, and to nothing that a policy asks."""
        waiting = agent.state.reply_context.decisions
        calls = [call for call in message.get_content_blocks("tool_call") if waiting[call.id].waits_for == "user"]
        judged = self._records[-1]
        is_of_policy = not judged.proceeds
        if not is_of_policy:  # it is judged again where it runs, and the kit expects one verdict
            self._dropped.add(judged.sequence)
        return UserConfirmResultEvent(message.id, [ConfirmResult(not is_of_policy, call) for call in calls])

    async def _ask_supervisor(self, worker: Agent) -> str | None:
        call = ToolCallBlock("b1", "worker", json.dumps({"query": self._scenario.input["content"]}))
        model = ScriptedChatModel([[call], [DataBlock(URLSource("https://picture.example", "image/png"))]])
        supervisor = Agent("supervisor", model=model, tools=[worker.as_tool("Works.")])
        inputs: Any = "Go."
        while True:
            message = await self._read(supervisor, inputs)
            if supervisor.state.reply_context is None:
                break
            waiting = supervisor.state.reply_context.inner
            inputs = UserConfirmResultEvent(
                message.id,
                [
                    ConfirmResult(
                        False, ToolCallBlock(path, inner.question.tool_call.name, inner.question.tool_call.input)
                    )
                    for path, inner in waiting.items()
                ],
            )
        [result] = supervisor.state.context[-1].get_content_blocks("tool_result")
        if result.state is not ToolResultState.SUCCESS:
            raise ConnectionError(result.text)
        return result.text

    def _records_once(self) -> list[Any]:
        """Leave out what a reply repeats when it resumes; here and in what the kit has recorded."""
        assert len({record.session_id for record in self._records}) <= 1
        bounds = self._layer._emitter._interceptors
        recorders = [
            recorder
            for bound in bounds
            if (recorder := getattr(bound.interceptor._interceptor, "recorded", None)) is not None
        ]
        for recorded in recorders[:1]:
            recorded[:] = [item for item in recorded if item["sequence"] not in self._dropped]
        return [record for record in self._records if record.sequence not in self._dropped]

    def _answers(self, streams: bool) -> Iterator[Any]:
        for index, answer in enumerate(self._scenario.model_script):
            calls = [ToolCallBlock(call["id"], call["name"], json.dumps(call["args"])) for call in answer.tool_calls]
            text = [TextBlock(answer.content)] if answer.content else []
            whole = ChatResponse([*text, *calls], finished_reason=answer.finish_reason)
            if not streams:
                yield whole
                continue
            texts = self._pieces[index].get("stream") or ([answer.content] if answer.content else [])
            pieces: list[Any] = [[TextBlock(piece)] for piece in texts]
            for call in calls:
                half = len(call.input) // 2
                pieces += [[ToolCallBlock(call.id, call.name, call.input[:half])]]
                pieces += [[ToolCallBlock(call.id, "", call.input[half:])]]
            pieces = [ChatResponse(piece, is_last=False) for piece in pieces]
            yield [*pieces, ConnectionError("cut") if self._pieces[index].get("stream_truncated") else whole]
