"""Messages on a terminal: each piece once, in the order of the message, and nothing that a terminal would obey."""

import base64
import io
import json
import logging
import os
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt._runtime.output.printer import AudioPlayer, Printer
from agentrt._runtime.output.screen import Screen
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    Msg,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    URLSource,
)

PICTURE = base64.b64encode(b"x" * 1000).decode()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def printer(stream: io.StringIO) -> Printer:
    return Printer(stream)


def message(*blocks: ContentBlock, name: str = "bot") -> Msg:
    return AssistantMsg(name, list(blocks))


def taken(stream: io.StringIO) -> str:
    """Return what was written since the last look."""
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    return text


def shown_at_once(msg: Msg) -> str:
    stream = io.StringIO()
    Printer(stream).show(msg, True)
    return stream.getvalue()


# What is shown


def test_only_what_is_new_is_written(printer, stream):
    msg = message(TextBlock("Hel"))
    printer.show(msg, False)
    assert taken(stream) == "bot: Hel"
    printer.show(msg, False)
    assert taken(stream) == ""
    msg.content[0].text += "lo"
    printer.show(msg, False)
    assert taken(stream) == "lo"
    printer.show(msg, True)
    assert taken(stream) == "\n"


def test_thinking_and_text_are_on_lines_of_their_own():
    assert shown_at_once(message(ThinkingBlock("hm"), TextBlock("yes"), TextBlock("and"))) == (
        "bot(thinking): hm\nbot: yes\nbot: and\n"
    )


def test_a_text_that_ends_its_line_gets_no_empty_one():
    assert shown_at_once(message(TextBlock("one\n"), TextBlock("two\n"))) == "bot: one\nbot: two\n"


def test_content_that_is_a_text_grows_like_a_block(printer, stream):
    msg = AssistantMsg("bot", "Hel")
    printer.show(msg, False)
    msg.content = "Hello"
    printer.show(msg, False)
    msg.content = [TextBlock("Hello!")]
    printer.show(msg, True)
    assert taken(stream) == "bot: Hello!\n"


def test_blocks_made_anew_for_each_piece_grow(printer, stream):
    msg = message()
    for text in ("a", "ab", "abc"):
        msg.content = [ThinkingBlock("hm"), TextBlock(text)]
        printer.show(deepcopy(msg), False)
    assert taken(stream) == "bot(thinking): hm\nbot: abc"


def test_a_message_without_anything_leaves_no_trace(printer, stream):
    printer.show(message(TextBlock("half a line")), False)
    taken(stream)
    printer.show(message(), True)
    printer.show(message(TextBlock(""), ThinkingBlock("")), True)
    printer.show(AssistantMsg("bot", ""), True)
    assert taken(stream) == ""


def test_a_message_is_forgotten_with_its_last_piece(printer, stream):
    msg = message(TextBlock("a"))
    printer.show(msg, True)
    printer.show(msg, True)
    assert taken(stream) == "bot: a\nbot: a\n"


def test_what_an_earlier_block_grew_by_is_shown_at_the_end(printer, stream):
    msg = message(TextBlock("a"), ThinkingBlock("b"))
    printer.show(msg, False)
    msg.content[0].text += "c"
    printer.show(msg, True)
    assert taken(stream) == "bot: a\nbot(thinking): b\nbot: c\n"


# Blocks that are no text


def test_a_call_is_one_line_once_another_kind_of_block_follows(printer, stream):
    msg = message(TextBlock("look"), ToolCallBlock("1", "find", '{"q":\n'), ToolCallBlock("2", "find", ""))
    printer.show(msg, False)
    assert taken(stream) == "bot: look"
    msg.content[1].input += '"x"}'
    printer.show(msg, False)
    assert taken(stream) == ""
    msg.content.append(ToolResultBlock("1", "find", "", ToolResultState.RUNNING))
    printer.show(msg, False)
    assert taken(stream) == (
        '\nbot: {"type": "tool_call", "id": "1", "name": "find", "input": {"q": "x"}}\n'
        'bot: {"type": "tool_call", "id": "2", "name": "find", "input": {}}'
    )


def test_what_follows_a_running_result_waits_for_it(printer, stream):
    result = ToolResultBlock("1", "find", [TextBlock("a\nb")], ToolResultState.RUNNING)
    msg = message(result, TextBlock("so"))
    printer.show(msg, False)
    assert taken(stream) == ""
    result.state = ToolResultState.SUCCESS
    printer.show(msg, False)
    assert taken(stream) == (
        'bot: {"type": "tool_result", "id": "1", "name": "find", "state": "success", "output": ["a\\nb"]}\nbot: so'
    )


def test_the_last_piece_shows_what_never_became_complete(printer, stream):
    printer.show(message(ToolResultBlock("1", "find", "half", ToolResultState.RUNNING)), True)
    assert '"state": "running", "output": "half"' in taken(stream)


@pytest.mark.parametrize(
    ("block", "line"),
    [
        (
            ProviderBlock("anthropic", '{"a": 1}'),
            '{"type": "provider", "provider": "anthropic", "content": "{\\"a\\": 1}"}',
        ),
        (HintBlock("be brief"), '{"type": "hint", "hint": "be brief"}'),
        (HintBlock("be brief", "memory"), '{"type": "hint", "hint": "be brief", "source": "memory"}'),
        (
            DataBlock(Base64Source(PICTURE, "image/png"), "cat"),
            '{"type": "data", "name": "cat", "media_type": "image/png", "bytes": 1000}',
        ),
        (
            DataBlock(URLSource("https://a/b,c.png", "image/png")),
            '{"type": "data", "media_type": "image/png", "url": "https://a/b,c.png"}',
        ),
        (
            DataBlock(URLSource(f"data:image/png;base64,{PICTURE}", "image/png")),
            '{"type": "data", "media_type": "image/png", "url": "data:image/png;base64,..."}',
        ),
    ],
)
def test_other_blocks_are_one_line_without_their_bytes(block, line):
    assert shown_at_once(message(block)) == f"bot: {line}\n"


def test_bytes_in_a_result_are_not_shown_either():
    block = ToolResultBlock("1", "draw", [DataBlock(Base64Source(PICTURE, "image/png"))])
    assert '"output": [{"media_type": "image/png", "bytes": 1000}]' in shown_at_once(message(block))


def test_a_line_is_not_longer_than_anybody_reads():
    assert len(shown_at_once(message(ToolResultBlock("1", "read", "x" * 1_000_000)))) < 2_100
    assert len(shown_at_once(message(ToolCallBlock("1", "x" * 1_000_000, "[" * 1_000_000)))) < 2_100


# Texts that are taken back


@pytest.mark.parametrize("text", ["He", "Hallo again", "", "Jello"])
def test_a_text_that_was_cut_or_replaced_is_shown_anew(printer, stream, text):
    msg = message(ThinkingBlock("hm"), TextBlock("Hello"))
    printer.show(msg, False)
    taken(stream)
    msg.content[1].text = text
    printer.show(msg, False)
    msg.content[1].text += "!"
    printer.show(msg, True)
    assert taken(stream) == f"\nbot: {text}!\n"


@pytest.mark.parametrize("text", ["Hi", "Hello again"])
def test_a_discarded_attempt_is_followed_by_the_next_one_whole(printer, stream, text):
    msg = message(ThinkingBlock("hm"), TextBlock("Hello"))
    printer.show(msg, False)
    taken(stream)
    msg.content = [ThinkingBlock("well"), TextBlock(text)]
    printer.show(msg, False)
    assert taken(stream) == f"\nbot(thinking): well\nbot: {text}"


def test_a_discarded_attempt_ends_its_line(printer, stream):
    msg = message(TextBlock("kept"), ThinkingBlock("hm"))
    printer.show(msg, False)
    del msg.content[1]
    printer.show(msg, False)
    printer.show(msg, True)
    assert taken(stream) == "bot: kept\nbot(thinking): hm\n"


def test_empty_blocks_that_are_swept_out_change_nothing(printer, stream):
    msg = message(ThinkingBlock(""), TextBlock("Hel"))
    printer.show(msg, False)
    msg.content = [TextBlock("Hello")]
    printer.show(msg, True)
    assert taken(stream) == "bot: Hello\n"


# Terminals obey nothing


def test_texts_and_names_are_spelt_out():
    blocks = [TextBlock("\x1b[2J"), ToolCallBlock("\x9b1", "\x1b]0;x\x07", "\x1b\x9b"), HintBlock("\u202e", "\x7f")]
    assert shown_at_once(message(*blocks, name="b\x1bo\nt: ok\u2028")) == (
        "b\\x1bo t: ok: \\x1b[2J\n"
        'b\\x1bo t: ok: {"type": "tool_call", "id": "\\x9b1", "name": "\\u001b]0;x\\u0007", "input": \\x1b\\x9b}\n'
        'b\\x1bo t: ok: {"type": "hint", "hint": "\\u202e", "source": "\\x7f"}\n'
    )


def test_a_line_end_that_comes_in_two_pieces_is_one_line_end(printer, stream):
    msg = message(TextBlock("a\r"))
    printer.show(msg, False)
    assert taken(stream) == "bot: a"
    msg.content[0].text += "\nb\r"
    printer.show(msg, False)
    assert taken(stream) == "\nb"
    printer.show(msg, True)
    assert taken(stream) == "\\x0d\n"


names = st.text(st.characters(categories=None), max_size=5)
texts = st.text(st.sampled_from("ab\n\r\x1b\x9b\u202e\ud83d\u2028é😀"), max_size=6)
blocks = st.one_of(
    st.builds(TextBlock, texts),
    st.builds(ThinkingBlock, texts),
    st.builds(HintBlock, texts, texts),
    st.builds(ToolCallBlock, names, names, texts),
    st.builds(ToolResultBlock, names, names, texts | st.lists(st.builds(TextBlock, texts)), metadata=st.just({})),
    st.builds(DataBlock, st.builds(Base64Source, names, names) | st.builds(URLSource, names, names), names),
)


@given(st.lists(blocks, max_size=6), names, st.booleans())
def test_no_message_makes_a_terminal_obey(content, name, last):
    stream = io.StringIO()
    Printer(stream).show(message(*content, name=name), last)
    written = stream.getvalue()
    assert {char for char in written if unicodedata.category(char) in ("Cc", "Cs")} <= {"\n", "\t"}
    assert not set(written) & set(map(chr, range(0x202A, 0x202F)))
    assert not last or not written or written.endswith("\n")


@given(st.lists(blocks, max_size=6), st.data())
def test_however_a_message_grows_it_is_written_as_if_shown_once(content, data):
    whole = message(*content)
    growing = message()
    stream = io.StringIO()
    printer = Printer(stream)
    for block in content:
        growing.content.append(block)
        for growing.content[-1] in growth(block, data):
            printer.show(growing, False)
    printer.show(growing, True)
    assert stream.getvalue() == shown_at_once(whole)


def growth(block: ContentBlock, data: st.DataObject) -> Iterator[ContentBlock]:
    """Yield the block as it grows in a few steps, of any size, to what it is."""
    field = {"text": "text", "thinking": "thinking", "tool_call": "input"}.get(block.type)
    if field is not None:
        whole = getattr(block, field)
        for end in sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3))):
            yield _with(block, field, whole[:end])
    elif isinstance(block, ToolResultBlock) and data.draw(st.booleans()):
        yield _with(_with(block, "state", ToolResultState.RUNNING), "output", "")
    yield block


def _with(block: Any, field: str, value: object) -> Any:
    grown = deepcopy(block)
    setattr(grown, field, value)
    return grown


class Counted(str):
    """A text that counts how many of its characters are handled."""

    handled = 0

    def _count(name: str) -> Any:
        def method(self: "Counted", *arguments: Any) -> Any:
            result = getattr(str, name)(self, *arguments)
            Counted.handled += len(result) if name == "__getitem__" else len(self)
            return result

        return method

    for name in ("__getitem__", "__add__", "__radd__", "__iter__", "__eq__", "__contains__", "encode", "split"):
        if hasattr(str, name):
            locals()[name] = _count(name)
    for name in ("replace", "translate", "splitlines", "strip", "find", "count", "partition"):
        locals()[name] = _count(name)
    __hash__ = str.__hash__

    def startswith(self, start: str, *where: int) -> bool:  # type: ignore[override]
        Counted.handled += len(start)
        return super().startswith(start, *where)


def test_a_text_costs_what_is_new_of_it_and_not_its_length():
    pieces, piece = 2_000, "0123456789"
    stream, Counted.handled = io.StringIO(), 0
    printer = Printer(stream)
    msg = message(ThinkingBlock(Counted("x" * 100_000)), TextBlock(""))
    for n in range(1, pieces + 1):
        msg.content[1].text = Counted(piece * n)
        printer.show(msg, False)
    assert len(stream.getvalue()) == 100_000 + pieces * len(piece) + len("bot(thinking): \nbot: ")
    assert Counted.handled < 100_000 + pieces * (len(piece) + 100)


# Several messages, several streams


def test_messages_that_grow_in_turns_have_lines_of_their_own(printer, stream):
    ann, bob = message(TextBlock("Hel"), name="ann"), message(TextBlock("Good\n"), name="bob")
    printer.show(ann, False)
    printer.show(bob, False)
    ann.content[0].text += "lo"
    printer.show(ann, False)
    bob.content[0].text += "bye"
    printer.show(bob, True)
    printer.show(ann, True)
    assert taken(stream) == "ann: Hel\nbob: Good\nann: lo\nbob: bye\n"


def test_only_so_many_messages_that_never_end_are_remembered(printer, stream):
    first = message(TextBlock("first"))
    printer.show(first, False)
    for _ in range(300):
        printer.show(message(TextBlock("x")), False)
    assert len(printer._messages) == 256
    taken(stream)
    printer.show(first, True)
    assert taken(stream) == "\nbot: first\n"


def test_a_message_that_still_grows_is_not_the_one_forgotten(printer, stream):
    msg = message(TextBlock("a\n"))
    for _ in range(300):
        printer.show(msg, False)
        printer.show(message(TextBlock("x")), False)
    assert taken(stream).count("bot: a") == 1


def test_the_stream_is_whatever_standard_output_is_at_the_time(capsys):
    printer, elsewhere, msg = Printer(), io.StringIO(), message(TextBlock("a"))
    printer.show(msg, False)
    msg.content[0].text += "b"
    with redirect_stdout(elsewhere):
        printer.show(msg, True)
    assert capsys.readouterr().out == "bot: a"
    assert elsewhere.getvalue() == "bot: b\n"


def test_without_a_standard_output_nothing_happens(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    Printer().show(message(TextBlock("a")), True)


def test_a_screen_without_a_stream_shows_nothing():
    screen = Screen()
    screen.use(None)
    screen.put(("bot", 1), "bot: ", "a")
    screen.flush()


# Streams that do not want it


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "gbk"])
def test_what_a_stream_cannot_encode_is_spelt_out(encoding):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding, newline="\n")
    Printer(stream).show(message(TextBlock("a\u0c85😀z")), True)
    assert raw.getvalue() == b"bot: a\\u0c85\\U0001f600z\n"


class Broken(io.StringIO):
    """A stream whose reader has left after the first piece."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        if self.writes > 1:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "gone"), ValueError("I/O operation on closed file")])
def test_nothing_more_is_written_to_a_broken_stream(error):
    stream, msg = Broken(error), message(TextBlock("a"))
    printer = Printer(stream)
    for _ in range(4):
        msg.content[0].text += "b"
        printer.show(msg, False)
    printer.show(msg, True)
    assert (stream.getvalue(), stream.writes) == ("bot: ab", 2)


def test_a_pipe_without_a_reader_raises_nothing():
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    printer, msg = Printer(stream), message(TextBlock("a"))
    for last in (False, False, True):
        msg.content[0].text += "b" * 100_000
        printer.show(msg, last)
    with suppress(BrokenPipeError):
        stream.close()


def test_a_closed_stream_raises_nothing():
    stream = io.StringIO()
    stream.close()
    Printer(stream).show(message(TextBlock("a")), True)


def test_after_a_broken_stream_another_one_is_written_to():
    printer, whole = Printer(), io.StringIO()
    closed = io.StringIO()
    closed.close()
    with redirect_stdout(closed):
        printer.show(message(TextBlock("a")), True)
    with redirect_stdout(whole):
        printer.show(message(TextBlock("b")), True)
    assert whole.getvalue() == "bot: b\n"


# Sound


class Recorder(AudioPlayer):
    """A player that remembers what it was given."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def play(self, data: bytes, media_type: str) -> None:
        self.log.append((data, media_type))

    def play_url(self, url: str, media_type: str) -> None:
        self.log.append((url, media_type))

    def close(self) -> None:
        self.log.append("closed")

    def sound(self) -> bytes:
        return b"".join(each[0] for each in self.log if each != "closed")


class Studio:
    """Makes a player for each message, and keeps them."""

    def __init__(self) -> None:
        self.players: list[Recorder] = []

    def __call__(self) -> Recorder:
        self.players.append(Recorder())
        return self.players[-1]


def sound(data: str) -> DataBlock:
    return DataBlock(Base64Source(data, "audio/wav"))


SONG = DataBlock(URLSource("https://a/b.mp3", "audio/mpeg"))


def test_an_address_is_played_once_and_the_player_closed(stream):
    studio, msg = Studio(), message(TextBlock("la"))
    printer = Printer(stream, studio)
    for last in (False, False, True):
        printer.show(msg, last, SONG)
    assert [player.log for player in studio.players] == [[("https://a/b.mp3", "audio/mpeg"), "closed"]]
    assert taken(stream) == "bot: la\n"


@given(st.binary(max_size=40), st.lists(st.integers(0, 60), max_size=6), st.booleans())
def test_sound_that_grows_is_played_once_however_it_is_cut(data, ends, encoded_anew):
    whole = base64.b64encode(data).decode()
    studio, msg = Studio(), message()
    printer = Printer(io.StringIO(), studio)
    for end in sorted(ends):
        part = base64.b64encode(data[:end]).decode() if encoded_anew else whole[:end]
        printer.show(msg, False, [SONG, sound(part)])
    printer.show(msg, False, [SONG, sound(whole)])
    printer.show(msg, True)
    (player,) = studio.players
    assert player.log[0] == ("https://a/b.mp3", "audio/mpeg")
    assert player.log[-1] == "closed"
    assert b"".join(each[0] for each in player.log[1:-1]) == data


def test_only_what_is_new_of_a_sound_is_decoded():
    studio, msg, data = Studio(), message(), bytes(range(256)) * 30
    whole = base64.b64encode(data).decode()
    printer = Printer(io.StringIO(), studio)
    for end in range(100, len(whole) + 100, 100):
        Counted.handled, part = 0, Counted(whole[:end])
        printer.show(msg, False, sound(part))
        assert Counted.handled < 1_000
        assert len(studio.players[0].sound()) == min(end, len(whole)) // 4 * 3
    printer.show(msg, True)
    assert studio.players[0].sound() == data


def test_another_sound_in_the_same_place_is_played_whole():
    studio, msg = Studio(), message()
    printer = Printer(io.StringIO(), studio)
    for data in (b"one sound", b"two!", b"three sounds"):
        printer.show(msg, False, sound(base64.b64encode(data).decode()))
    printer.show(msg, True)
    assert studio.players[0].sound() == b"one soundtwo!three sounds"


def test_each_message_with_sound_has_a_player_of_its_own(stream):
    studio = Studio()
    printer = Printer(stream, studio)
    for speech in (SONG, None, DataBlock(URLSource("https://a/b.png", "image/png")), [SONG]):
        printer.show(message(), True, speech)
    assert len(studio.players) == 2


def test_without_a_player_the_kind_of_sound_is_named_once(printer, stream):
    msg = message(TextBlock("la"))
    printer.show(msg, False, [sound("AAAA"), SONG])
    msg.content[0].text += "la"
    printer.show(msg, False, [sound("AAAAAAAA"), SONG])
    printer.show(msg, True)
    assert taken(stream) == "bot: lala\nbot: [audio/wav]\nbot: [audio/mpeg]\n"


@pytest.mark.parametrize("fails", ["play", "play_url", "close", "make"])
def test_a_failing_player_is_dropped_and_logged_by_its_type(fails, stream, caplog):
    made: list[Recorder] = []

    def fail(*arguments: object) -> None:
        raise RuntimeError("secret")

    def make() -> Recorder:
        made.append(Recorder())
        if len(made) == 1:
            fail() if fails == "make" else setattr(made[0], fails, fail)
        return made[-1]

    printer, msg = Printer(stream, make), message(TextBlock("la"))
    with caplog.at_level(logging.DEBUG):
        for last in (False, False, True):
            printer.show(msg, last, [sound("AAAA"), SONG])
        printer.show(message(), True, SONG)
    assert taken(stream) == "bot: la\n"
    assert [(each.name, each.getMessage()) for each in caplog.records] == [
        ("agentrt", "the sound of a message is not played: RuntimeError")
    ]
    assert made[0].log.count("closed") == (fails in ("play", "play_url"))
    assert made[1].log == [("https://a/b.mp3", "audio/mpeg"), "closed"]


@pytest.mark.parametrize("data", ["A*AA", "AAA-", "é" * 8])
def test_sound_that_is_not_base64_is_dropped_and_logged(data, stream, caplog):
    studio = Studio()
    Printer(stream, studio).show(message(TextBlock("la")), True, sound(data))
    assert [player.sound() for player in studio.players] in ([], [b""])
    assert "the sound of a message is not played" in caplog.text
    assert taken(stream) == "bot: la\n"


def test_messages_that_never_end_have_their_players_closed(stream):
    studio = Studio()
    printer = Printer(stream, studio)
    for _ in range(257):
        printer.show(message(), False, SONG)
    assert [player.log[-1] == "closed" for player in studio.players] == [True] + [False] * 256
    printer.close()
    assert all(player.log[-1] == "closed" for player in studio.players)


def test_a_line_that_fits_is_json():
    written = shown_at_once(message(ToolCallBlock("1", 'na"me', '{"a": [1, "é"]}')))
    assert json.loads(written.removeprefix("bot: ")) == {
        "type": "tool_call",
        "id": "1",
        "name": 'na"me',
        "input": {"a": [1, "é"]},
    }


def test_printers_in_several_threads_write_whole_pieces():
    stream, threads = io.StringIO(), []

    def show(name: str) -> None:
        printer, msg = Printer(), message(TextBlock(""), name=name)
        for n in range(200):
            msg.content[0].text += f"{n} "
            printer.show(msg, n == 199)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with redirect_stdout(stream):
            threads += [threading.Thread(target=show, args=(name,)) for name in ("Ann", "Bob", "Eve")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    lines = stream.getvalue().splitlines()
    for name in ("Ann", "Bob", "Eve"):
        mine = [line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: ")]
        assert "".join(mine) == "".join(f"{n} " for n in range(200))
