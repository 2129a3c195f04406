"""Refusals in the form of the protocol: a JSON-RPC error, whose `data` has the name of the reason."""

from typing import Any

from agentrt.serving.failure import ApiError

ERROR_NUMBERS = {
    "TASK_NOT_FOUND": -32001,
    "TASK_NOT_CANCELABLE": -32002,
    "PUSH_NOTIFICATION_NOT_SUPPORTED": -32003,
    "UNSUPPORTED_OPERATION": -32004,
    "CONTENT_TYPE_NOT_SUPPORTED": -32005,
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": -32007,
    "VERSION_NOT_SUPPORTED": -32009,
    "INVALID_REQUEST": -32600,
    "METHOD_NOT_FOUND": -32601,
    "INVALID_PARAMS": -32602,
    "INTERNAL_ERROR": -32603,
    "JSON_PARSE_ERROR": -32700,
}
# The codes of the other routes that are errors of this protocol; all others keep their HTTP status.
_REASON_BY_CODE = {
    "invalid_json": "JSON_PARSE_ERROR",
    "invalid_body": "INVALID_REQUEST",
    "ambiguous": "TASK_NOT_FOUND",
    "no_reply": "TASK_NOT_FOUND",
    "no_session": "TASK_NOT_FOUND",
    "conflict": "INVALID_PARAMS",
    "invalid": "INVALID_PARAMS",
    "invalid_answer": "INVALID_PARAMS",
    "invalid_input": "INVALID_PARAMS",
    "mismatch": "INVALID_PARAMS",
    "session_id": "INVALID_PARAMS",
    "unknown_call": "INVALID_PARAMS",
    "expired": "UNSUPPORTED_OPERATION",
    "not_waiting": "UNSUPPORTED_OPERATION",
    "pending": "UNSUPPORTED_OPERATION",
}


def rpc_error(reason: str, message: str) -> ApiError:
    """Return the refusal for a reason of the protocol."""
    return ApiError(200, reason, message)


def rpc_failure(error: ApiError, request_id: object) -> dict[str, Any]:
    """Return the body that refuses the request with this id."""
    code, message = error.body["error"]["code"], error.body["error"]["message"]
    reason = _REASON_BY_CODE.get(code, code)
    if reason not in ERROR_NUMBERS:
        reason = "INTERNAL_ERROR" if error.status >= 500 else "INVALID_REQUEST"
    limit = {name: value for name, value in error.body["error"].items() if name == "limit"}
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "a2a-protocol.org",
        "metadata": {} if code == reason else {"code": code, **limit},
    }
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "error": {"code": ERROR_NUMBERS[reason], "message": message, "data": [info]},
    }


def as_rpc_error(error: ApiError, request_id: object = None) -> ApiError:
    """Return the same refusal with the body of the protocol; errors of the protocol have the HTTP status 200."""
    code = error.body["error"]["code"]
    is_of_protocol = code in ERROR_NUMBERS or code in _REASON_BY_CODE
    refusal = ApiError(200 if is_of_protocol else error.status, code, str(error), headers=error.headers)
    refusal.body = rpc_failure(error, request_id)
    return refusal
