"""Evaluations of agents: cases, evaluators and judges, reports with intervals, and the worth of each layer."""

from agentrt.evaluation.ablation import LayerWorth
from agentrt.evaluation.case import Case, Dataset
from agentrt.evaluation.evaluate import evaluate
from agentrt.evaluation.evaluators import (
    called,
    calls_at_most,
    contains,
    costs_at_most,
    exact,
    final_state,
    fits,
    no_error,
    requests_at_most,
    takes_at_most,
    trajectory,
)
from agentrt.evaluation.judge import Judge
from agentrt.evaluation.online import OnlineEvaluation
from agentrt.evaluation.report import Comparison, GroupScore, Report
from agentrt.evaluation.trial import ToolUse, Trial, TrialError, Verdict, run_case
from agentrt.evaluation.user import SimulatedUser

__all__ = [
    "Case",
    "Comparison",
    "Dataset",
    "GroupScore",
    "Judge",
    "LayerWorth",
    "OnlineEvaluation",
    "Report",
    "SimulatedUser",
    "ToolUse",
    "Trial",
    "TrialError",
    "Verdict",
    "called",
    "calls_at_most",
    "contains",
    "costs_at_most",
    "evaluate",
    "exact",
    "final_state",
    "fits",
    "no_error",
    "requests_at_most",
    "run_case",
    "takes_at_most",
    "trajectory",
]
