"""The table of known models: one line for each group, with the names that its provider gives it.

Made by `python -m scripts.catalog` from the data of models.dev, and from `scripts/catalog/kept.txt` for what that lacks
or has wrong: change that file, and never this one. Where sources differ, the table has the smaller number and the wider
ability: a model that lacks an ability says so when it is asked, and one that is never asked cannot.

Models that many servers offer under one name are listed for a server ("groq:..."), whose limits these are.
"""

# Names; the most tokens in all, of a request (if that is less) and of an answer; what it takes besides text: image,
# audio, video, PDF; whether it has tools, a mode for JSON schemas, and reasoning; the month when this was looked up.
# "-": none or no, "?": not known.
MODELS = """
gpt-3.5-turbo gpt-3.5-turbo-0125 gpt-3.5-turbo-1106         |   16385 |      ? |   4096 | -    | t-- | 2026-11
gpt-4                                                       |    8192 |      ? |      ? | -    | t-- | 2026-11
gpt-4-turbo                                                 |  128000 |      ? |   4096 | ip   | t-- | 2026-11
gpt-4.1 gpt-4.1-mini gpt-4.1-nano                           | 1047576 |      ? |  32768 | ip   | ts- | 2026-11
gpt-4o gpt-4o-mini                                          |  128000 |      ? |  16384 | ip   | ts- | 2026-11
gpt-4o-2024-05-13                                           |  128000 |      ? |   4096 | ip   | t?- | 2026-11
gpt-5 gpt-5-mini gpt-5-nano gpt-5.1 gpt-5.2 gpt-5.3-codex   |  400000 | 272000 | 128000 | ip   | tsr | 2026-11
gpt-5.4-mini gpt-5.4-nano gpt-daybreak-red-latest           |  400000 | 272000 | 128000 | ip   | tsr | 2026-11
gpt-5-codex gpt-5.1-codex gpt-5.1-codex-mini                |  400000 | 272000 | 128000 | ip   | tsr | 2026-11
gpt-5.1-codex-max gpt-5.2-codex                             |  400000 | 272000 | 128000 | ip   | tsr | 2026-11
gpt-5-pro                                                   |  400000 | 272000 | 272000 | ip   | tsr | 2026-11
gpt-5.2-pro                                                 |  400000 | 272000 | 128000 | ip   | t?r | 2026-11
gpt-5.3-codex-spark                                         |  128000 |      ? |  32000 | ip   | tsr | 2026-11
gpt-5.4 gpt-5.5 gpt-5.5-pro gpt-5.6 gpt-5.6-luna            | 1050000 | 922000 | 128000 | ip   | tsr | 2026-11
gpt-5.6-sol gpt-5.6-terra gpt-6-astra gpt-6-luna gpt-6-sol  | 1050000 | 922000 | 128000 | ip   | tsr | 2026-11
gpt-6.1-sol gpt-6.1-terra gpt-daybreak-blue-latest          | 1050000 | 922000 | 128000 | ip   | tsr | 2026-11
gpt-5.4-pro                                                 | 1050000 | 922000 | 128000 | ip   | t-r | 2026-11
o1 o1-pro o3 o3-pro o4-mini                                 |  200000 |      ? | 100000 | ip   | tsr | 2026-11
o3-mini                                                     |  200000 |      ? | 100000 | p    | tsr | 2026-11
claude-fable-5 claude-fable-5-1 claude-haiku-5-5            | 1000000 |      ? | 128000 | ip   | tsr | 2026-11
claude-opus-4-6 claude-opus-4-7 claude-opus-4-8             | 1000000 |      ? | 128000 | ip   | tsr | 2026-11
claude-opus-5 claude-opus-5-5 claude-sonnet-4-6             | 1000000 |      ? | 128000 | ip   | tsr | 2026-11
claude-sonnet-5 claude-sonnet-5-5 claude-mythos-preview     | 1000000 |      ? | 128000 | ip   | tsr | 2026-11
claude-mythos-5 claude-mythos-5-1                           | 1000000 |      ? | 128000 | ip   | tsr | 2026-11
claude-haiku-4-5 claude-opus-4-5 claude-sonnet-4-5          |  200000 |      ? |  64000 | ip   | tsr | 2026-11
gemini-2.5-computer-use-preview-10-2025                     |  128000 |      ? |  64000 | ip   | t?r | 2026-11
gemini-2.5-flash gemini-2.5-flash-lite gemini-2.5-pro       | 1048576 |      ? |  65536 | iavp | tsr | 2026-11
gemini-3-flash-preview gemini-3.1-flash-lite                | 1048576 |      ? |  65536 | iavp | tsr | 2026-11
gemini-3.1-flash-lite-preview gemini-3.1-pro-preview        | 1048576 |      ? |  65536 | iavp | tsr | 2026-11
gemini-3.1-pro-preview-customtools gemini-3.5-flash         | 1048576 |      ? |  65536 | iavp | tsr | 2026-11
gemini-3.5-flash-lite gemini-3.6-flash gemini-3.7-flash     | 1048576 |      ? |  65536 | iavp | tsr | 2026-11
gemini-3.8-flash gemini-flash-latest                        | 1048576 |      ? |  65536 | iavp | tsr | 2026-11
gemini-flash-lite-latest gemini-pro-latest                  | 1048576 |      ? |  65536 | iavp | tsr | 2026-11
gemini-4-argon                                              | 1048576 |      ? |  32768 | iavp | tsr | 2026-11
gemma-4-26b-a4b-it gemma-4-31b-it                           |  262144 |      ? |  32768 | ip   | tsr | 2026-11
codestral-latest codestral-2508                             |  256000 |      ? |   4096 | -    | t?- | 2026-11
devstral-2512 devstral-latest devstral-medium-latest        |  262144 |      ? |      ? | -    | t?- | 2026-11
devstral-medium-2507 devstral-small-2505                    |  128000 |      ? |      ? | -    | t?- | 2026-11
devstral-small-2507 mistral-nemo open-mistral-nemo          |  128000 |      ? |      ? | -    | t?- | 2026-11
amazon.nova-micro                                           |  128000 |      ? |      ? | -    | t?- | 2026-11
labs-devstral-small-2512                                    |  256000 |      ? |      ? | ip   | t?- | 2026-11
magistral-medium-latest                                     |  128000 |      ? |  16384 | ?    | t?r | 2026-11
magistral-small                                             |  128000 |      ? |      ? | -    | t?r | 2026-11
ministral-3b-latest ministral-8b-latest ministral-3b-2512   |  128000 |      ? |      ? | ip   | t?? | 2026-11
ministral-8b-2512                                           |  128000 |      ? |      ? | ip   | t?? | 2026-11
mistral-large-2411 groq:moonshotai/kimi-k2-instruct         |  131072 |      ? |  16384 | -    | t?- | 2026-11
mistral-large-2512 mistral-large-latest mistral-medium-2508 |  262144 |      ? |      ? | ip   | t?- | 2026-11
mistral-medium-2505                                         |  131072 |      ? |      ? | ip   | t?- | 2026-11
mistral-medium-2604 mistral-medium-latest                   |  262144 |      ? |      ? | ip   | tsr | 2026-11
mistral-small-2506                                          |  128000 |      ? |  16384 | ip   | t?- | 2026-11
mistral-small-2603 mistral-small-latest                     |  256000 |      ? |      ? | ip   | t?r | 2026-11
open-mistral-7b                                             |    8000 |      ? |      ? | -    | t?- | 2026-11
open-mixtral-8x22b                                          |   64000 |      ? |      ? | -    | t?- | 2026-11
open-mixtral-8x7b                                           |   32000 |      ? |      ? | -    | t?- | 2026-11
pixtral-12b pixtral-large-latest                            |  128000 |      ? |      ? | ip   | t?- | 2026-11
groq:allam-2-7b                                             |    4096 |      ? |      ? | -    | -?- | 2026-11
groq:deepseek-r1-distill-llama-70b groq:groq/compound       |  131072 |      ? |   8192 | -    | t?r | 2026-11
groq:groq/compound-mini                                     |  131072 |      ? |   8192 | -    | t?r | 2026-11
groq:gemma2-9b-it groq:llama3-70b-8192 groq:llama3-8b-8192  |    8192 |      ? |      ? | -    | t?- | 2026-11
groq:llama-3.1-8b-instant                                   |  131072 |      ? |      ? | -    | t?- | 2026-11
groq:llama-3.3-70b-versatile                                |  131072 |      ? |  32768 | -    | t?- | 2026-11
groq:meta-llama/llama-4-maverick-17b-128e-instruct          |  131072 |      ? |   8192 | i    | ts- | 2026-11
groq:meta-llama/llama-4-scout-17b-16e-instruct              |  131072 |      ? |   8192 | i    | ts- | 2026-11
groq:mistral-saba-24b                                       |   32768 |      ? |      ? | -    | t?- | 2026-11
groq:moonshotai/kimi-k2-instruct-0905                       |  262144 |      ? |  16384 | -    | ts- | 2026-11
groq:openai/gpt-oss-120b groq:openai/gpt-oss-20b            |  131072 |      ? |  65536 | -    | tsr | 2026-11
groq:qwen-qwq-32b                                           |  131072 |      ? |  16384 | -    | t?r | 2026-11
groq:qwen/qwen3-32b                                         |  131072 |      ? |  40960 | -    | t?r | 2026-11
grok-4.20-0309-non-reasoning                                | 1000000 |      ? |  30000 | ip   | ts- | 2026-11
grok-4.20-0309-reasoning grok-4.3 grok-4.20 grok-4.3-latest | 1000000 |      ? |  30000 | ip   | tsr | 2026-11
grok-4.5 grok-4.5-latest grok-4.6 grok-4.7                  |  500000 |      ? |      ? | ip   | tsr | 2026-11
grok-build-0.1 grok-4 grok-4-0709 grok-4-latest             |  256000 |      ? |      ? | ip   | tsr | 2026-11
grok-code-fast-1                                            |  256000 |      ? |      ? | ip   | tsr | 2026-11
deepseek-flash deepseek-v4-flash                            | 1000000 |      ? | 384000 | i    | tsr | 2026-11
deepseek-v4-flash-vision-exp                                | 1000000 |      ? | 384000 | i    | tsr | 2026-11
deepseek-v4-pro                                             | 1000000 |      ? | 384000 | -    | tsr | 2026-11
gpt-4-0613                                                  |    8192 |      ? |   8192 | -    | t-- | 2026-11
gpt-audio gpt-audio-mini gpt-audio-1.5                      |  128000 |      ? |  16384 | a    | t?- | 2026-11
claude-opus-4 claude-opus-4-0 claude-opus-4-1               |  200000 |      ? |  32000 | ip   | t-r | 2026-11
claude-sonnet-4 claude-sonnet-4-0                           |  200000 |      ? |  64000 | ip   | t-r | 2026-11
claude-fable-5-2 claude-mythos-5-2                          | 1000000 |      ? |      ? | ?    | ??? | 2026-11
mistral-large-4                                             | 1048576 |      ? |      ? | ip   | tsr | 2026-11
mistral-medium-3-5                                          |  262144 |      ? |      ? | ip   | t?? | 2026-11
voxtral-small-latest voxtral-small-2507                     |   32768 |      ? |      ? | a    | t?- | 2026-11
grok-3 grok-3-fast                                          |  131072 |      ? |      ? | -    | ts- | 2026-11
grok-3-mini grok-3-mini-fast                                |  131072 |      ? |      ? | -    | tsr | 2026-11
grok-4-fast grok-4-fast-reasoning grok-4-1-fast-reasoning   | 2000000 |      ? |      ? | ip   | tsr | 2026-11
grok-4-fast-non-reasoning grok-4-1-fast-non-reasoning       | 2000000 |      ? |      ? | ip   | ts- | 2026-11
deepseek-chat                                               |  128000 |      ? |   8192 | -    | t?? | 2026-11
deepseek-reasoner                                           |  128000 |      ? |  65536 | -    | ??r | 2026-11
qwen-max                                                    |   32768 |  30720 |   8192 | -    | t?? | 2026-11
qwen-plus qwen-plus-2025-01-25 qwen-plus-2025-04-28         |  131072 | 129024 |   8192 | -    | t?? | 2026-11
qwen-turbo                                                  |  131072 | 129024 |   8192 | -    | t?? | 2026-11
qwen-plus-latest qwen-plus-2025-07-28 qwen-plus-2025-09-11  | 1000000 | 997952 |  32768 | -    | t?r | 2026-11
qwen-flash qwen3-coder-flash qwen3-coder-plus               | 1000000 | 997952 |  32768 | -    | t?? | 2026-11
qwen3-max qwen3-max-preview                                 |  262144 | 258048 |  32768 | -    | t?? | 2026-11
qwen3-vl-plus                                               |  262144 | 260096 |  32768 | iv   | t?? | 2026-11
qwen3.5-plus                                                | 1000000 | 991808 |  65536 | iv   | t?r | 2026-11
qwen3.7-max                                                 | 1000000 | 991808 |  65536 | ?    | tsr | 2026-11
qwen3.7-plus                                                | 1000000 | 991808 |  65536 | iv   | tsr | 2026-11
qwen3.8-max qwen3.8-flash                                   | 1000000 | 991808 | 131072 | iv   | tsr | 2026-11
qwen3.8-omni-flash                                          | 1000000 | 991808 | 131072 | iav  | tsr | 2026-11
bedrock:openai.gpt-oss-120b bedrock:openai.gpt-oss-20b      |  128000 |      ? |  16384 | -    | t?r | 2026-11
bedrock:openai.gpt-oss-120b-1:0                             |  128000 |      ? |  16384 | -    | t?r | 2026-11
bedrock:openai.gpt-oss-20b-1:0                              |  128000 |      ? |  16384 | -    | t?r | 2026-11
amazon.nova-lite amazon.nova-pro                            |  300000 |      ? |      ? | ivp  | t?- | 2026-11
amazon.nova-premier                                         | 1000000 |      ? |      ? | ivp  | t?- | 2026-11
amazon.nova-2-lite                                          | 1000000 |      ? |      ? | ivp  | t?r | 2026-11
"""
