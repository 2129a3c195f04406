"""`agentrt skills`: what is wrong with skills."""

import argparse
import os

from agentrt._runtime.text import escape_controls, one_line
from agentrt.errors import ConfigError, SkillError
from agentrt.skills import load_skill
from agentrt.skills.skill import FILE_NAMES


def check_skills(options: argparse.Namespace) -> int:
    """Print a line for each skill, with what is wrong with it; returns 1 if anything is."""
    folder: str = options.folder
    if not os.path.isdir(folder):
        raise ConfigError(f"{folder!r:.200} is not a folder: give a skill, or a folder of skills")
    places = [folder]
    if not any(os.path.lexists(os.path.join(folder, name)) for name in FILE_NAMES):
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        places = [os.path.join(folder, name) for name in names]
        if not places:
            raise ConfigError(f"{folder!r:.200} has neither a SKILL.md nor folders with one")
    is_refused = False
    for place in places:
        name = one_line(place, 1_000)  # of a stranger: it could pass for two lines
        try:
            skill = load_skill(place)
        except SkillError as error:
            is_refused = True
            for problem in error.problems:
                print(escape_controls(f"{name}: {problem}"))
        else:
            count = f"{len(skill.files)} file{'s' if len(skill.files) > 1 else ''}"
            print(escape_controls(f"{name}: usable, {count}, digest {skill.digest[:12]}"))
    return 1 if is_refused else 0
