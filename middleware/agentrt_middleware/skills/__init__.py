"""Skills: folders of instructions that a model may use, once the user agrees to each."""

from agentrt_middleware.skills.middleware import SkillsMiddleware

__all__ = ["SkillsMiddleware"]
