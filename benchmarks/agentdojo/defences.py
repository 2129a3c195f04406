"""The defences to compare: no layer, or `InformationFlowMiddleware` with different readers and users."""

from types import MappingProxyType

from benchmarks.agentdojo.policies import POLICIES, control_flow_only
from benchmarks.agentdojo.runs import Defence

__all__ = ["DEFENCES"]

_CONTROL_FLOW = {name: control_flow_only(policy) for name, policy in POLICIES.items()}

DEFENCES = MappingProxyType(
    {
        "none": Defence(),
        "targets": Defence(POLICIES),
        "targets, adaptive reader": Defence(POLICIES, is_adaptive=True),
        "targets, adaptive reader, user approves everything": Defence(
            POLICIES, is_adaptive=True, approves_everything=True
        ),
        "control flow": Defence(_CONTROL_FLOW),
        "control flow, adaptive reader": Defence(_CONTROL_FLOW, is_adaptive=True),
    }
)
