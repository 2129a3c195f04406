"""The table of known models: one line for each, with the names that its provider gives it.

Where they come from, in November 2026: the data of models.dev in the `_profiles.py` files of langchain-openai 1.7.4,
langchain-anthropic 1.7.10, langchain-google-genai 4.4.2, langchain-mistralai 1.1.6, langchain-groq 1.1.3, langchain-xai
1.3.0 and langchain-deepseek 1.1.1; the file model_prices_and_context_window_backup.json of litellm 1.109.1; context
sizes in genai-prices 0.2.3. Where they differ, the table has the smaller number and the wider ability: a model that
lacks an ability says so when it is asked, and one that is never asked cannot. What only one of them denies is unknown.

Models that many servers offer under one name are listed for a server ("groq:..."), whose limits these are.
"""

__all__ = ["MODELS"]

# Names; the most tokens in all, of a request (if that is less) and of an answer; what it takes besides text: image,
# audio, video, PDF; then whether it has tools, a mode for JSON schemas, and reasoning. "-": none or no, "?": not known.
MODELS = """
gpt-3.5-turbo gpt-3.5-turbo-0125 gpt-3.5-turbo-1106         |   16385 |      ? |   4096 | -    | t--
gpt-4 gpt-4-0613                                            |    8192 |      ? |   8192 | -    | t--
gpt-4-turbo                                                 |  128000 |      ? |   4096 | ip   | t--
gpt-4o-2024-05-13                                           |  128000 |      ? |   4096 | ip   | t?-
gpt-4o gpt-4o-mini                                          |  128000 |      ? |  16384 | ip   | ts-
gpt-4.1 gpt-4.1-mini gpt-4.1-nano                           | 1047576 |      ? |  32768 | ip   | ts-
gpt-5 gpt-5-mini gpt-5-nano gpt-5.1 gpt-5.2                 |  400000 | 272000 | 128000 | ip   | tsr
gpt-5-codex gpt-5.1-codex gpt-5.1-codex-mini                |  400000 | 272000 | 128000 | ip   | tsr
gpt-5.1-codex-max gpt-5.2-codex gpt-5.3-codex               |  400000 | 272000 | 128000 | ip   | tsr
gpt-5-pro                                                   |  400000 | 272000 | 272000 | ip   | tsr
gpt-5.2-pro                                                 |  400000 | 272000 | 128000 | ip   | t?r
gpt-5.4-mini gpt-5.4-nano                                   |  400000 | 272000 | 128000 | ip   | tsr
gpt-5.4 gpt-5.5                                             | 1050000 | 922000 | 128000 | ip   | tsr
gpt-5.4-pro                                                 | 1050000 | 922000 | 128000 | ip   | t-r
gpt-5.5-pro                                                 | 1050000 | 922000 | 128000 | ip   | t?r
gpt-5.6 gpt-5.6-luna gpt-5.6-sol gpt-5.6-terra              | 1050000 | 922000 | 128000 | ip   | tsr
gpt-6-astra gpt-6-luna gpt-6-sol gpt-6.1-sol gpt-6.1-terra  | 1050000 | 922000 | 128000 | ip   | tsr
gpt-audio gpt-audio-mini gpt-audio-1.5                      |  128000 |      ? |  16384 | a    | t?-
o1 o1-pro o3 o3-pro o4-mini                                 |  200000 |      ? | 100000 | ip   | tsr
o3-mini                                                     |  200000 |      ? | 100000 | p    | tsr

claude-opus-4 claude-opus-4-0 claude-opus-4-1               |  200000 |      ? |  32000 | ip   | t-r
claude-sonnet-4 claude-sonnet-4-0                           |  200000 |      ? |  64000 | ip   | t-r
claude-haiku-4-5 claude-opus-4-5 claude-sonnet-4-5          |  200000 |      ? |  64000 | ip   | tsr
claude-opus-4-6 claude-opus-4-7 claude-opus-4-8             | 1000000 |      ? | 128000 | ip   | tsr
claude-sonnet-4-6 claude-sonnet-5 claude-opus-5             | 1000000 |      ? | 128000 | ip   | tsr
claude-haiku-5-5 claude-sonnet-5-5 claude-opus-5-5          | 1000000 |      ? | 128000 | ip   | tsr
claude-fable-5 claude-fable-5-1                             | 1000000 |      ? | 128000 | ip   | tsr
claude-mythos-preview claude-mythos-5 claude-mythos-5-1     | 1000000 |      ? | 128000 | ip   | tsr
claude-fable-5-2 claude-mythos-5-2                          | 1000000 |      ? |      ? | ?    | ???

gemini-2.5-flash gemini-2.5-flash-lite gemini-2.5-pro       | 1048576 |      ? |  65536 | iavp | tsr
gemini-3-flash-preview gemini-3.1-pro-preview               | 1048576 |      ? |  65536 | iavp | tsr
gemini-3.1-flash-lite gemini-3.1-flash-lite-preview         | 1048576 |      ? |  65536 | iavp | tsr
gemini-3.5-flash gemini-3.5-flash-lite gemini-3.6-flash     | 1048576 |      ? |  65536 | iavp | tsr
gemini-3.7-flash gemini-3.8-flash gemini-4-argon            | 1048576 |      ? |  65536 | iavp | tsr
gemini-flash-latest gemini-flash-lite-latest                | 1048576 |      ? |  65536 | iavp | tsr

codestral-latest codestral-2508                             |  128000 |      ? |      ? | -    | ts-
magistral-medium-latest                                     |  128000 |      ? |      ? | ?    | tsr
ministral-3b-latest ministral-3b-2512                       |  128000 |      ? |      ? | ip   | ts?
ministral-8b-latest ministral-8b-2512                       |  128000 |      ? |      ? | ip   | ts?
mistral-large-2411                                          |  131072 |      ? |      ? | -    | t?-
mistral-large-latest mistral-large-2512                     |  262144 |      ? |      ? | ip   | ts-
mistral-large-4                                             | 1048576 |      ? |      ? | ip   | tsr
mistral-medium-2505                                         |  131072 |      ? |      ? | ip   | ts-
mistral-medium-2508 mistral-medium-3-5 mistral-medium-2604  |  262144 |      ? |      ? | ip   | ts?
mistral-medium-latest                                       |  262144 |      ? |      ? | ip   | ts?
mistral-small-2506                                          |  128000 |      ? |  16384 | ip   | ts-
mistral-small-latest mistral-small-2603                     |  256000 |      ? |      ? | ip   | tsr
pixtral-large-latest                                        |  128000 |      ? |      ? | ip   | ts-
voxtral-small-latest voxtral-small-2507                     |   32768 |      ? |      ? | a    | ts-

groq:openai/gpt-oss-120b groq:openai/gpt-oss-20b            |  131072 |      ? |  65536 | -    | tsr
groq:llama-3.1-8b-instant                                   |  131072 |      ? | 131072 | -    | t?-
groq:llama-3.3-70b-versatile                                |  131072 |      ? |  32768 | -    | t?-
groq:meta-llama/llama-4-scout-17b-16e-instruct              |  131072 |      ? |   8192 | i    | ts-
groq:moonshotai/kimi-k2-instruct-0905                       |  262144 |      ? |  16384 | -    | ts-
groq:qwen/qwen3-32b                                         |  131072 |      ? |  40960 | -    | t?r

grok-3 grok-3-fast                                          |  131072 |      ? |      ? | -    | ts-
grok-3-mini grok-3-mini-fast                                |  131072 |      ? |      ? | -    | tsr
grok-4 grok-4-0709 grok-4-latest                            |  256000 |      ? |      ? | ip   | tsr
grok-4-fast grok-4-fast-reasoning grok-4-1-fast-reasoning   | 2000000 |      ? |      ? | ip   | tsr
grok-4-fast-non-reasoning grok-4-1-fast-non-reasoning       | 2000000 |      ? |      ? | ip   | ts-
grok-4.20 grok-4.20-0309-reasoning grok-4.3 grok-4.3-latest | 1000000 |      ? |      ? | ip   | tsr
grok-4.20-0309-non-reasoning                                | 1000000 |      ? |      ? | ip   | ts-
grok-4.5 grok-4.5-latest grok-4.6 grok-4.7                  |  500000 |      ? |      ? | ip   | tsr
grok-build-0.1 grok-code-fast-1                             |  256000 |      ? |      ? | ip   | tsr

deepseek-chat                                               |  128000 |      ? |   8192 | -    | t??
deepseek-reasoner                                           |  128000 |      ? |  65536 | -    | ??r
deepseek-flash deepseek-v4-flash                            | 1000000 |      ? | 384000 | i    | tsr
deepseek-v4-pro                                             | 1000000 |      ? | 384000 | -    | tsr

qwen-max                                                    |   32768 |  30720 |   8192 | -    | t??
qwen-plus qwen-plus-2025-01-25 qwen-plus-2025-04-28         |  131072 | 129024 |   8192 | -    | t??
qwen-plus-latest qwen-plus-2025-07-28 qwen-plus-2025-09-11  | 1000000 | 997952 |  32768 | -    | t?r
qwen-turbo                                                  |  131072 | 129024 |   8192 | -    | t??
qwen-flash qwen3-coder-flash qwen3-coder-plus               | 1000000 | 997952 |  32768 | -    | t??
qwen3-max qwen3-max-preview                                 |  262144 | 258048 |  32768 | -    | t??
qwen3-vl-plus                                               |  262144 | 260096 |  32768 | iv   | t??
qwen3.5-plus                                                | 1000000 | 991808 |  65536 | iv   | t?r
qwen3.7-max                                                 | 1000000 | 991808 |  65536 | ?    | tsr
qwen3.7-plus                                                | 1000000 | 991808 |  65536 | iv   | tsr
qwen3.8-max qwen3.8-flash                                   | 1000000 | 991808 | 131072 | iv   | tsr
qwen3.8-omni-flash                                          | 1000000 | 991808 | 131072 | iav  | tsr

bedrock:openai.gpt-oss-120b bedrock:openai.gpt-oss-20b      |  128000 |      ? |  16384 | -    | t?r
"""
