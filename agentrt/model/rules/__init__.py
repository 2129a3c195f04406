"""An offline model made of rules: it drives a real agent with real tools, with no key and no network.

It sees what any model sees, the messages and the tool schemas, and remembers nothing between calls. The rules are tried
in order on the user's latest question; the first that matches, and whose tool is there, decides. A rule is data. To
teach the model something, put rules of your own before the ones it has:

    RulesChatModel([Rule(r"time in (?P<city>\\w+)", call="get_time", arguments={"city": "{city}"}), *DEFAULT_RULES])
"""

from agentrt.model.rules.chat_model import RulesChatModel
from agentrt.model.rules.default_rules import DEFAULT_RULES
from agentrt.model.rules.rule import Rule

__all__ = ["DEFAULT_RULES", "Rule", "RulesChatModel"]
