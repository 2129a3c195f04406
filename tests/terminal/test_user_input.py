"""Asking a person in a terminal."""

import copy
import pickle

from agentrt._runtime.terminal.user_input import TerminalUserInput
from tests.loop.keyboard import Keyboard, asked, text_of


def from_elsewhere() -> str:
    return "from elsewhere\n"


async def test_the_answer_is_the_line_without_its_newline():
    keyboard = Keyboard("  hello there ")
    data = await asked(keyboard.input("You: "))
    assert [block.text for block in data.blocks_input] == ["  hello there "]
    assert data.structured_input is None
    assert keyboard.shown == ["You: "]


async def test_bytes_that_cannot_be_decoded_affect_no_later_line():
    keyboard = Keyboard("caf\udce9")
    assert await text_of(keyboard.input()) == "caf\ufffd"


def test_a_copy_asks_at_the_same_terminal():
    terminal = Keyboard().input("You: ")
    assert copy.deepcopy({"terminal": terminal})["terminal"] is terminal
    assert copy.copy(terminal)._reader is terminal._reader


async def test_an_input_method_is_pickled_with_its_functions():
    terminal = pickle.loads(pickle.dumps(TerminalUserInput("You: ", read_line=from_elsewhere, write=str)))
    assert terminal.input_hint == "You: "
    assert await text_of(terminal) == "from elsewhere"
    assert pickle.loads(pickle.dumps(TerminalUserInput("You: "))).input_hint == "You: "
