"""The config of a run: a TOML file, read with its types, with values from the command line.

`read` gives a `Config`. `synkhronos.training.configured.train` trains as it says; so does
`synk train`. ``docs/reference/config.rst`` lists all keys.
"""

# These rules hold here:
#
# * The Structs are the one list of keys, with types, bounds and defaults. The words of messages
#   follow from them (`GIVE`), and a test compares the reference with them.
# * A config is a frozen value. Reading it opens one file, and imports nothing that it names: to
#   make networks and rows of it is the matter of `synkhronos.training.configured`.
# * An unknown key is an error. Nothing is guessed, and nothing is left out in silence.
# * An error says the path of the value, what was found and what can be given.
# * None stands for a key that is not given, since TOML has no such value. So `table` leaves it out.
# * The order: the file, then the overrides, then the folder made absolute, then all checks.

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from synkhronos._checks import closest, options_checked, shown
from synkhronos._errors import InputError, needing
from synkhronos._host import files
from synkhronos.training._config_text.key_descriptions import words_of_keys
from synkhronos.training._config_text.toml import toml_of

with needing("msgspec", "train"):
    import msgspec

__all__ = ["Config", "config_of", "read"]


def _given_by(text: str) -> msgspec.Meta:
    """A description of what can be given, where the type does not say it."""
    return msgspec.Meta(description=text)


Count = Annotated[int, msgspec.Meta(ge=1)]
Number = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
# Of these no bound says what can be given: their descriptions do.
Arguments = Annotated[dict[str, Any], _given_by("a table of arguments")]
Folder = Annotated[str, _given_by("the path of a folder")]
Paths = Annotated[str | list[str | list[str]], _given_by("a path or a list of paths")]
ValueName = Annotated[str, _given_by("the name of a value, such as val_loss")]


class Data(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The section ``[data]``: where rows come from."""

    train: Paths
    validation: Paths | None = None
    test: Paths | None = None
    arrays: Annotated[
        list[str | list[str]] | None, _given_by("a list of names, one for each input")
    ] = None
    split: Share | None = None
    format: (
        Literal["npy", "npz", "hdf5", "zarr", "parquet", "csv", "images", "idx", "cifar10"] | None
    ) = None
    memory: bool = False
    cache: Folder | None = None
    skip: bool = False
    check: bool = False
    classes: Annotated[
        Count | list[str] | None, _given_by("an integer of at least 1, or a list of names")
    ] = None
    shape: Annotated[list[Count] | None, _given_by("a list of integers of at least 1")] = None
    scale: Positive | None = None
    axes: Literal["NHWC", "NCHW"] = "NHWC"
    first_label: Number = 0
    resize: Annotated[tuple[Count, Count], _given_by("[height, width]")] | None = None
    channels: Literal["RGB", "L", "RGBA"] = "RGB"
    dtype: Literal["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32"] = "uint8"
    orientation: bool = True
    root: Folder | None = None
    ending: Annotated[str, _given_by("a text such as .jpg")] = ""
    separator: Annotated[str | None, _given_by("one character")] = None
    decimal: Annotated[Literal[".", ","], _given_by('"." or ","')] = "."
    header: bool = True
    skip_lines: Number = 0


class Best(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The section ``[best]``: as `synkhronos.training.Best`."""

    metric: ValueName = "val_loss"
    keep: Count = 1
    mode: Literal["min", "max"] | None = None
    restore: bool = False


class Stop(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The section ``[stop]``: as `synkhronos.training.EarlyStopping`."""

    metric: ValueName = "val_loss"
    patience: Count = 5
    mode: Literal["min", "max"] | None = None
    by: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    smooth: bool = False


class Plateau(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The section ``[plateau]``: as `synkhronos.training.Plateau`."""

    metric: ValueName = "val_loss"
    factor: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.1
    patience: Count = 5
    least: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    mode: Literal["min", "max"] | None = None


class Optimizer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The section ``[optimizer]``; its other keys are arguments of the rule, or of the schedule."""

    name: Annotated[str, _given_by("the name of an update rule")]
    rate: Positive | None = None
    schedule: Annotated[str | None, _given_by("the name of a schedule")] = None
    steps: Count | None = None
    warmup: Number = 0
    final: Annotated[float, msgspec.Meta(ge=0)] | None = None
    arguments: Arguments = {}


class Config(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The settings of one run; made by `read` or `config_of`.

    Attributes are the keys of the file: see ``docs/reference/config.rst``.

    Attributes
    ----------
    base : str
        The folder at which relative paths begin, and in which modules are looked for first. In a
        config that was read it is absolute.
    """

    base: Folder = "."
    model: Annotated[str, _given_by('the text "module:function"')]
    model_arguments: Arguments = {}
    optimizer: Annotated[
        str | Arguments, _given_by("the name of an update rule, or a table with name")
    ]
    epochs: Count
    data: Annotated[Data, _given_by("a table with train")]
    batch: Count | None = None
    member_batch: Count | None = None
    rule: Annotated[
        str | Arguments | None, _given_by("the name of a rule, or a table with name")
    ] = None
    clip: Positive | None = None
    ema: Share | None = None
    plateau: Plateau | None = None
    metrics: Annotated[list[str | Arguments], _given_by("a list of names")] = []
    validate_every: Count = 1
    stop: Annotated[
        str | Stop | list[str | Stop],
        msgspec.Meta(
            description="the name of a value, such as val_loss, a table, or a list of them"
        ),
    ] = []
    patience: Count | None = None
    target: Annotated[
        str | list[str], _given_by('a text such as "val_accuracy >= 0.97", or a list of them')
    ] = []
    best: Annotated[str | Best | None, _given_by("the name of a value, or a table")] = None
    folder: Folder | None = None
    resume: Annotated[Literal["auto"] | Number | None, _given_by('"auto" or a step')] = None
    keep: Literal["all"] | Count = 3
    save_every: Count | None = None
    export: Annotated[
        str | list[str], _given_by("tensorboard, csv or mlflow, or a list of them")
    ] = []
    trace: Number = 0
    torn: Literal["raise", "restore"] = "raise"
    guard: Literal["raise", "skip", "none"] = "raise"
    strict: bool = True
    verify: Number = 0
    seed: Number = 0
    shuffle: bool = True
    last: Literal["keep", "drop"] = "keep"
    slices: Literal["auto"] | Count = 1
    prefetch: Annotated[int, msgspec.Meta(ge=2)] = 2
    read: Literal["master", "node"] = "master"
    reduction: Annotated[str | None, _given_by("the name of a reduction, such as avg")] = None
    compress: Literal["fp16", "bf16"] | None = None
    exchange: Annotated[
        str | Arguments | None, _given_by("TopK or HalfPrecision, or a table with name")
    ] = None
    overlap: bool = False
    members: Count | None = None
    devices: Annotated[str | list[Any] | None, _given_by("a text such as cuda, or a list")] = None
    mode: Annotated[str | None, _given_by("the name of a mode of PyTensor, such as NUMBA")] = None
    floatX: Literal["float32", "float64"] | None = None
    precision: Literal["float32", "tf32", "bf16"] | None = None
    progress: bool = True

    def table(self) -> dict[str, Any]:
        """All settings that have a value, as `read` would find them in a file."""
        plain = msgspec.to_builtins(self, builtin_types=_DATES)
        found: dict[str, object] = _without_none(plain)
        return found

    def toml(self) -> str:
        """The text of a file with these settings, which `read` can read again."""
        return toml_of(self.table())


_DATES = (datetime.datetime, datetime.date, datetime.time)

# The values that can be given, by the key.
GIVE = dict([*words_of_keys(Config), *words_of_keys(Optimizer, "optimizer.")])


@options_checked
def read(path: Any, overrides: Iterable[str] = ()) -> Config:
    """Read a config.

    Parameters
    ----------
    path : path
        Of a TOML file.
    overrides : iterable of str
        Values in place of those of the file: ``"batch=256"``, ``"optimizer.rate=1e-3"``. A value is
        TOML; a bare word is a text. ``"batch="`` takes the value out.

    Returns
    -------
    Config

    Raises
    ------
    InputError
        The file cannot be read, a key is unknown or missing, or a value is not possible. It names
        the path of the value.
    BackendMissing
        msgspec is not installed.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from synkhronos.training import config
    >>> text = '''
    ... model = "mine:net"
    ... optimizer = "adam"
    ... epochs = 3
    ... batch = 64
    ... data = { train = "rows.npy" }
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = pathlib.Path(folder) / "a.toml"
    ...     _ = place.write_text(text)
    ...     found = config.read(place, ["epochs=5", "optimizer.rate=1e-3"])
    >>> found.epochs, found.optimizer, found.data.train
    (5, {'name': 'adam', 'rate': 0.001}, 'rows.npy')
    """
    where = Path(path)
    try:
        table = _parsed(files.read_text(where))
    except OSError as exc:
        raise InputError(
            f"{where}: cannot be read ({exc.strerror}): give the path of a TOML file; `synk new "
            "train` writes one"
        ) from None
    except ValueError as exc:  # of TOML, or of UTF-8
        raise InputError(f"{where}: not a TOML file: {exc}") from None
    for text in overrides:
        _override(table, text)
    if isinstance(table.get("base", "."), str):
        given = table.get("base", ".")
        try:
            table["base"] = str((where.parent / given).resolve())
        except (OSError, RuntimeError, ValueError) as exc:  # links in a circle; a null byte
            raise InputError(
                f"{where}: base: found {shown(given)}, give {GIVE['base']}: {exc}"
            ) from None
    return config_of(table, str(where))


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("tables or lists are too deep in each other") from None


def config_of(table: Mapping[str, object], what: str = "config") -> Config:
    """Check the settings of a table.

    Parameters
    ----------
    table : mapping
        As `tomllib` reads it from a file.
    what : str
        Where it comes from, for messages.

    Returns
    -------
    Config

    Raises
    ------
    InputError
        As for `read`.
    """
    found = _converted(table, Config, what, "", "")
    optimizer_of(found.optimizer, "optimizer", what)
    return found


def optimizer_of(value: str | Mapping[str, object], path: str, what: str = "") -> Optimizer:
    """The settings of an optimizer, which is a name or a table; `path` is its place in the config.

    Raises
    ------
    InputError
    """
    if isinstance(value, str):
        return Optimizer(name=value)
    known = Optimizer.__struct_fields__
    table: dict[str, object] = {k: v for k, v in value.items() if k in known}
    others = {k: v for k, v in value.items() if k not in known}
    given = table.get("arguments", {})
    if isinstance(given, dict):  # else it is refused with its place
        table["arguments"] = {**given, **others}
    return _converted(table, Optimizer, what, path, "optimizer")


def named(value: str | Mapping[str, object], path: str) -> tuple[str, Arguments]:
    """The name and the arguments of what is given by a name, or by a table with a name.

    Raises
    ------
    InputError
    """
    if isinstance(value, str):
        return value, {}
    arguments = dict(value)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise InputError(f"{path}.name: found {shown(name)}, give a name")
    return name, arguments


def _converted[T](
    table: Mapping[str, object], kind: type[T], what: str, path: str, usual: str
) -> T:
    """A table with its types; it is at `path` of the config, and its keys in GIVE at `usual`."""
    try:
        return msgspec.convert(dict(table), kind)
    except msgspec.ValidationError as exc:
        text = _explained(str(exc), table, path, usual)
        raise InputError(f"{what}: {text}" if what else text) from None


_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_PLACE = re.compile(r"(.*) - at `(?:key in )?\$(.*?)`", re.DOTALL)


def _explained(text: str, table: object, path: str, usual: str) -> str:
    """The fault, by the path of the value, what was found, and what can be given."""
    match = _PLACE.fullmatch(text)
    message, inner = match.groups() if match else (text, "")
    here, known = (f"{start}{inner}".removeprefix(".") for start in (path, usual))
    if found := _UNKNOWN.fullmatch(message):
        names = _keys_of(known)
        meant = closest(found[1], names)
        hint = f"; did you mean {meant}?" if meant else ""
        full = f"{here}.{found[1]}".removeprefix(".")
        return f"{full}: there is no such key{hint}; there are {', '.join(names)}"
    if found := _MISSING.fullmatch(message):
        here, known = (f"{start}.{found[1]}".removeprefix(".") for start in (here, known))
        return f"{here}: missing, give {GIVE[known]}"
    value: Any = table
    for part in re.findall(r"[^.\[\]]+", inner):
        value = value[int(part)] if isinstance(value, list | tuple) else value[part]
    give = GIVE.get(re.sub(r"\[.*", "", known), message)
    return f"{here}: found {shown(value)}, give {give}"


def _keys_of(path: str) -> list[str]:
    """The keys of a table of the config."""
    inside = f"{path}." if path else ""
    names = [key.removeprefix(inside) for key in GIVE if key.startswith(inside)]
    return [name for name in names if "." not in name]


def _override(table: dict[str, object], text: str) -> None:
    """Set a value of the table by ``key=value``, or take it out by ``key=``."""
    key, equals, given = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise InputError(f"{text!r}: write key=value, such as batch=256 or optimizer.rate=1e-3")
    for depth, part in enumerate(parts[:-1], 1):
        inner = table.get(part, {})
        if isinstance(inner, str) and part in ("optimizer", "rule", "exchange"):
            inner = {"name": inner}
        elif isinstance(inner, str) and part in ("best", "stop"):
            inner = {"metric": inner}
        if not isinstance(inner, dict):
            path = ".".join(parts[:depth])
            raise InputError(f"{text!r}: {path} is {shown(inner)}, and has no keys")
        table[part] = inner
        table = inner
    if given.strip():
        table[parts[-1]] = _value(text, given.strip())
    else:
        table.pop(parts[-1], None)


def _value(text: str, given: str) -> object:
    try:
        found = _parsed(f"value = {given}")
    except ValueError as exc:
        if given[:1] in ('"', "'", "[", "{"):  # meant as TOML
            raise InputError(f"{text!r}: the value is not TOML: {exc}") from None
        return given
    return found["value"] if len(found) == 1 else given


def _without_none(value: object) -> Any:
    """Tables without the keys that have no value, also in lists."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(v) for v in value]
    return value
