"""Skills: folders with instructions for a model, which `SkillsMiddleware` of `agentrt.middleware` offers to it."""

from agentrt.errors import SkillError
from agentrt.skills.skill import Skill
from agentrt.skills.source import SkillFolder, load_skill

__all__ = ["Skill", "SkillError", "SkillFolder", "load_skill"]
