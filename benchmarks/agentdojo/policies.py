"""The policies: what each suite's tools return, and which arguments must be trusted.

Arguments must be trusted if they decide whom a call reaches, what it changes or deletes, or what a direct message says.
Amounts, titles, dates and the bodies of emails may come from anywhere. Results show ids, addresses and times, which a
server has checked, and hold back text that people have written.

The policies were written with knowledge of the suites; comments say where another application may decide otherwise.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from agentrt.tool import ToolFlow

__all__ = ["POLICIES", "control_flow_only", "is_read_only"]

_TRUSTED = ToolFlow(trusted_output=True)

_EMAIL = ("id_", "sender", "recipients", "cc", "bcc", "status", "read", "timestamp")
# An invitation, with its participants, is written by its sender. They count as trusted because they are addresses.
_EVENT = ("id_", "start_time", "end_time", "participants", "all_day", "status")
_FILE = ("id_", "owner", "last_modified", "shared_with", "size")

_OFFICE = {
    "send_email": ToolFlow(_EMAIL, trusted_input=["recipients", "cc", "bcc", "attachments"]),
    "create_calendar_event": ToolFlow(_EVENT, trusted_input=["participants"]),
    "cancel_calendar_event": ToolFlow(trusted_input=["event_id"]),
    "*_calendar_events": ToolFlow(_EVENT),
}

POLICIES: Mapping[str, Mapping[str, ToolFlow]] = MappingProxyType(
    {
        "workspace": {
            **_OFFICE,
            "get_current_day": _TRUSTED,
            "search_contacts_*": _TRUSTED,
            "delete_email": ToolFlow(_EMAIL, trusted_input=["email_id"]),
            "*_emails": ToolFlow(_EMAIL),
            "reschedule_calendar_event": ToolFlow(_EVENT, trusted_input=["event_id"]),
            "add_calendar_event_participants": ToolFlow(_EVENT, trusted_input=["event_id", "participants"]),
            "append_to_file": ToolFlow(_FILE, trusted_input=["file_id"]),
            "delete_file": ToolFlow(_FILE, trusted_input=["file_id"]),
            "share_file": ToolFlow(_FILE, trusted_input=["file_id", "email", "permission"]),
            "*file*": ToolFlow(_FILE),
        },
        "travel": {
            **_OFFICE,
            "get_rating_reviews_*": ToolFlow(),  # guests write them
            "get_*": _TRUSTED,  # the agency's own catalogue
            "check_*": _TRUSTED,
            "reserve_hotel": ToolFlow(True, trusted_input=["hotel"]),
            "reserve_restaurant": ToolFlow(True, trusted_input=["restaurant"]),
            "reserve_car_rental": ToolFlow(True, trusted_input=["company"]),
        },
        "banking": {
            "get_*_transactions": ToolFlow(["id", "sender", "recipient", "amount", "date", "recurring"]),
            "get_*": _TRUSTED,
            "send_money": ToolFlow(True, trusted_input=["recipient"]),
            "schedule_transaction": ToolFlow(True, trusted_input=["recipient"]),
            "update_scheduled_transaction": ToolFlow(True, trusted_input=["id", "recipient"]),
            "update_password": ToolFlow(True, trusted_input=["password"]),
            "update_user_info": ToolFlow(True, trusted_input=True),
        },
        "slack": {
            # Messages from colleagues count as trusted here; the names of channels and web pages do not.
            "read_*": _TRUSTED,
            "get_users_in_channel": _TRUSTED,
            # A channel may come from anywhere: only those of this workspace exist.
            "add_user_to_channel": ToolFlow(True, trusted_input=["user"]),
            "send_channel_message": _TRUSTED,
            "send_direct_message": ToolFlow(True, trusted_input=["recipient", "body"]),
            "invite_user_to_slack": ToolFlow(True, trusted_input=["user", "user_email"]),
            "remove_user_from_slack": ToolFlow(True, trusted_input=["user"]),
            # Fetching an address sends something to its server.
            "get_webpage": ToolFlow(trusted_input=["url"]),
            "post_webpage": ToolFlow(trusted_input=["url"]),
        },
    }
)


def control_flow_only(policy: Mapping[str, ToolFlow]) -> dict[str, ToolFlow]:
    """Return the policy without `trusted_input`: untrusted text cannot cause a call, but can be any argument of one."""
    return {name: replace(flow, trusted_input=()) for name, flow in policy.items()}


def is_read_only(function: str) -> bool:
    """Return whether a function changes nothing, and sends nothing to anyone outside."""
    return function.startswith(("get_", "search_", "read_", "list_", "check_")) and function != "get_webpage"
