"""Redaction: keeps private data from models, listeners and saved states."""

from agentrt_middleware.redaction.detectors import Between, Detector, Literals, Pattern
from agentrt_middleware.redaction.middleware import RedactionMiddleware
from agentrt_middleware.redaction.shipped import API_KEY, CARD, EMAIL, IBAN, IP, PHONE, PRIVATE_KEY

__all__ = [
    "API_KEY",
    "CARD",
    "EMAIL",
    "IBAN",
    "IP",
    "PHONE",
    "PRIVATE_KEY",
    "Between",
    "Detector",
    "Literals",
    "Pattern",
    "RedactionMiddleware",
]
