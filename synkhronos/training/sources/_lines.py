"""Lines of CSV as columns of texts, in blocks.

numpy finds separators and quotes, and pyarrow gets the texts. pyarrow's own reader of CSV starts
threads that stay, and a group whose master has such threads starts its members as new interpreters.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from synkhronos._checks import shown
from synkhronos._host import files
from synkhronos.training.sources._columns import Values, arrow, selected
from synkhronos.training.sources._files import check_listed, check_stored

CSV = tuple([end + packed for end in (".csv", ".tsv", ".tab") for packed in ("", ".gz", ".zst")])
_BLOCK = 1 << 22  # bytes of text that are looked at together
_LONGEST = 1 << 24  # bytes of a line
_BLANK = 1 << 10  # bytes of empty lines
_NEWLINE, _RETURN, _QUOTE = 10, 13, 34  # bytes
_END = re.compile(rb"\r\n?|\n")
_MARK = b"\xef\xbb\xbf"  # of UTF-8, which Excel writes
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Dialect:
    """How a file is written."""

    # between two fields, and before the decimals of a number
    separator: str = ","
    decimal: str = "."
    # whether the first line has the names of the columns; else these are "0", "1", ...
    header: bool = True
    skip_lines: int = 0  # lines before the header, or before the first row


@dataclass(frozen=True)
class Texts:
    """The fields of some lines."""

    names: tuple[str, ...]
    columns: list[Values]  # arrays of text of pyarrow
    raw: bytes
    begins: np.ndarray  # of lines in `raw`
    first: int  # the number of the first line

    def line(self, row: int) -> int:
        """The number in its file of the line where a row begins; the first line is 1."""
        return self.first + self.raw.count(b"\n", 0, int(self.begins[row]))

    def lines(self) -> np.ndarray:
        """The number of the line where each row begins."""
        ends = np.flatnonzero(np.frombuffer(self.raw, np.uint8) == _NEWLINE)
        return np.asarray(self.first + np.searchsorted(ends, self.begins))


def blocks_of(path: str, dialect: Dialect) -> Iterator[Texts]:
    """The fields of all lines of a file.

    Raises
    ------
    ValueError
        A line has more or fewer fields than the first, or a quote where none may be; the message
        begins with its number.
    """
    names: tuple[str, ...] = ()
    line = 1 + dialect.skip_lines
    for raw in _whole_lines(path, dialect.skip_lines):
        if not names:
            end = _line_ends(raw)[0] + 1
            names = _names(raw[:end], dialect, line)
            if dialect.header:
                line += raw.count(b"\n", 0, end)
                raw = raw[end:]
        if raw:
            yield _fields(raw, names, dialect, line)
            line += raw.count(b"\n")


def separator_of(path: str) -> str:
    """The text between the fields of a file, as its ending says."""
    plain = path.lower().removesuffix(".gz").removesuffix(".zst")
    return "\t" if plain.endswith((".tsv", ".tab")) else ","


def texts_of(
    path: str, columns: Sequence[str], dialect: Dialect
) -> tuple[list[list[str | None]], list[str]]:
    """The texts of some columns, None where there is nothing, and the line of each.

    Raises
    ------
    ValueError
        See `blocks_of`; or there is no such column.
    """
    found: list[list[str | None]] = [[] for _ in columns]
    lines: list[str] = []
    size, stored = 0, os.path.getsize(path)
    for texts in blocks_of(path, dialect):
        size += len(texts.raw)
        check_listed(len(lines) + len(texts.begins), size, stored)
        names = selected(columns, texts.names)
        for values, name in zip(found, names, strict=True):
            values += [v or None for v in texts.columns[texts.names.index(name)].to_pylist()]
        lines += [f"line {line}" for line in texts.lines().tolist()]
    return found, lines


def _names(raw: bytes, dialect: Dialect, line: int) -> tuple[str, ...]:
    """The names of the columns, by the first line."""
    data = np.frombuffer(raw, np.uint8)
    between = (data == ord(dialect.separator)) & ~_quoted(data)
    numbers = tuple([str(i) for i in range(np.count_nonzero(between) + 1)])
    if not dialect.header:
        return numbers
    return tuple([c[0].as_py().strip() for c in _fields(raw, numbers, dialect, line).columns])


def _whole_lines(path: str, skip: int) -> Iterator[bytes]:
    """The bytes of a file, cut after the end of a line."""
    line, rest = 1, b""
    for piece in _pieces(path):
        rest += piece
        if line == 1 and rest.startswith(_UTF16):
            raise ValueError("line 1: it is UTF-16, and not UTF-8: save it as CSV in UTF-8")
        while line <= skip and (end := _END.search(rest)):
            rest, line = rest[end.end() :], line + 1
        if line <= skip:
            continue
        rest = _with_line_feeds(rest)
        ends = _line_ends(rest)
        if len(ends):
            yield rest[: ends[-1] + 1]
            line += rest.count(b"\n", 0, ends[-1] + 1)
            rest = rest[ends[-1] + 1 :]
        elif len(rest) > _LONGEST:
            raise ValueError(f"line {line}: it has more than {_LONGEST:,} bytes")
    if rest and line > skip:
        raise ValueError(f"line {line}: a quote in it or after it is never closed")


def _pieces(path: str) -> Iterator[bytes]:
    """The bytes of a file, unpacked, without the mark of UTF-8; one end of a line is the last.

    No piece ends with a carriage return, of which the next might have the line feed.
    """
    waiting = blank = b""
    plain = path.lower()
    with files.reading(path) as file, _unpacked(plain, file) as stream:
        found = stream.read(_BLOCK).removeprefix(_MARK)
        read = len(found)
        while found:
            body = found.rstrip(b"\r\n")
            if body:
                if len(blank) == _BLANK:
                    raise ValueError(f"{_BLANK:,} or more empty lines follow each other in it")
                if waiting:
                    yield waiting
                waiting, blank = blank + body, b""
            blank = (blank + found[len(body) :])[:_BLANK]
            found = stream.read(_BLOCK)
            read += len(found)
            if plain.endswith((".gz", ".zst")):
                check_stored(read, file.tell())
    if waiting:
        yield waiting + b"\n"


@contextlib.contextmanager
def _unpacked(plain: str, file: IO[bytes]) -> Iterator[IO[bytes] | gzip.GzipFile]:
    if plain.endswith(".gz"):
        with gzip.GzipFile(fileobj=file) as stream:
            yield stream
    elif plain.endswith(".zst"):
        with arrow().CompressedInputStream(arrow().PythonFile(file, "r"), "zstd") as stream:
            yield stream
    else:
        yield file


def _with_line_feeds(raw: bytes) -> bytes:
    """Bytes from the begin of a line, where a return alone, outside of quotes, is a line feed."""
    if raw.count(b"\r") == raw.count(b"\r\n"):
        return raw
    data = np.frombuffer(raw, np.uint8).copy()
    alone = (data == _RETURN) & ~_quoted(data)
    alone[:-1] &= data[1:] != _NEWLINE
    data[alone] = _NEWLINE
    return data.tobytes()


def _line_ends(raw: bytes) -> np.ndarray:
    """Where lines end, outside of quotes."""
    data = np.frombuffer(raw, np.uint8)
    ends = data == _NEWLINE
    if b'"' in raw:
        ends &= ~_quoted(data)
    return np.flatnonzero(ends)


def _quoted(data: np.ndarray) -> np.ndarray:
    """Which bytes are between quotes; a double quote in a field closes and opens them."""
    return np.bitwise_xor.accumulate(data == _QUOTE)


def _text(raw: bytes, line: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        at = line + raw.count(b"\n", 0, exc.start)
        raise ValueError(
            f"line {at}: found {raw[exc.start : exc.start + 4]!r}, which is not UTF-8: save it as "
            "CSV in UTF-8"
        ) from None


def _fields(raw: bytes, names: tuple[str, ...], dialect: Dialect, line: int) -> Texts:
    data = np.frombuffer(raw, np.uint8)
    ends, between = data == _NEWLINE, data == ord(dialect.separator)
    quotes = b'"' in raw
    if quotes:
        plain = ~_quoted(data)
        ends &= plain
        between &= plain
    marks = np.flatnonzero(ends | between)
    at_end = ends[marks]
    last = marks[at_end]
    begins = np.concatenate([[0], last[:-1] + 1])
    _check_counts(raw, names, at_end, begins, last, line)
    if not raw.isascii():
        _text(raw, line)
    kept = ~(ends | between)
    offsets = marks - np.arange(len(marks))
    if b"\r" in raw:
        returns = last[(data[last - 1] == _RETURN) & (last > 0)] - 1
        kept[returns] = False
        offsets -= np.searchsorted(returns, marks)
    pa = arrow()
    buffers = [
        None,
        pa.py_buffer(np.concatenate([[0], offsets]).astype(np.int32)),
        pa.py_buffer(data[kept]),
    ]
    fields = pa.Array.from_buffers(pa.utf8(), len(marks), buffers)
    width = len(names)
    each = [
        fields if width == 1 else fields.take(pa.array(np.arange(i, len(marks), width)))
        for i in range(width)
    ]
    texts = Texts(names, each, raw, begins, line)
    if quotes:
        for i, name in enumerate(names):
            each[i] = _without_quotes(each[i], name, texts)
    return texts


def _check_counts(
    raw: bytes,
    names: tuple[str, ...],
    at_end: np.ndarray,
    begins: np.ndarray,
    last: np.ndarray,
    line: int,
) -> None:
    """Name the first line that has another number of fields."""
    width = len(names)
    right = np.zeros(width, bool)
    right[-1] = True
    if len(at_end) % width == 0 and (at_end.reshape(-1, width) == right).all():
        return
    counts = np.diff(np.concatenate([[-1], np.flatnonzero(at_end)]))
    row = int((counts != width).argmax())
    number = line + raw.count(b"\n", 0, int(begins[row]))
    text = raw[begins[row] : last[row]].decode("utf-8", "replace").rstrip("\r")
    raise ValueError(
        f"line {number}, column {min(int(counts[row]), width) + 1}: found {counts[row]} fields in "
        f"{shown(text)}, and the first line has {width}: {_cure(text, int(counts[row]), width)}"
    )


def _cure(text: str, count: int, width: int) -> str:
    if not text:
        return "leave out the empty line"
    return "fill the line, or leave it out" if count < width else "put quotes around a field"


def _without_quotes(column: Values, name: str, texts: Texts) -> Values:
    """Fields without the quotes around them, and with one quote for two."""
    compute = arrow().compute
    if not compute.any(compute.match_substring(column, '"')).as_py():
        return column
    quoted = compute.starts_with(column, '"')
    inside = compute.binary_slice(column.cast("binary"), 1, -1).cast("string")
    found = compute.if_else(quoted, inside, column)
    rest = compute.replace_substring(found, '""', "")
    doubled = compute.and_(quoted, compute.match_substring(found, '""'))
    wrong = compute.or_(
        compute.match_substring(compute.if_else(quoted, rest, column), '"'),
        compute.and_(quoted, compute.invert(compute.ends_with(column, '"'))),
    )
    if compute.any(wrong).as_py():
        row = compute.index(wrong, True).as_py()
        raise ValueError(
            f"line {texts.line(row)}, column {name!r}: found {shown(column[row].as_py())}: a quote "
            "inside of a field is written twice, in a field that has quotes around it"
        )
    return compute.if_else(doubled, compute.replace_substring(found, '""', '"'), found)
