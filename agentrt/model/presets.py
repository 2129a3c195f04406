"""Models by name: "openai:gpt-5-mini", "ollama:qwen3", "rules"."""

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt.errors import ConfigError
from agentrt.model.anthropic import AnthropicChatModel
from agentrt.model.bedrock import BedrockChatModel
from agentrt.model.cloud.google import GoogleAuth
from agentrt.model.gemini import GeminiChatModel
from agentrt.model.ollama import OllamaChatModel
from agentrt.model.openai import OpenAIChatModel, Quirks
from agentrt.model.openai_responses import OpenAIResponsesModel
from agentrt.model.remote.settings import check_option_names, option_names, read_url
from agentrt.model.rules import RulesChatModel
from agentrt.types import SignRequest

_logger = logging.getLogger("agentrt")
_NO_KEY = "none"  # sent to servers that ask for no key
_MODEL_VARIABLE = "AGENTRT_MODEL"
_VARIABLE_PROVIDERS = {"OPENAI_API_KEY": "openai", "OPENAI_BASE_URL": "openai", "ANTHROPIC_API_KEY": "anthropic"}
"""The provider that each variable selects, if no model is named."""


def _vertex_url(publisher: str, project: str) -> str:
    """Return the URL of a publisher's models on Vertex AI, in the region of GOOGLE_CLOUD_LOCATION."""
    location = os.environ.get("GOOGLE_CLOUD_LOCATION", "").strip() or "global"
    if not re.fullmatch(r"[a-z0-9.:-]+/[a-z0-9-]+", f"{project}/{location}"):
        raise ValueError("a project and a location are words, as in 'my-project' and 'europe-west1'")
    host = "aiplatform.googleapis.com" if location == "global" else f"{location}-aiplatform.googleapis.com"
    return f"https://{host}/v1/projects/{project}/locations/{location}/publishers/{publisher}"


@dataclass(frozen=True, slots=True)
class Preset:
    """A provider: the adapter for its API, and its differences from the adapter's own provider.

    `url_variable` is the environment variable with which the provider's users name another URL; `url_of` makes the URL
    of the variable's value. A provider without a `key_variable` asks for no key.
    """

    adapter: Callable[..., ChatModelBase]
    key_variable: str | None
    example: str
    """A model of this provider."""
    base_url: str | None = None
    url_variable: str | None = None
    url_of: Callable[[str], str] = str
    quirks: Quirks | None = None
    is_rented: bool = False
    """Whether the servers at `url_variable` are the provider's too, and need its key."""
    auth: Callable[[], SignRequest] | None = None
    """Makes the `auth=` of a provider that has no keys."""

    def build(self, model: str, settings: dict[str, Any]) -> ChatModelBase:
        """Return the model; the settings win over the preset."""
        environment_url = read_url(self.url_variable or "", self.url_of)
        url = settings.get("base_url") or environment_url or self.base_url
        own_url = settings.get("base_url") or (None if self.is_rented else environment_url)
        # Bedrock finds its key, and its address, itself.
        needs_key = not settings.get("auth") and self.adapter is not BedrockChatModel
        defaults = {"base_url": url, "api_key": self._key(own_url) if needs_key else None}
        if self.adapter is OpenAIChatModel:  # only providers of this API have quirks
            defaults |= {"key_variable": self.key_variable, "quirks": self.quirks}
        # Before any key or URL is asked for: a slip in a setting should not show up as a missing key.
        check_option_names(self.adapter, settings, option_names(self.adapter))
        if self.is_rented and url is None:
            raise ConfigError(f"{model!r} has no address: set {self.url_variable}, or give base_url=...")
        if self.auth is not None and not settings.get("auth") and not settings.get("api_key"):
            defaults |= {"auth": self.auth(), "api_key": None}
        return self.adapter(model, **defaults | {name: value for name, value in settings.items() if value is not None})

    def _key(self, own_url: str | None) -> str | None:
        # The user's own server may need no key; one that does will say so.
        has_key = os.environ.get(self.key_variable or "", "").strip()
        return _NO_KEY if not has_key and (own_url or self.key_variable is None) else None


_MAKERS = {
    "claude-": "anthropic",
    "deepseek-": "deepseek",
    "gemini-": "gemini",
    "gpt-": "openai",
    "grok-": "xai",
    "mistral-": "mistral",
    "o3": "openai",
    "o4": "openai",
}
"""The providers, by the prefixes of their models' names."""

_OTHER_NAMES = {
    "claude": "anthropic",
    "google": "gemini",
    "grok": "xai",
    "hf": "huggingface",
    "kimi": "moonshot",
    "qwen": "dashscope",
    "zhipu": "zai",
}
"""Other names of providers, and names of their models."""

PRESETS = {
    "anthropic": Preset(AnthropicChatModel, "ANTHROPIC_API_KEY", "claude-sonnet-5", url_variable="ANTHROPIC_BASE_URL"),
    # The v1 API, which needs no api-version; the name of a deployment replaces the model's. Azure shows the
    # address of a resource alone, with "/openai/v1/" behind it, or with a deployment.
    "azure": Preset(
        OpenAIChatModel,
        "AZURE_OPENAI_API_KEY",
        "my-deployment",
        url_variable="AZURE_OPENAI_ENDPOINT",
        url_of=lambda endpoint: f"{re.sub(r'(?<=[^/])/+(openai(/.*)?)?$', '', endpoint)}/openai/v1",
        quirks=Quirks("max_completion_tokens", says_reason=True, json_schema=True),
        is_rented=True,
    ),
    "bedrock": Preset(BedrockChatModel, "AWS_BEARER_TOKEN_BEDROCK", "global.anthropic.claude-sonnet-4-5-20250929-v1:0"),
    "cerebras": Preset(
        OpenAIChatModel,
        "CEREBRAS_API_KEY",
        "gpt-oss-120b",
        "https://api.cerebras.ai/v1",
        quirks=Quirks("max_completion_tokens", says_reason=True),
    ),
    "cloudflare": Preset(
        OpenAIChatModel,
        "CLOUDFLARE_API_TOKEN",
        "@cf/openai/gpt-oss-120b",
        url_variable="CLOUDFLARE_ACCOUNT_ID",
        url_of=lambda account: f"https://api.cloudflare.com/client/v4/accounts/{account}/ai/v1",
        quirks=Quirks(),
        is_rented=True,
    ),
    "cohere": Preset(
        OpenAIChatModel,
        "CO_API_KEY",
        "command-a-03-2025",
        "https://api.cohere.ai/compatibility/v1",
        quirks=Quirks(named_choice=False),
    ),
    # Reasoning models, now most of DashScope's and DeepSeek's, cannot be made to call a tool: their servers
    # refuse the request.
    "dashscope": Preset(
        OpenAIChatModel,
        "DASHSCOPE_API_KEY",
        "qwen-max",
        "https://dashscope.aliyuncs.com/compatible-mode/v1",
        quirks=Quirks(must_call=False, says_reason=True),
    ),
    "databricks": Preset(
        OpenAIChatModel,
        "DATABRICKS_TOKEN",
        "databricks-gpt-oss-120b",
        url_variable="DATABRICKS_HOST",
        url_of=lambda host: f"{'' if '://' in host else 'https://'}{host.rstrip('/')}/serving-endpoints",
        quirks=Quirks(),
        is_rented=True,
    ),
    "deepseek": Preset(
        OpenAIChatModel,
        "DEEPSEEK_API_KEY",
        "deepseek-chat",
        "https://api.deepseek.com",
        quirks=Quirks(reasoning_back=True, must_call=False, says_reason=True),
    ),
    "fireworks": Preset(
        OpenAIChatModel,
        "FIREWORKS_API_KEY",
        "accounts/fireworks/models/gpt-oss-120b",
        "https://api.fireworks.ai/inference/v1",
        quirks=Quirks(says_reason=True),
    ),
    "gemini": Preset(GeminiChatModel, "GEMINI_API_KEY", "gemini-3-flash-preview"),
    "github": Preset(OpenAIChatModel, "GITHUB_TOKEN", "openai/gpt-4.1-mini", "https://models.github.ai/inference"),
    # `messages[].name` is a 400 (console.groq.com/docs/openai).
    "groq": Preset(
        OpenAIChatModel,
        "GROQ_API_KEY",
        "openai/gpt-oss-120b",
        "https://api.groq.com/openai/v1",
        quirks=Quirks("max_completion_tokens", says_reason=True, names=False),
    ),
    "huggingface": Preset(OpenAIChatModel, "HF_TOKEN", "openai/gpt-oss-120b", "https://router.huggingface.co/v1"),
    # The user's proxy, which speaks to any provider.
    "litellm": Preset(
        OpenAIChatModel,
        "LITELLM_PROXY_API_KEY",
        "gpt-5-mini",
        "http://localhost:4000/v1",
        url_variable="LITELLM_PROXY_API_BASE",
        quirks=Quirks(),
    ),
    "llama.cpp": Preset(OpenAIChatModel, None, "any", "http://localhost:8080/v1", quirks=Quirks(named_choice=False)),
    "lmstudio": Preset(OpenAIChatModel, None, "qwen3", "http://localhost:1234/v1", quirks=Quirks(named_choice=False)),
    # Other ids of tool calls are a 400 (code 3280), and its streams always report tokens.
    "mistral": Preset(
        OpenAIChatModel,
        "MISTRAL_API_KEY",
        "mistral-large-latest",
        "https://api.mistral.ai/v1",
        quirks=Quirks(stream_usage=False, says_reason=True, names=False, nine_letter_ids=True),
    ),
    # Its reasoning models require their thoughts back, and cannot be made to call a tool.
    "moonshot": Preset(
        OpenAIChatModel,
        "MOONSHOT_API_KEY",
        "kimi-k2.6",
        "https://api.moonshot.ai/v1",
        quirks=Quirks(reasoning_back=True, must_call=False),
    ),
    "nvidia": Preset(OpenAIChatModel, "NVIDIA_API_KEY", "openai/gpt-oss-120b", "https://integrate.api.nvidia.com/v1"),
    "ollama": Preset(OllamaChatModel, "OLLAMA_API_KEY", "qwen3"),
    "openai": Preset(OpenAIChatModel, "OPENAI_API_KEY", "gpt-5-mini", url_variable="OPENAI_BASE_URL"),
    "openai-responses": Preset(OpenAIResponsesModel, "OPENAI_API_KEY", "gpt-5-mini", url_variable="OPENAI_BASE_URL"),
    "openrouter": Preset(OpenAIChatModel, "OPENROUTER_API_KEY", "openai/gpt-5-mini", "https://openrouter.ai/api/v1"),
    "perplexity": Preset(
        OpenAIChatModel, "PERPLEXITY_API_KEY", "sonar-pro", "https://api.perplexity.ai", quirks=Quirks(must_call=False)
    ),
    "together": Preset(OpenAIChatModel, "TOGETHER_API_KEY", "openai/gpt-oss-120b", "https://api.together.xyz/v1"),
    "vertex": Preset(
        GeminiChatModel,
        None,
        "gemini-3-flash-preview",
        url_variable="GOOGLE_CLOUD_PROJECT",
        url_of=partial(_vertex_url, "google"),
        is_rented=True,
        auth=GoogleAuth,
    ),
    "vertex-claude": Preset(
        AnthropicChatModel,
        None,
        "claude-sonnet-4-5@20250929",
        url_variable="GOOGLE_CLOUD_PROJECT",
        url_of=partial(_vertex_url, "anthropic"),
        is_rented=True,
        auth=GoogleAuth,
    ),
    "vllm": Preset(OpenAIChatModel, None, "Qwen/Qwen3-8B", "http://localhost:8000/v1", quirks=Quirks()),
    "xai": Preset(OpenAIChatModel, "XAI_API_KEY", "grok-4.7", "https://api.x.ai/v1", quirks=Quirks(says_reason=True)),
    # It takes no `tool_choice` but "auto".
    "zai": Preset(
        OpenAIChatModel, "ZAI_API_KEY", "glm-5", "https://api.z.ai/api/paas/v4", quirks=Quirks(must_call=False)
    ),
}


def chat_model(spec: str | ChatModelBase, **settings: Any) -> ChatModelBase:
    """Return the model that a spec names: "provider:model", or "rules" for the offline one.

    The settings go to the model's constructor, such as `base_url`, `api_key` or `temperature`. A model is returned as
    it is. Raises `ConfigError` for a spec that names no model, and when the provider's key or package is missing.
    """
    if isinstance(spec, ChatModelBase):
        if settings:
            raise ConfigError(
                f"chat_model() was given a finished model and the settings {sorted(settings)}: give them to its "
                f"constructor"
            )
        return spec
    if not isinstance(spec, str):
        raise ConfigError(f"chat_model() takes a str such as 'openai:gpt-5-mini', or a model, not {spec!r:.100}")
    provider, _, model = (part.strip() for part in spec.partition(":"))
    if provider == "rules":
        if model:
            raise ConfigError(f"{spec!r:.100} names no model: there is only one that follows rules, so write 'rules'")
        check_option_names(RulesChatModel, settings, option_names(RulesChatModel))
        return RulesChatModel(**settings)
    preset = PRESETS.get(provider)
    if preset is None:
        meant = _OTHER_NAMES.get(provider.lower().removesuffix("ai"))
        matches = (
            [f"{meant}:{model}".rstrip(":")] if meant else get_close_matches(provider.lower(), [*PRESETS, "rules"], 1)
        )
        if ":" not in spec:  # the name of a model alone
            makers = (maker for prefix, maker in _MAKERS.items() if provider.startswith(prefix))
            matches = [f"{maker}:{provider}" for maker in makers] or matches
        guess = f"did you mean {matches[0]!r:.100}? " if matches else ""
        raise ConfigError(
            f"{spec!r:.100} names an unknown provider: {guess}write 'provider:model', as in 'openai:gpt-5-mini', "
            f"with one of {', '.join(PRESETS)}, or write 'rules'; for another server that speaks OpenAI's API, write "
            f"'openai:MODEL' and give base_url=..."
        )
    if not model:
        raise ConfigError(f"{spec!r} names no model: write '{provider}:MODEL', as in '{provider}:{preset.example}'")
    built = preset.build(model, settings)
    built.provider = provider
    return built


def default_model(*, offline: bool = True) -> ChatModelBase:
    """Return the model that the environment selects, or else the offline rules, with a warning in the log.

    AGENTRT_MODEL holds a spec for `chat_model`. Without it, OPENAI_API_KEY or OPENAI_BASE_URL selects a model of
    OpenAI, and ANTHROPIC_API_KEY for one of Anthropic. With `offline=False` it raises `ConfigError` where none of them
    is set: servers should not answer by rules.
    """
    model = environment_model()
    if model is not None:
        return model
    if not offline:
        raise ConfigError(f"no model is configured: {_describe_missing_model()}")
    _logger.warning("offline rules answer, not a language model: %s", _describe_missing_model())
    return RulesChatModel()


def environment_model() -> ChatModelBase | None:
    """Return the model that the environment selects, `None` if it selects none."""
    spec = os.environ.get(_MODEL_VARIABLE, "").strip()
    if spec:
        try:
            return chat_model(spec)
        except ConfigError as error:
            raise ConfigError(f"the environment variable {_MODEL_VARIABLE} names no usable model: {error}") from error
    providers = (provider for variable, provider in _VARIABLE_PROVIDERS.items() if _is_set(variable))
    provider = next(providers, None)
    return None if provider is None else chat_model(f"{provider}:{PRESETS[provider].example}")


def _describe_missing_model() -> str:
    expected = [_MODEL_VARIABLE, *_VARIABLE_PROVIDERS]
    hints = []
    examples = {preset.key_variable: f"{name}:{preset.example}" for name, preset in PRESETS.items()}
    for variable in filter(_is_set, os.environ):  # only their names: a value may be a secret
        if variable in examples:
            hints.append(f"{variable} is set, so write {_MODEL_VARIABLE}={examples[variable]}")
        elif similar := get_close_matches(variable.upper(), expected, 1, cutoff=0.8):
            hints.append(f"{variable} is set: did you mean {similar[0]}?")
    remedy = "; ".join(hints) or f"set one of them, as in {_MODEL_VARIABLE}=ollama:qwen3"
    return f"none of {', '.join(expected)} is set ({remedy})"


def _is_set(variable: str) -> bool:
    return bool(os.environ.get(variable, "").strip())
