"""Columns of pyarrow's tables as arrays: their types, holes, lists and labels, and `classes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from synkhronos._checks import check_integer, is_integer, shown
from synkhronos._errors import InputError, InputTypeError, needing
from synkhronos.training.sources._files import NotNumbers
from synkhronos.training.sources._paths import few

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

EXACT = 1 << 53  # the integers up to it are float64, too
_LABELS = np.dtype(np.int64)

type Where = Callable[[int], str]
type Kind = pyarrow.DataType
type Values = pyarrow.Array | pyarrow.ChunkedArray
type File = pyarrow.parquet.ParquetFile


def arrow() -> ModuleType:
    with needing("pyarrow", "data"):
        import pyarrow
    import pyarrow.compute

    return pyarrow


def parquet_of() -> ModuleType:
    """The module of pyarrow for files of Parquet."""
    arrow()
    import pyarrow.parquet

    return pyarrow.parquet


def selected(columns: str | Sequence[str], names: Sequence[str]) -> list[str]:
    """The names of the columns, in which ``"a:c"`` stands for all from a to c.

    Raises
    ------
    ValueError
        There is none of a name, or more than one.
    """
    found: list[str] = []
    for name in [columns] if isinstance(columns, str) else columns:
        first, colon, last = name.partition(":")
        if name not in names and colon and first in names and last in names:
            begin, end = names.index(first), names.index(last)
            if end < begin:
                raise ValueError(f"its column {last!r} is before {first!r}: give {last}:{first}")
            found += names[begin : end + 1]
        else:
            found.append(name)
    missing = [name for name in found if name not in names]
    if missing:
        raise ValueError(f"it has no column {missing}; there are {', '.join(names)}")
    twice = [name for name in found if list(names).count(name) > 1]
    if twice:
        raise ValueError(f"it has several columns {twice[0]!r}: write each under a name of its own")
    return found


def is_one(columns: str | Sequence[str], names: Sequence[str]) -> bool:
    """Whether a row is a value of one column, and not a vector of the values of several."""
    return isinstance(columns, str) and columns in names


def kind_of(
    name: str, kind: Kind, labels: Sequence[str] | None
) -> tuple[tuple[int, ...], np.dtype]:
    """The shape of a row and the dtype of a column of this type; 0 in it is a length to be found.

    Raises
    ------
    NotNumbers
    """
    lists: list[int] = []
    found = _stored(kind)
    if shape := getattr(kind, "shape", None):  # of tensors, which are stored as lists
        lists, found = [*shape], found.value_type
    while _is_list(found):
        lists.append(getattr(found, "list_size", 0))
        found = _stored(found.value_type)
    if _is_text(found):
        if labels is None:
            raise NotNumbers(
                f"column {name!r} is text ({_stored(kind)}): give classes=, the list of its values "
                "in the order of their numbers"
            )
        return tuple(lists), _LABELS
    if labels is not None:
        raise NotNumbers(f"column {name!r} is {kind}, and classes= has names: give their number")
    types = arrow().types
    if types.is_boolean(found) or types.is_integer(found) or types.is_floating(found):
        return tuple(lists), np.dtype(found.to_pandas_dtype())
    raise NotNumbers(
        f"column {name!r} is {_stored(kind)}, and Data hold numbers: {_cure(name, found)}"
    )


def _stored(kind: Kind) -> Kind:
    """The type of the values of dictionaries and of extensions."""
    types = arrow().types
    while types.is_dictionary(kind) or isinstance(kind, arrow().BaseExtensionType):
        kind = kind.value_type if types.is_dictionary(kind) else kind.storage_type
    return kind


def _is_list(kind: Kind) -> bool:
    types = arrow().types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _is_text(kind: Kind) -> bool:
    types = arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_text(kind: Kind) -> bool:
    """Whether values are texts, which may stand in a dictionary."""
    return _is_text(_stored(kind))


def text_bytes(column: Values) -> int:
    """The bytes that texts of a dictionary take once each row has its own, also in lists."""
    chunks = column.chunks if isinstance(column, arrow().ChunkedArray) else [column]
    return sum(_text_bytes(chunk) for chunk in chunks)


def _text_bytes(array: Values) -> int:
    while _is_list(array.type):
        array = array.flatten()
    compute, types = arrow().compute, arrow().types
    if not types.is_dictionary(array.type):
        return 0
    lengths = compute.binary_length(array.dictionary).cast("int64").take(array.indices)
    return int(compute.sum(lengths).as_py() or 0)


def check_flat(name: str, kind: Kind) -> None:
    """Refuse a column in which a row has several values.

    Raises
    ------
    ValueError
    """
    if arrow().types.is_nested(kind):
        raise ValueError(f"column {name!r} is {kind}: give one with a value in each row")


def _cure(name: str, kind: Kind) -> str:
    types = arrow().types
    if types.is_decimal(kind):
        return f"write it as table.column({name!r}).cast('float64')"
    if types.is_temporal(kind):
        whole = "int32" if kind.bit_width == 32 else "int64"
        return f"write it as table.column({name!r}).cast({whole!r})"
    if types.is_struct(kind):
        fields = few([kind.field(i).name for i in range(kind.num_fields)])
        return f"write its fields {fields} as columns, by table.flatten()"
    return "write it as numbers"


def values_of(
    name: str, column: Values, row: tuple[int, ...], labels: Sequence[str] | None, where: Where
) -> np.ndarray:
    """The rows of a column; `where` says of each where it stands in its file.

    Raises
    ------
    ValueError
        There is a hole, a list of another length, or a text that is none of `labels`.
    """
    array = column.combine_chunks() if isinstance(column, arrow().ChunkedArray) else column
    array = plain(array)
    count, each = len(array), 1
    _refuse_holes(name, array, where, each)
    for length in _list_lengths(column.type, row):
        lengths = _lengths(array)
        if lengths is not None and (wrong := lengths != length).any():
            at = int(wrong.argmax())
            raise ValueError(
                f"column {name!r} has lists of {length} and, in {where(at // each)}, one of "
                f"{lengths[at]}: all need one length"
            )
        array, each = plain(array.flatten()), each * length
        _refuse_holes(name, array, where, each)
    if _is_text(array.type):
        array = _numbered(name, array, labels or (), where, each)
    return array.to_numpy(zero_copy_only=False).reshape(count, *row)


def _list_lengths(kind: Kind, row: tuple[int, ...]) -> tuple[int, ...]:
    """The lengths of the lists in each other, of which a tensor is one."""
    return (int(np.prod(row)),) if getattr(kind, "shape", None) else row


def first_shape(name: str, column: Values, row: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the first row of a column; `row` has 0 for lengths that its type does not say.

    Raises
    ------
    ValueError
        The row is a hole, or has no value.
    """
    found, value = [], column[0].as_py()
    for _ in row:
        if not value:
            raise ValueError(f"column {name!r} has no value in row 0 of the file")
        found.append(len(value))
        value = value[0]
    return tuple(found)


def plain(array: Values) -> Values:
    """The values of dictionaries and extensions."""
    while True:
        if hasattr(array, "dictionary_decode"):
            array = array.dictionary_decode()
        elif isinstance(array, arrow().ExtensionArray):
            array = array.storage
        else:
            return array


def _lengths(array: Values) -> np.ndarray | None:
    """The length of each list; None where the type says it."""
    if arrow().types.is_fixed_size_list(array.type):
        return None
    found = arrow().compute.list_value_length(array)
    return np.asarray(found.to_numpy(zero_copy_only=False))


def _refuse_holes(name: str, array: Values, where: Where, each: int) -> None:
    if array.null_count:
        at = int(array.is_null().to_numpy(zero_copy_only=False).argmax())
        raise ValueError(
            f"column {name!r} has {array.null_count} nulls, the first in {where(at // each)}: fill "
            "it, or leave out the row"
        )


def _numbered(name: str, array: Values, labels: Sequence[str], where: Where, each: int) -> Values:
    """The number of each text in `labels`."""
    known = arrow().array(list(labels), array.type)
    found = arrow().compute.index_in(array, value_set=known)
    if found.null_count:
        at = int(found.is_null().to_numpy(zero_copy_only=False).argmax())
        raise ValueError(
            f"column {name!r} has {shown(array[at].as_py())} in {where(at // each)}, which is none "
            f"of classes={shown(list(labels))}"
        )
    return found.cast("int64")


def side_by_side(
    names: Sequence[str], arrays: Sequence[np.ndarray], dtype: np.dtype, where: Where
) -> np.ndarray:
    """Columns of numbers as vectors of their common dtype.

    Raises
    ------
    ValueError
        This dtype does not hold an integer.
    """
    for name, array in zip(names, arrays, strict=True):
        check_exact(name, array, dtype, where)
    return np.stack([array.astype(dtype, copy=False) for array in arrays], axis=1)


def check_exact(name: str, array: np.ndarray, dtype: np.dtype, where: Where) -> None:
    """Refuse integers that a dtype of floats does not hold."""
    if dtype.kind != "f" or array.dtype.kind not in "iu" or array.dtype.itemsize < 8:
        return
    wrong = array > EXACT
    if array.dtype.kind == "i":
        wrong |= array < -EXACT
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(
            f"column {name!r} is {array.dtype} and has {array[at]} in {where(at)}, whose digits "
            f"{dtype}, the common type, does not hold: read it as a source of its own"
        )


def check_classes(what: str, value: Any) -> int | tuple[str, ...] | None:
    """The number of classes, or the names of classes in the order of their numbers."""
    if value is None:
        return None
    if is_integer(value):
        return check_integer(f"{what}: classes", value, 1)
    several = isinstance(value, Sequence) and not isinstance(value, str)
    names = tuple(name for name in value if isinstance(name, str)) if several else ()
    if not names or len(names) < len(value):
        raise InputTypeError(
            f"{what}: classes={shown(value)}: give the number of classes, or a list of their names"
        )
    if len(set(names)) < len(names):
        raise InputError(f"{what}: classes={shown(value)} has a name twice")
    return names
