"""Wrong guesses: what to write in place of a keyword or an attribute that does not exist.

Someone who knows other frameworks guesses by their words. The decorators here answer with ours, and cost nothing where
the guess was right, apart from one call in front of a constructor.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, NamedTuple, NoReturn, TypeVar, get_args

from agentrt.errors import UnknownKeywordError, WrongCallError

__all__ = ["compute_missing", "suggest_arguments", "suggest_attributes", "suggest_keywords", "unknown_keywords"]

_Decorated = TypeVar("_Decorated", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Init = Callable[..., None]

# What one framework or another calls by these words is the same thing. Of the lines that have a word, the first counts
# that has a parameter as well.
_SAME_THING = (
    # Agents.
    "system_prompt sys_prompt instructions instruction system prompt system_message system_instruction preamble "
    "system_instructions developer_prompt prompt_template backstory persona role_description",
    "middlewares middleware plugins callbacks hooks interceptors guardrails input_guardrails output_guardrails layers",
    "tools tool functions toolkit toolset toolsets function_map builtin_tools",
    "model model_name model_id llm chat_model language_model llm_config model_config model_type engine deployment",
    "models fallback_models fallbacks fallback backups",
    "inputs input messages message msg query question user_prompt user_input new_message task text content prompt",
    "content text message body value data output output_text",
    "name agent_name sender author speaker tool_name func_name function_name title",
    "structured_schema output_type response_format response_model result_type output_schema output_pydantic schema "
    "output_model structured_model text_format format response_schema",
    "state_store store checkpointer session_store saver storage persistence db database checkpoint",
    "state initial_state conversation message_history chat_history history thread",
    "deps dependencies context run_context runtime",
    # Limits.
    "requests_per_minute rpm max_rpm rate requests_per_min max_requests_per_minute calls_per_minute",
    "tokens_per_minute tpm max_tpm tokens_per_min max_tokens_per_minute",
    "max_concurrency concurrency max_concurrent max_parallel parallelism",
    "max_iters max_iter max_iterations max_turns max_steps max_rounds recursion_limit request_limit",
    "max_tool_calls tool_calls_limit max_calls max_function_calls run_limit",
    "max_seconds max_execution_time time_limit timeout deadline max_time",
    "max_retries retries max_attempts attempts tries num_retries max_tries stop_after_attempt",
    "initial_delay delay backoff base base_delay initial_interval min_wait wait",
    "max_delay cap max_backoff max_interval backoff_max",
    "retry_on exceptions errors retry_if on retryable",
    "fallback_on exceptions errors on",
    "trip_on exceptions errors on",
    "failure_threshold threshold max_failures fail_max failures",
    "recovery_seconds recovery_timeout reset_timeout cooldown timeout",
    # Options of one middleware.
    "total timeout request_timeout seconds overall",
    "first_chunk first_token time_to_first_token first",
    "idle between_chunks read read_timeout",
    "between_chunks idle read_timeout chunk_timeout",
    # Options of a model.
    "max_tokens max_completion_tokens max_output_tokens max_new_tokens num_predict max_tokens_to_sample",
    "temperature temp",
    "stop stop_sequences stop_words",
    "reasoning_effort reasoning thinking effort thinking_effort",
    "effort reasoning_effort thinking_effort",
    "api_key key apikey token auth_token api_token openai_api_key anthropic_api_key secret",
    "base_url api_base url endpoint host server_url azure_endpoint openai_api_base",
    "timeouts timeout request_timeout",
    "extra_headers headers default_headers",
    "extra_body model_kwargs body generate_kwargs additional_kwargs provider_options model_settings",
    "http_client client async_client http_async_client",
    "stream streaming",
    "context_size context_window context_length max_context n_ctx max_input_tokens",
    # Other parts.
    "trigger_ratio threshold trigger ratio",
    "reserve_ratio keep keep_recent reserve",
    "prices price_table pricing cost_table",
    "redact redactor mask sanitize",
    "capture_content content include_content trace_include_sensitive_data record_inputs",
    "provider context source function",
    "pre before pre_hooks",
    "post after post_hooks",
    "on_timing callback on_end handler",
    "directory folder path dir root root_dir save_dir base_dir storage_dir",
    "save_dir directory folder path dir",
    "url dsn host connection_string uri redis_url address",
    "session_id thread_id conversation_id session id",
    "participants agents members",
    "agents participants members steps",
    "announcement greeting message initial_message",
    "function func fn callable",
    "description desc doc func_description",
    # Tools, and what they are given and give.
    "ask needs_approval requires_confirmation require_confirmation requires_approval approval confirm human_input "
    "interrupt_on",
    "is_read_only read_only readonly",
    "is_concurrency_safe concurrency_safe parallel sequential thread_safe",
    "preset_kwargs kwargs defaults presets partial",
    "json_schema schema args_schema parameters input_schema params_json_schema input_model",
    "max_output max_chars max_length output_limit",
    "raise_tool_errors reraise raise_errors handle_tool_error failure_error_function",
    "input arguments args parameters function_arguments kwargs",
    "output content result text value",
    "id call_id tool_call_id block_id",
    "data base64 bytes b64 content",
    "media_type mime_type mimetype content_type",
    "hint text content note message",
    "behavior action decision effect",
    "rule_content pattern content glob match subject",
    # Answers to a reply that waits.
    "confirmed approved accepted allow approve allowed",
    "confirm_results results decisions answers",
    "execution_results results outputs tool_results",
    "feedback message reason comment",
    "mode type tool_choice choice",
    "responses response messages answers replies",
    "endpoint url collector otlp_endpoint base_url",
    "service_name service project project_name name",
)


def suggest_keywords(**remedies: str) -> Callable[[_Decorated], _Decorated]:
    """Return a class decorator: a keyword that the constructor does not have is answered with the one that was meant.

    That is the parameter of the nearest name, or the one for what other frameworks call by this word. `remedies` are
    for further words: a parameter, or what to do instead. The error is an `UnknownKeywordError`. Types and signature
    stay as they are, and an error from inside the constructor leaves it as it is.
    """

    def decorate(cls: _Decorated) -> _Decorated:
        init: _Init = cls.__init__  # type: ignore[misc]  # the class's own, or one that it inherits

        @wraps(init)
        def __init__(self: object, /, *args: object, **kwargs: object) -> None:
            try:
                init(self, *args, **kwargs)
            except TypeError as error:
                if not _is_wrong_call(error):
                    raise
                title, known = _constructor(type(self), cls, init)
                unknown = _unknown_to(init, kwargs)
                if unknown:
                    raise UnknownKeywordError(_describe(title, unknown, known, remedies)) from None
                raise TypeError(_describe_misfit(error, init, title)) from None

        cls.__init__ = __init__  # type: ignore[misc]  # of the same signature
        return cls

    return decorate


def suggest_arguments(**remedies: str) -> Callable[[_Function], _Function]:
    """Return a decorator for a function or method: as `suggest_keywords`, with a `WrongCallError`."""

    def decorate(function: Any) -> Any:
        def explain(error: TypeError, kwargs: Mapping[str, object]) -> None:
            unknown = _unknown_to(function, kwargs)
            if unknown and _is_wrong_call(error):
                known = [name for name in inspect.signature(function).parameters if name != "self"]
                raise WrongCallError(_describe(function.__qualname__, unknown, known, remedies)) from None

        if inspect.iscoroutinefunction(function):  # and so must be what takes its place

            @wraps(function)
            async def call_async(*args: object, **kwargs: object) -> object:
                try:
                    coroutine = function(*args, **kwargs)
                except TypeError as error:
                    explain(error, kwargs)
                    raise
                return await coroutine

            return call_async

        @wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                explain(error, kwargs)
                raise

        return call

    return decorate


def suggest_attributes(**remedies: str) -> Callable[[_Decorated], _Decorated]:
    """Return a class decorator: an attribute that does not exist is answered with what to write instead.

    It is an `AttributeError` as before, so `hasattr` and `copy` see no difference; a subclass or an instance may have
    an attribute of that name.
    """

    def decorate(cls: _Decorated) -> _Decorated:
        for name, remedy in remedies.items():
            if not hasattr(cls, name):
                setattr(cls, name, _MissingName(name, remedy))
        cls.__dir__ = _names_of  # type: ignore[assignment]  # an editor must not offer them
        return cls

    return decorate


def compute_missing(**functions: Callable[[Any], object]) -> Callable[[_Decorated], _Decorated]:
    """Return a class decorator: an attribute that neither an instance nor its class sets is what its function returns.

    A `__getattr__` would do so as well, but a type checker would then take any name for an attribute.
    """

    def decorate(cls: _Decorated) -> _Decorated:
        for name, function in functions.items():
            setattr(cls, name, _MissingValue(name, function))
        return cls

    return decorate


def unknown_keywords(title: str, unknown: Iterable[str], known: Iterable[str], **remedies: str) -> UnknownKeywordError:
    """Return the error for keywords that `title`, a class or function, does not have; `known` are those it has."""
    return UnknownKeywordError(_describe(title, unknown, list(known), remedies))


class _MissingName:
    """Stands on the class for an attribute that people guess; a `__getattr__` would slow down every attribute."""

    # Not a data descriptor: an attribute of the instance is found before this.
    __slots__ = ("_name", "_remedy")

    def __init__(self, name: str, remedy: str) -> None:
        self._name = name
        self._remedy = remedy

    def __get__(self, instance: object, cls: type) -> NoReturn:
        # The words of Python's own error.
        owner = f"type object {cls.__name__!r}" if instance is None else f"{cls.__name__!r} object"
        raise AttributeError(f"{owner} has no attribute {self._name!r}: {self._remedy}")


class _MissingValue:
    """Stands on the class for an attribute that is computed unless it is set."""

    # Not a data descriptor: an attribute of the instance is found before this, and so is one of a subclass.
    __slots__ = ("_function", "_name")

    def __init__(self, name: str, function: Callable[[Any], object]) -> None:
        self._name = name
        self._function = function

    def __get__(self, instance: object, cls: type) -> object:
        if instance is None:  # the words of Python's own error
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {self._name!r}")
        return self._function(instance)


def _names_of(self: object) -> list[str]:
    cls = type(self)
    names = object.__dir__(self)
    return [name for name in names if not isinstance(inspect.getattr_static(cls, name, None), _MissingName)]


class _Parameters(NamedTuple):
    """What a function can be called with: `passes_on` says that it has `**`, `takes_any` that this takes any name."""

    names: list[str]
    passes_on: bool
    takes_any: bool


def _parameters_of(function: Callable[..., object]) -> _Parameters:
    names: list[str] = []
    passes_on = takes_any = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = get_args(parameter.annotation)  # `Unpack[Options]` of a TypedDict
            names += getattr(options[0], "__annotations__", ()) if options else ()
            passes_on, takes_any = True, not options
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.name != "self":
            names.append(parameter.name)
    return _Parameters(names, passes_on, takes_any)


def _constructor(cls: type, owner: type, init: _Init) -> tuple[str, list[str]]:
    """Return what to call the constructor of `owner` that an object of `cls` was made with, and its parameters.

    Those of the subclasses' constructors belong to it where these pass any keyword on.
    """
    known: list[str] = []
    for base in cls.__mro__:
        if base is owner:
            return cls.__name__, [*known, *_parameters_of(init).names]
        if "__init__" in vars(base):
            parameters = _parameters_of(vars(base)["__init__"])
            if not parameters.passes_on:  # the keyword comes from the code of that constructor
                break
            known += parameters.names
    return f"{owner.__name__}.__init__", _parameters_of(init).names


def _is_wrong_call(error: TypeError) -> bool:
    # Arguments that do not fit are refused before the function is entered, so that its frame is not in the traceback.
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def _unknown_to(function: Callable[..., object], words: Iterable[str]) -> list[str]:
    parameters = _parameters_of(function)
    return [] if parameters.takes_any else [word for word in words if word not in parameters.names]


def _describe_misfit(error: TypeError, init: _Init, title: str) -> str:
    """Return what to say of arguments that are missing, too many or given twice."""
    words = str(error).partition("() ")[2]
    if words.endswith("given"):  # Python's count includes the object itself
        words = "was given too many arguments by position"
    shown = []
    for parameter in list(inspect.signature(init).parameters.values())[1:]:
        default = parameter.empty if parameter.default is parameter.empty else ...
        shown.append(parameter.replace(annotation=parameter.empty, default=default))
    takes = str(inspect.Signature(shown)).replace("Ellipsis", "...")
    return f"{title}() {words}: it takes {takes}"


def _describe(title: str, unknown: Iterable[str], known: list[str], remedies: Mapping[str, str]) -> str:
    problems = [f"no parameter {word!r}: {_suggest(word, known, remedies)}" for word in unknown]
    return f"{title}() has {'; it has '.join(problems)}"


def _suggest(word: str, known: list[str], remedies: Mapping[str, str]) -> str:
    groups = (line.split() for line in _SAME_THING)
    synonyms = (name for group in groups if word in group for name in known if name in group)
    meant = remedies.get(word) or next(synonyms, None) or next(iter(get_close_matches(word, known, 1)), None)
    if meant in known:
        return f"did you mean {meant!r}?"
    return meant or (f"it takes {', '.join(known)}" if known else "it takes none")
