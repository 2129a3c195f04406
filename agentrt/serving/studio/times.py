"""The times of the layers that a reply passed, for agents with `LayerTimes` among their middlewares."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrt.middleware import LayerTimes
from agentrt.serving.failure import ApiError
from agentrt.serving.gate import Gate
from agentrt.serving.owners.sessions import OwnerSessions
from agentrt.serving.responses import JsonResponse


class LayerRoutes:
    """Answers the requests for the layers of a reply."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def routes(self) -> list[Route]:
        endpoint = self._gate.endpoint(self._read_layers)
        return [Route("/api/replies/{reply_id}/layers", endpoint, methods=["GET"])]

    async def _read_layers(self, request: Request, sessions: OwnerSessions) -> Response:
        session_id = request.query_params.get("session")
        if session_id is None:
            raise ApiError(400, "session", "add ?session= and the id of the session")
        await sessions.get(session_id)
        stored_id = await sessions.stored_id(session_id)
        reply_id = request.path_params["reply_id"]
        observers = [layer for layer in sessions.agent.middlewares if isinstance(layer, LayerTimes)]
        times = observers[0].of(reply_id, stored_id) if observers else []
        layers = [
            {
                "hook": time.hook,
                "layer": time.layer,
                "place": time.place,
                "calls": time.calls,
                "active": time.active,
                "own_ms": time.own_ns / 1e6,
                "total_ms": time.total_ns / 1e6,
                "outcome": time.outcome,
            }
            for time in times
        ]
        return JsonResponse({"probe": bool(observers), "layers": layers})
