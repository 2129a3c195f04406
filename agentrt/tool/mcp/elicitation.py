"""A server's questions to the user during a call, as questions of that call, and the answers for the server."""

import json
import re
from typing import Any

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestParams, ElicitResult
from pydantic_core import from_json, to_json

from agentrt._runtime.block import TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.event import ConfirmResult
from agentrt.tool.mcp.text import clean_schema, clean_text, validator_of
from agentrt.types import JSONObject, OpenQuestion

QUESTION = "mcp_elicitation"
"""The name of the calls that stand for what servers ask the user."""

_MAX_QUESTION_TEXT = 4_000
_MEANS_SECRET = re.compile(
    r"pass(?:word|phrase|wd|code)|secret|token|api.?key|access.?key|private.?key|credential|cvv|credit.?card|\bpin\b",
    re.IGNORECASE,
)


def asks_for_secret(params: ElicitRequestParams) -> bool:
    """Say whether a form asks for a secret, such as a password, a key or a token, which the protocol forbids."""
    if not isinstance(params, ElicitRequestFormParams):
        return False
    properties = params.requested_schema.get("properties")
    fields = properties.items() if isinstance(properties, dict) else ()
    texts = [params.message]  # the words count as well as the fields
    for name, field in fields:
        # "apiKey" and "api_key" are read as words.
        texts.append(re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name)).replace("_", " "))
        if isinstance(field, dict):
            # Descriptions do not count: they often say what not to write.
            texts += [str(field.get(key, "")) for key in ("title", "format")]
    return any(_MEANS_SECRET.search(text) for text in texts)


def describe_question(server: str, tool: str, params: ElicitRequestParams) -> JSONObject:
    """Return a question as it is kept, and shown to the user.

    Raises `SchemaError` for a form with a schema that cannot be used.
    """
    question: JSONObject = {"server": server, "tool": tool, "message": clean_text(params.message, _MAX_QUESTION_TEXT)}
    if isinstance(params, ElicitRequestFormParams):
        schema = params.requested_schema
        if isinstance(schema.get("properties"), dict) and schema["properties"]:
            validator_of(schema)
            question["requested_schema"] = clean_schema(schema, _MAX_QUESTION_TEXT)
    else:  # a page to open, such as one to log in on
        question["url"] = clean_text(str(params.url), _MAX_QUESTION_TEXT)
    return question


def open_questions(asked: JSONObject) -> list[OpenQuestion]:
    """Return the questions of a call as its reply asks them: a form as an external call, all else as a yes or no."""
    questions = []
    for question_id, entry in asked.items():
        question = entry["shown"]
        where = f" and to open {question['url']}" if "url" in question else ""
        words = f"the MCP server {question['server']!r} asks you{where}: {question['message']}"
        call = ToolCallBlock(question_id, QUESTION, to_json(question).decode())
        questions.append(OpenQuestion(call, "external" if "requested_schema" in question else "user", words))
    return questions


def elicit_result_of(question: JSONObject, answer: ConfirmResult | ToolResultBlock) -> ElicitResult | str:
    """Return the answer in the form of the protocol, or why it does not fit, for the question to be asked again."""
    if isinstance(answer, ConfirmResult):
        if not answer.confirmed:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=None if "url" in question else {})
    # The user declined the form, or nobody filled it in.
    if answer.state is not ToolResultState.SUCCESS:
        return ElicitResult(action="decline" if answer.state is ToolResultState.DENIED else "cancel")
    text = "".join(block.text for block in answer.output if isinstance(block, TextBlock))
    try:
        schema = question["requested_schema"]
        content = _as_form(schema, text)
        if isinstance(content, dict):
            fields = [(name, field) for name, field in schema["properties"].items() if isinstance(field, dict)]
            content = {name: field["default"] for name, field in fields if "default" in field} | content
        problem = validator_of(schema).problem(content)
    except ValueError as error:
        return f"the answer must be a JSON object that fits the schema ({error})"
    return problem or ElicitResult(action="accept", content=content)


def _as_form(schema: JSONObject, text: str) -> Any:
    """Return the values of the form: the text as JSON, or as the value of the only field, if that is a string."""
    fields = schema["properties"]
    if len(fields) == 1 and not text.lstrip().startswith("{"):
        [(name, field)] = fields.items()
        if isinstance(field, dict) and field.get("type") == "string" and (text.strip() or "default" not in field):
            return {name: text.strip()}
    return from_json(text) if text.strip() else {}


def params_of(request: Any) -> ElicitRequestParams | None:
    """Return what an input request asks the user, `None` for one that asks something else."""
    return request.params if isinstance(request, ElicitRequest) else None


def key_of(question: JSONObject) -> str:
    """Return a key that is the same for equal questions of a call."""
    return json.dumps({key: question.get(key) for key in ("message", "requested_schema", "url")}, sort_keys=True)
