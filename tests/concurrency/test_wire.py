"""Lines of a protocol: the same however what was read is cut, and of a limited length."""

from hypothesis import given
from hypothesis import strategies as st

from agentrt._runtime.concurrency.wire import Lines, LongLine

lines_of_any_length = st.lists(st.binary(max_size=6).map(lambda part: part.replace(b"\n", b"") * 150), max_size=5)


@given(lines=lines_of_any_length, limit=st.integers(1, 600), sizes=st.lists(st.integers(1, 700), min_size=1))
def test_lines_are_the_same_however_they_come(lines: list[bytes], limit: int, sizes: list[int]) -> None:
    reader, found, text = Lines(limit), list[bytes | LongLine](), b"".join(line + b"\n" for line in lines)
    while text:
        size = sizes.pop() if sizes else 64
        found += reader.feed(text[:size])
        text = text[size:]
    assert found == [
        LongLine(len(line), line[:200], line[200:][-200:]) if len(line) > limit else line.strip()
        for line in lines
        if len(line) > limit or line.strip()
    ]


def test_long_line_is_told_by_its_ends() -> None:
    reader = Lines(1_000)
    for _ in range(1_000):
        assert reader.feed(b"x" * 10_000) == []
    assert reader.feed(b"\n{}\n") == [LongLine(10_000_000, b"x" * 200, b"x" * 200), b"{}"]
