"""The providers' own clients submit to the same server, and read from it: what they send, it takes from us as well."""

import io
import json
from typing import Any

import httpx2
import pytest

from tests.model.apis.rules import check_request
from tests.model.batch.batch_server import (
    KEY,
    URLS,
    BatchServer,
    Transport,
    model_of,
    questions,
    sync_transport,
    texts_of,
)

ANSWERS = ["answer 0", "answer 1"]


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_openai_reads_our_batch_and_we_read_theirs(api: str) -> None:
    import openai
    from openai.types import Batch, FileObject
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response

    server = BatchServer()
    http = httpx2.AsyncClient(transport=Transport(server))
    client = openai.AsyncOpenAI(api_key=KEY, base_url=URLS[api], http_client=http, max_retries=0)
    model = model_of(api, server)
    ours = await model.batch(questions(2), name="n")
    [check_request(api, body) for body in server.bodies]

    await client.batches.retrieve(ours.id)
    record = await client.batches.retrieve(ours.id)
    Batch.model_validate(record.to_dict(), strict=True)
    assert record.output_file_id is not None
    lines = (await client.files.content(record.output_file_id)).text.splitlines()
    answer_type = ChatCompletion if api == "chat" else Response
    read: list[Any] = [answer_type.model_validate(json.loads(line)["response"]["body"]) for line in lines]
    texts = [each.output_text if api == "responses" else each.choices[0].message.content for each in read]
    assert texts == ANSWERS[::-1]

    endpoint: Any = "/v1/chat/completions" if api == "chat" else "/v1/responses"
    requests = [
        {"custom_id": f"request-{n}", "method": "POST", "url": endpoint, "body": body}
        for n, body in enumerate(server.bodies)
    ]
    content = "\n".join(map(json.dumps, requests)).encode()
    file = await client.files.create(purpose="batch", file=("requests.jsonl", content))
    FileObject.model_validate(file.to_dict(), strict=True)
    theirs = await client.batches.create(completion_window="24h", endpoint=endpoint, input_file_id=file.id)
    results = await model.resume_batch(theirs.id, poll_seconds=0.001).wait()
    assert texts_of(results) == ANSWERS
    await client.close()


async def test_anthropic_reads_our_batch_and_we_read_theirs() -> None:
    import anthropic
    from anthropic.types.messages import MessageBatch

    server = BatchServer()
    http = httpx2.AsyncClient(transport=Transport(server))
    client = anthropic.AsyncAnthropic(api_key=KEY, base_url=URLS["anthropic"], http_client=http, max_retries=0)
    model = model_of("anthropic", server)
    ours = await model.batch(questions(2))
    [check_request("anthropic", body) for body in server.bodies]

    await client.messages.batches.retrieve(ours.id)
    record = await client.messages.batches.retrieve(ours.id)
    MessageBatch.model_validate_json(record.to_json(), strict=True)
    assert record.processing_status == "ended"

    requests: Any = [{"custom_id": f"request-{n}", "params": body} for n, body in enumerate(server.bodies)]
    theirs = await client.messages.batches.create(requests=requests)
    results = await model.resume_batch(theirs.id, poll_seconds=0.001).wait()
    assert texts_of(results) == ANSWERS
    await client.close()


async def test_google_reads_our_batch_and_we_read_theirs() -> None:
    from google import genai
    from google.genai import types as google

    server = BatchServer()
    options = google.HttpOptions(
        base_url="https://google.test", api_version="v1beta", client_args={"transport": sync_transport(server)}
    )
    client = genai.Client(api_key=KEY, http_options=options)
    model = model_of("gemini", server)
    ours = await model.batch(questions(2), name="n")
    [check_request("gemini", body) for body in server.bodies]

    client.batches.get(name=ours.id)
    record = client.batches.get(name=ours.id)
    assert (record.state, record.display_name) == (google.JobState.JOB_STATE_SUCCEEDED, "agentrt: n")
    assert record.dest.file_name is not None
    lines = client.files.download(file=record.dest.file_name).splitlines()
    read = [google.GenerateContentResponse.model_validate(json.loads(line)["response"]) for line in lines]
    assert [answer.text for answer in read] == ANSWERS[::-1]

    requests = [{"key": f"request-{n}", "request": body} for n, body in enumerate(server.bodies)]
    content = io.BytesIO("\n".join(map(json.dumps, requests)).encode())
    file = client.files.upload(file=content, config=google.UploadFileConfig(mime_type="application/jsonl"))
    theirs = client.batches.create(model="gemini-test", src=file.name or "")
    results = await model.resume_batch(theirs.name or "", poll_seconds=0.001).wait()
    assert texts_of(results) == ANSWERS
    client.close()
