"""The times of the layers that a reply passed, for agents with `LayerTimes` as their probe."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrt.probe import LayerTime, LayerTimes
from agentrt.serving.failure import ApiError
from agentrt.serving.gate import Gate
from agentrt.serving.json_response import JsonResponse
from agentrt.serving.sessions import Visitor

__all__ = ["LayerRoutes"]


class LayerRoutes:
    """Answers the requests for the layers of a reply."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def routes(self) -> list[Route]:
        endpoint = self._gate.endpoint(self._read_layers)
        return [Route("/api/replies/{reply_id}/layers", endpoint, methods=["GET"])]

    async def _read_layers(self, request: Request, visitor: Visitor) -> Response:
        session_id = request.query_params.get("session")
        if session_id is None:
            raise ApiError(400, "session", "add ?session= and the id of the session")
        await visitor.get(session_id)
        probe = visitor.runner.agent.probe
        times = probe.of(request.path_params["reply_id"], session_id) if isinstance(probe, LayerTimes) else []
        return JsonResponse({"probe": isinstance(probe, LayerTimes), "layers": [_layer_json(time) for time in times]})


def _layer_json(time: LayerTime) -> dict[str, Any]:
    return {
        "hook": time.hook,
        "layer": time.layer,
        "place": time.place,
        "calls": time.calls,
        "active": time.active,
        "own_ms": time.own_ns / 1e6,
        "total_ms": time.total_ns / 1e6,
        "outcome": time.outcome,
    }
