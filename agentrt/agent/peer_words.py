"""The names of an agent's parts and methods in other frameworks, and the names here."""

from collections.abc import Iterable


def _by_word(table: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the remedy for each word; `WORD` in a remedy stands for it."""
    return {word: remedy.replace("WORD", word) for words, remedy in table for word in words.split()}


_MODEL_WORDS = (
    "api_key base_url max_completion_tokens max_output_tokens max_tokens reasoning_effort seed stop stream temperature "
    "top_p"
)
_ROUND_WORDS = "max_iter max_iterations max_iters max_rounds max_steps max_turns recursion_limit"
_SESSION_WORDS = "conversation_id session session_id thread_id"

AGENT_KEYWORDS = _by_word(
    (
        ("agent_name", "name"),
        (
            "backstory developer_prompt instruction instructions messages_modifier persona preamble prompt "
            "prompt_template role_description state_modifier sys_prompt system system_instruction system_instructions "
            "system_message",
            "system_prompt",
        ),
        ("chat_model engine language_model llm llm_config model_config model_id model_name", "model"),
        ("callbacks guardrails hooks input_guardrails interceptors layers output_guardrails plugins", "middlewares"),
        ("checkpoint checkpointer database db persistence saver session_store storage store", "state_store"),
        ("initial_state thread", "state"),
        (_MODEL_WORDS, "the model has it: write model=chat_model('openai:gpt-5-mini', WORD=...)"),
        ("model_kwargs model_settings", "the model has them: write model=chat_model('openai:gpt-5-mini', ...)"),
        ("formatter", "the model has it: write model=OpenAIChatModel(..., formatter=...)"),
        (_ROUND_WORDS, "write react_config=ReActConfig(max_iters=...)"),
        ("max_tool_calls max_seconds max_execution_time", "write react_config=ReActConfig(max_seconds=...)"),
        ("output_retries result_retries", "write react_config=ReActConfig(max_form_attempts=...)"),
        ("usage_limits", "write react_config=ReActConfig(max_iters=..., max_seconds=...)"),
        ("compression compression_config", "write context_config=ContextConfig(...)"),
        # What a peer fixes for all messages, and an agent here is given with each.
        (
            "output_model output_pydantic output_schema output_type response_format response_model result_type schema "
            "structured_model structured_schema",
            "each message has its own: write agent.reply(message, structured_schema=...)",
        ),
        (
            "context context_schema context_type dependencies deps deps_type run_context",
            "each message has its own: write agent.reply(message, deps=...)",
        ),
        # The conversation.
        (_SESSION_WORDS, "write state=AgentState(session_id=...)"),
        ("chat_history history message_history messages", "write state=AgentState(context=[...])"),
        (
            "conversation memory",
            "the conversation is state=AgentState(), which state_store=FileStateStore(folder) keeps",
        ),
        (
            "permission permission_context permission_mode permissions",
            "write state=AgentState(permission_context=PermissionContext(...))",
        ),
        # What a middleware does.
        ("max_retries retries", "write middlewares=[RetryMiddleware(max_retries=...)], for calls of the model"),
        ("fallback_models fallbacks", "write middlewares=[ModelFallbackMiddleware([...])], with the other models"),
        (
            "max_rpm rate_limit requests_per_minute rpm tokens_per_minute tpm",
            "write middlewares=[RateLimitMiddleware(requests_per_minute=..., tokens_per_minute=...)]",
        ),
        (
            "debug logger logging show_tool_calls verbose",
            "write middlewares=[LoggingMiddleware()], or show(agent.reply_stream(...)) in a terminal",
        ),
        ("capabilities", "write middlewares=[...]"),
        ("probe", "write middlewares=[LayerTimes()], of agentrt.middleware, or a middleware with on_layer"),
        (
            "history_processors pre_model_hook",
            "write a middleware whose on_model_call calls next_handler(messages=...)",
        ),
        ("instrument instrumentation tracing", "write middlewares=[TracingMiddleware()]"),
        (
            "state_schema",
            "a middleware keeps data in agent.state_of(self); what a request needs goes to reply(deps=...)",
        ),
        ("tool_choice", "write a middleware whose on_reasoning calls next_handler(tool_choice=...)"),
        # What a tool does.
        ("function functions tool toolset toolsets", "write tools=[...]"),
        ("agents sub_agents subagents", "write tools=[other.as_tool('What it does.')]"),
        ("handoffs", "write Handoffs([agent, other]), of agentrt.pipeline"),
        (
            "human_in_the_loop human_input human_input_mode interrupt_after interrupt_before interrupt_on",
            "each tool says so: write tools=[FunctionTool(f, ask=True)]",
        ),
        (
            "mcp mcp_config mcp_servers mcp_tools",
            "write tools=[MCPToolset('name', command=[...])], from agentrt.tool",
        ),
        (
            "knowledge knowledge_base knowledge_sources rag retriever vectorstore",
            "write middlewares=[RAGMiddleware(KnowledgeBase(...))]",
        ),
        ("long_term_memory", "write middlewares=[LongTermMemoryMiddleware(LongTermMemory(store), owner=...)]"),
        ("plan_notebook planning", "write middlewares=[PlanNotebook()]"),
        ("goal role task", "write it into system_prompt, or into description for other agents to choose by"),
        (
            "timeout",
            "of a model call: write chat_model(spec, timeouts=Timeouts(total=...)); of a whole reply: write "
            "react_config=ReActConfig(max_seconds=...)",
        ),
    )
)

REPLY_KEYWORDS = _by_word(
    (
        (
            "content input message messages msg new_message prompt query question task text user_input user_prompt",
            "inputs",
        ),
        (
            "output_model output_pydantic output_schema output_type response_format response_model result_type schema "
            "structured_model",
            "structured_schema",
        ),
        ("context dependencies run_context runtime", "deps"),
        (_MODEL_WORDS, "the model has it: write chat_model('openai:gpt-5-mini', WORD=...)"),
        (_ROUND_WORDS, "the agent has it: write Agent(..., react_config=ReActConfig(max_iters=...))"),
        ("model_kwargs model_settings", "the model has them: write chat_model('openai:gpt-5-mini', ...)"),
        (
            "usage_limits",
            "the agent has them: write Agent(..., react_config=ReActConfig(max_iters=..., max_seconds=...))",
        ),
        (_SESSION_WORDS, "the conversation is agent.state: write agent.with_state(AgentState(session_id=...))"),
        ("chat_history history message_history", "the conversation is agent.state: write agent.with_state(state)"),
        ("config", "give dependencies as deps=..., and a conversation with agent.with_state(state)"),
        ("instructions system_prompt", "the agent has it: write Agent(..., system_prompt=...)"),
        ("model", "the agent has it: write Agent(..., model=...), or a middleware that passes on current_model=..."),
        ("stream", "write agent.reply_stream(...) for events, and agent.reply(...) for the message"),
        ("timeout", "write `with anyio.fail_after(seconds):` around it, or ReActConfig(max_seconds=...) for the agent"),
        ("tools", "the agent has them: write Agent(..., tools=[...])"),
    )
)

BASE_ATTRIBUTES = _by_word(
    (
        (
            "achat acall ainvoke arun ask chat execute generate generate_reply invoke kickoff predict run_async",
            "write `await agent.reply(message)`",
        ),
    )
)
AGENT_ATTRIBUTES = _by_word(
    (
        (
            "astream astream_events iter run_stream run_streamed stream stream_async stream_events",
            "write `async for event in agent.reply_stream(message)`",
        ),
        ("all_messages context history memory messages new_messages", "write agent.state.context"),
        ("answer approve confirm resume", "write `await agent.reply(UserConfirmResultEvent(reply_id, [...]))`"),
        ("output_validator result_validator", "write a validator of the type that structured_schema=... is given"),
        ("session_id", "write agent.state.session_id"),
        ("instructions sys_prompt", "write agent.system_prompt"),
        ("llm", "write agent.model"),
        ("middleware", "write agent.middlewares"),
        ("add_middleware", "write agent.with_middlewares([*agent.middlewares, ...]), which returns another agent"),
        ("tools", "write agent.toolkit"),
        ("clone copy_with override", "write agent.with_state(AgentState()) or agent.with_middlewares([...])"),
        ("handoff handoffs transfer_to", "write Handoffs([agent, other]), of agentrt.pipeline"),
        ("abatch batch", "write agent.with_state(AgentState()) for each message, and run them with asyncio.gather"),
        (
            "add_tool register_tool tool tool_plain",
            "write Agent(..., tools=[f]), or agent.toolkit.register_tool_function(f)",
        ),
    )
)
