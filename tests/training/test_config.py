"""Configs: what is read, what is refused and how it is said, and what is written again."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import hypothesis.strategies as st
import msgspec
import pytest
from configs import CONFIG
from hypothesis import given

import synkhronos as synk
from synkhronos.training import config as configs
from synkhronos.training._config_text.key_descriptions import what_to_give
from synkhronos.training._config_text.toml import toml_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.rst"


def read(folder: Path, text: str, *values: str) -> configs.Config:
    place = folder / "a.toml"
    place.write_text(text)
    return configs.read(place, values)


def test_values_and_defaults(tmp_path: Path) -> None:
    found = read(tmp_path, CONFIG)
    assert (found.model, found.batch, found.epochs, found.seed) == ("mine:net", 20, 3, 0)
    assert found.data.train == "mine:rows"
    assert found.base == str(tmp_path)
    assert configs.optimizer_of(found.optimizer, "optimizer").rate == 0.1
    assert read(tmp_path, 'base = ".."' + CONFIG).base == str(tmp_path.parent)


@pytest.mark.parametrize(
    ("value", "key", "wanted"),
    [
        ("batch=256", "batch", 256),
        ("optimizer.rate=1e-3", "optimizer", {"name": "adam", "rate": 1e-3}),
        ("optimizer=sgd", "optimizer", "sgd"),
        ("rule.alpha=0.5", "rule", {"name": "EASGD", "alpha": 0.5}),
        ("target=val_acc >= 0.97", "target", "val_acc >= 0.97"),
        ("stop=val_acc,>,0.97", "stop", "val_acc,>,0.97"),
        ('stop=["val_acc"]', "stop", ["val_acc"]),
        ("stop.patience=2", "stop", configs.Stop(metric="val_far", patience=2)),
        ('stop=[{ smooth = true }, "a"]', "stop", [configs.Stop(smooth=True), "a"]),
        ("folder = runs/b", "folder", "runs/b"),
        ("batch=", "batch", None),
        ("data.validation =", "data", configs.Data(train="mine:rows")),
        ("seed=", "seed", 0),
        ("best.keep=2", "best", configs.Best(metric="val_far", keep=2)),
        ("model_arguments.deep.er=true", "model_arguments", {"deep": {"er": True}}),
        ("folder=a\nbatch = 3", "folder", "a\nbatch = 3"),
    ],
)
def test_values_of_the_command_line(tmp_path: Path, value: str, key: str, wanted: Any) -> None:
    text = 'rule = "EASGD"\nbest = "val_far"\nstop = "val_far"\n' + CONFIG
    assert getattr(read(tmp_path, text, value), key) == wanted


# what is changed in the config, and what the message says after the name of the file
WRONG = [
    ("data.train=3", "data.train: found 3, give a path or a list of paths"),
    ('data.train=["a.h5", 3]', "data.train[1]: found 3, give a path or a list of paths"),
    ("epochs=0", "epochs: found 0, give an integer of at least 1"),
    ("epochs=many", "epochs: found 'many', give an integer of at least 1"),
    ("epochs=true", "epochs: found True, give an integer of at least 1"),
    ("batch_size=3", "batch_size: there is no such key; did you mean batch?; there are base, mod"),
    ("data.trian=a", "data.trian: there is no such key; did you mean train?; there are train, va"),
    ("early_stopping=5", "early_stopping: there is no such key; did you mean stop?; there are ba"),
    ("lr=0.1", "lr: there is no such key; did you mean optimizer?; there are base, model"),
    ("guard=no", "guard: found 'no', give raise, skip or none"),
    ("keep=some", "keep: found 'some', give an integer of at least 1, or \"all\""),
    ("slices=0", 'slices: found 0, give an integer of at least 1, or "auto"'),
    ("ema=1", "ema: found 1, give a number of at least 0 and less than 1"),
    ("optimizer.rate=fast", "optimizer.rate: found 'fast', give a number of more than 0"),
    ("optimizer.warmup=-1", "optimizer.warmup: found -1, give an integer of at least 0"),
    ("optimizer={ rate = 1 }", "optimizer.name: missing, give the name of an update rule"),
    ("best.mode=up", "best.mode: found 'up', give min or max"),
    ("plateau.factor=1", "plateau.factor: found 1, give a number of more than 0 and less than 1"),
    ("data.resize=[3]", "data.resize: found [3], give [height, width]"),
    ("base=3", "base: found 3, give the path of a folder"),
    ("floatX=float16", "floatX: found 'float16', give float32 or float64"),
    ("members=0", "members: found 0, give an integer of at least 1"),
]


@pytest.mark.parametrize(("value", "message"), WRONG, ids=[value for value, _ in WRONG])
def test_what_is_refused(tmp_path: Path, value: str, message: str) -> None:
    """The path of the value, what was found, and what can be given."""
    with pytest.raises(synk.InputError) as raised:
        read(tmp_path, CONFIG, value)
    assert str(raised.value).startswith(f"{tmp_path / 'a.toml'}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs = ", "not a TOML file: Invalid value (at end of document)"),
        ("model = 'a:b'\noptimizer = 'adam'\nepochs = 3", "data: missing, give a table with train"),
        (
            "model = 'a:b'\noptimizer = 'adam'\nepochs = 3\n[data]",
            "data.train: missing, give a path",
        ),
    ],
)
def test_what_a_file_lacks(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(synk.InputError, match=re.escape(f"a.toml: {message}")):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("batch", "'batch': write key=value, such as batch=256"),
        ("=3", "'=3': write key=value"),
        ("a..b=3", "'a..b=3': write key=value"),
        ("epochs.many=3", "'epochs.many=3': epochs is 3, and has no keys"),
        ("stop=[3", "'stop=[3': the value is not TOML"),
    ],
)
def test_values_that_cannot_be_read(tmp_path: Path, value: str, message: str) -> None:
    with pytest.raises(synk.InputError, match=re.escape(message)):
        read(tmp_path, CONFIG, value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(synk.InputError, match=r"b.toml: cannot be read \(No such file"):
        configs.read(tmp_path / "b.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff")
    with pytest.raises(synk.InputError, match=r"b.toml: cannot be read \(it is not UTF-8"):
        configs.read(tmp_path / "b.toml")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    text = 'rule = { name = "EASGD", period = 3 }\nbest = { metric = "val_far" }\n' + CONFIG
    found = read(tmp_path, text, "model_arguments.since=2026-11-23", 'stop=["a", { by = 1 }]')
    other = tmp_path / "other"
    other.mkdir()
    assert read(other, found.toml()) == found  # also from another folder
    assert configs.config_of(found.table()) == found
    assert found.model_arguments == {"since": datetime.date(2026, 11, 23)}


keys = st.text(min_size=1, max_size=5)
plain = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.dates(),
)


def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What contains such values, or is one of them."""
    return inner | st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)


values = around(around(around(plain)))


@given(st.dictionaries(keys, values, max_size=4), st.text())
def test_any_table_is_written_as_toml(table: dict[str, Any], comment: str) -> None:
    comments = {"": comment, **dict.fromkeys(table, comment)}
    assert tomllib.loads(toml_of(table, comments)) == table


def test_comments_of_written_toml() -> None:
    text = toml_of({"a": 1, "b": {"c": 2}}, {"": "first\nlines", "b": "table", "b.c": "two"})
    assert text == "# first\n# lines\n\na = 1\n\n# table\n[b]\n# two\nc = 2\n"
    for wrong in ({"a": None}, {"a": [object()]}, {3: 1}):
        with pytest.raises(synk.InputError, match="TOML has no"):
            toml_of(wrong)


STRUCTS = {
    "": configs.Config,
    "data.": configs.Data,
    "stop.": configs.Stop,
    "best.": configs.Best,
    "plateau.": configs.Plateau,
    "optimizer.": configs.Optimizer,
}


def test_each_key_says_what_can_be_given() -> None:
    known = {
        prefix + f.encode_name for prefix, s in STRUCTS.items() for f in msgspec.structs.fields(s)
    }
    assert set(configs.GIVE) == known


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (configs.Count | None, "an integer of at least 1"),
        (configs.Share, "a number of at least 0 and less than 1"),
        (Annotated[float, msgspec.Meta(gt=0)], "a number of more than 0"),
        (Literal["a", "b", "c"], "a, b or c"),
        (Literal["all"] | configs.Count, 'an integer of at least 1, or "all"'),
        (configs.Folder | None, "the path of a folder"),
        (configs.Plateau | None, "a table"),
        (bool, "true or false"),
    ],
)
def test_what_can_be_given_follows_from_the_type(kind: Any, words: str) -> None:
    assert what_to_give(kind) == words


def test_the_page_lists_each_key_with_its_default() -> None:
    """A row for each key; the default as TOML, "none" or "required"."""
    rows = re.findall(r"^   \* - ``([\w.]+)``\n     - (.*)\n     - \S", PAGE.read_text(), re.M)
    assert len(rows) == len(dict(rows))
    wanted = {}
    for prefix, struct in STRUCTS.items():
        for f in msgspec.structs.fields(struct):
            if f.required:
                wanted[prefix + f.encode_name] = "required"
                continue
            default = f.default_factory() if f.default is msgspec.NODEFAULT else f.default
            if default is None or default in ([], {}):
                default = "none"
            else:
                default = f"``{toml_of({'x': default}).removeprefix('x = ').strip()}``"
            wanted[prefix + f.encode_name] = default
    assert dict(rows) == wanted
