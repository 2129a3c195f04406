"""OpenAI's API at `/v1`, for clients that know no other: models, and chat completions, streamed and not."""
