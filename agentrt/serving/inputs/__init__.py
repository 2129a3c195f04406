"""Questions of `UserAgent`s that are answered over HTTP, and logins that end here."""

from agentrt.serving.inputs.board import InputBoard
from agentrt.serving.inputs.logins import LoginRoute
from agentrt.serving.inputs.routes import InputRoutes
from agentrt.serving.inputs.user_input import RemoteUserInput, StudioUserInput

__all__ = ["InputBoard", "InputRoutes", "LoginRoute", "RemoteUserInput", "StudioUserInput"]
