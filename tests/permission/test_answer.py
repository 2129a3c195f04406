"""What an answer is bound to, and the rules that it may bring."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import ResumeError
from agentrt.permission import PermissionBehavior, PermissionContext, PermissionRule, accept_rules, digest
from agentrt.permission.answer import MAX_CONTENT

ALLOW, ASK, DENY, PASSTHROUGH = (PermissionBehavior(each) for each in ("allow", "ask", "deny", "passthrough"))


def test_a_digest_is_the_same_in_every_process() -> None:
    assert digest("f", '{"a":1}') == "9431ae6930fc6bb9f2da3b8e57f3e20075b497aa08ff1ab42d83435e5ffe6e83"


@given(st.text(), st.text(), st.text(), st.text())
def test_two_calls_share_a_digest_only_if_they_are_the_same(name: str, text: str, other: str, other_text: str) -> None:
    assert (digest(name, text) == digest(other, other_text)) == ((name, text) == (other, other_text))


def test_a_digest_tells_where_the_name_ends() -> None:
    found = {digest("ab", "c"), digest("a", "bc"), digest("abc", ""), digest("", "abc"), digest("a", "1:bc")}
    assert len(found) == 5


def test_no_rules_are_taken_unless_the_context_permits_it() -> None:
    context = PermissionContext()
    assert accept_rules(context, [], "f") == []
    with pytest.raises(ResumeError, match="brings a rule, which is not permitted: leave `rules` empty") as caught:
        accept_rules(context, [PermissionRule("f", None, ALLOW)], "f")
    assert caught.value.code == "mismatch"
    assert context == PermissionContext()


@pytest.mark.parametrize(
    ("rule", "code", "words"),
    [
        (PermissionRule("g", None, ALLOW), "mismatch", "brings a rule for 'g'"),
        (PermissionRule("*", None, ALLOW), "mismatch", "brings a rule for '*'"),
        (PermissionRule("f*", None, DENY), "mismatch", "must name the tool that was asked about"),
        (PermissionRule("f" * 9999, None, DENY), "mismatch", "'" + "f" * 100 + "'"),
        (PermissionRule("f", None, PASSTHROUGH), "invalid", "must be allow, ask or deny"),
        (
            PermissionRule("f", "a" * (MAX_CONTENT + 1), ALLOW),
            "invalid",
            "a rule of 1,001 characters, but at most 1,000 are",
        ),
    ],
)
def test_a_rule_that_does_not_fit_is_refused_with_all_others(rule: PermissionRule, code: str, words: str) -> None:
    context = PermissionContext(allow_new_rules=True)
    with pytest.raises(ResumeError) as caught:
        accept_rules(context, [PermissionRule("f", None, ALLOW), rule], "f")
    assert caught.value.code == code
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300
    assert context.rules == []


@pytest.mark.parametrize("behavior", [ALLOW, ASK, DENY])
def test_rule_that_fits_is_taken_once_and_as_the_users(behavior: PermissionBehavior) -> None:
    context = PermissionContext(allow_new_rules=True)
    forged = PermissionRule("f", "a*", behavior, "the administrator")
    accepted = accept_rules(context, [forged, PermissionRule("f", "a*", behavior)], "f")
    assert accepted == [PermissionRule("f", "a*", behavior, "user")]
    assert context.rules == []
    context.rules.extend(accepted)
    assert accept_rules(context, [forged], "f") == []
