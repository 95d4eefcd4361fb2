"""Results of `map` at addresses: signed, so that a stranger who writes there runs no code."""

from __future__ import annotations

import os
import re
import stat
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet_cases as cases
import object_servers
import pytest
from selection import thorough
from user_scripts import run_script

import synkhronos as synk
from synkhronos._errors import InputError, SynkhronosError
from synkhronos._host.own_key import key_path, own_key
from synkhronos.pymc._map.names import file_of
from synkhronos.pymc._map.results import Folder, packed_result, write_result

fsspec = pytest.importorskip("fsspec", reason="synkhronos[data]")
ADDRESS = "memory://fits/shops"


@pytest.fixture(autouse=True)
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A file system in memory, which is empty; a key of its own."""
    monkeypatch.setenv("SYNKHRONOS_KEY", str(tmp_path / "settings" / "key"))
    found = fsspec.filesystem("memory")
    yield found
    found.store.clear()


def kept(folder: Folder, name: str, result: object) -> None:
    """A process has left a result, and it is kept."""
    with folder.keeping():
        write_result(folder.path, name, packed_result(name, "digest", 7, result))
        folder.came(name)


def test_results_at_an_address_are_found_again(system: Any) -> None:
    folder = Folder(ADDRESS + "/")
    assert folder.entropy(7, 1) == 7
    kept(folder, "a", [1, 2])
    assert not list(folder.path.iterdir())
    again = Folder(ADDRESS)
    assert again.entropy(None, 1) == 7
    assert again.missing({"a": "digest", "b": "digest"}) == {"b"}
    assert again.read("a") == [1, 2]
    with pytest.raises(InputError, match=r"memory://fits/shops/\w+.fit' is the result of another"):
        again.has("a", "other")
    for _ in range(2):  # it may be gone
        again.forget("a")
    assert not system.exists(f"/fits/shops/{file_of('a')}")
    with pytest.raises(SynkhronosError, match=r"item a, .* cannot be read"):
        again.read("a")
    assert again.missing({"a": "digest"}) == {"a"}


@pytest.mark.parametrize("kind", ["stranger", "a bit", "half", "empty", "moved", "other address"])
def test_results_that_are_not_signed_are_refused(system: Any, kind: str) -> None:
    """T5: nothing of them is unpickled."""
    folder = Folder(ADDRESS)
    kept(folder, "a", 1)
    kept(folder, "b", 2)
    place, other = (f"/fits/shops/{file_of(name)}" for name in "ab")
    whole = system.cat_file(place)
    system.pipe_file(place, {
        "stranger": packed_result("a", "digest", 7, 1),
        "a bit": whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:],
        "half": whole[:-3],
        "empty": b"",
        "moved": system.cat_file(other),
        "other address": whole,
    }[kind])  # fmt: skip
    if kind == "other address":
        system.mv("/fits/shops", "/fits/copy", recursive=True)
        folder = Folder("memory://fits/copy")
    for look in (lambda: folder.read("a"), lambda: folder.missing({"a": "digest"})):
        with pytest.raises(InputError, match=r"is not signed with the key in .*settings/key"):
            look()


def test_an_earlier_result_is_put_back(system: Any) -> None:
    """One by another seed is refused, also by who has removed the note of the seed."""
    folder = Folder(ADDRESS)
    folder.entropy(7, 7)
    kept(folder, "a", 1)
    system.rm("/fits/shops/seed.json")
    again = Folder(ADDRESS)
    again.entropy(8, 8)
    with pytest.raises(InputError, match=r"item a by random_seed=7, and this call has 8"):
        again.missing({"a": "digest"})


def test_another_key_has_signed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(Folder(ADDRESS), "a", 1)
    first = os.environ["SYNKHRONOS_KEY"]
    monkeypatch.setenv("SYNKHRONOS_KEY", str(tmp_path / "another"))
    with pytest.raises(InputError, match=r"set SYNKHRONOS_KEY to the file of the key that"):
        Folder(ADDRESS).read("a")
    monkeypatch.setenv("SYNKHRONOS_KEY", first)
    assert Folder(ADDRESS).read("a") == 1


def test_a_key_is_made_once_and_for_its_owner_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bytes] = []
    users = [threading.Thread(target=lambda: found.append(own_key())) for _ in range(8)]
    for each in users:
        each.start()
    for each in users:
        each.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert len(found[0]) == 32
    path = key_path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["key"]
    for mode in (0o640, 0o602):
        path.chmod(mode)
        with pytest.raises(InputError, match=r"another user may read or write the key"):
            own_key()
    path.chmod(0o600)
    for damaged in ("", "ab", "x" * 64):
        path.write_text(damaged)
        with pytest.raises(InputError, match=r"the key in .* is damaged: it has 64 hexadecimal"):
            own_key()
    monkeypatch.delenv("SYNKHRONOS_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert key_path() == Path("/x/synkhronos/key")


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("nothing://x/y", "folder='nothing://x/y': .*nothing"),
        ("memory://", "folder='memory:': name a folder there"),
        ("nothing://me:pw@x/y?key=1", re.escape("folder='nothing://***@x/y?***'")),
    ],
)
def test_addresses_that_are_none(address: str, error: str) -> None:
    """Nothing is started, and no secret is shown."""
    with pytest.raises(InputError, match=f"map: {error}") as caught:
        synk.pymc.map(cases.ended, ["a"], folder=address)
    assert "pw@" not in str(caught.value)


def test_a_server_that_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of the call, and not a result that is missing later."""
    folder = Folder(ADDRESS)
    kept(folder, "a", 1)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "no", "https://me:pw@host/x?key=1")

    monkeypatch.setattr(folder._store._system, "pipe_file", refuse)
    with pytest.raises(SynkhronosError, match=r"cannot be written to 'memory://.*Permission") as e:
        kept(folder, "b", 2)
    assert "pw@" not in "".join(traceback.format_exception(e.value))
    monkeypatch.setattr(folder._store._system, "ls", refuse)
    with pytest.raises(InputError, match=r"folder='memory://fits/shops' cannot be listed: Permiss"):
        Folder(ADDRESS)


@pytest.mark.timeout(120)
def test_map_at_addresses(tmp_path: Path) -> None:
    """Items are fitted in slots; a local address is a folder, which is looked at as one."""
    items = {"first": "first", "raises": "raises"}
    fits = synk.pymc.map(cases.ended, items, folder=ADDRESS, random_seed=1, cores=1)
    assert (list(fits), list(fits.failed), fits.folder) == (["first"], ["raises"], ADDRESS)
    assert repr(fits) == f"<1 fits, 1 failed, in {ADDRESS!r}>"
    again = synk.pymc.map(cases.ended, {"first": "first"}, folder=ADDRESS)
    assert dict(again) == dict(fits)
    local = f"file://{tmp_path}/results"
    assert Folder(local).at == tmp_path / "results"
    (tmp_path / "results").chmod(0o770)
    with pytest.raises(InputError, match="another user may write to"):
        Folder(local)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", thorough("s3", "gs"))
def test_a_server_of_objects(kind: str, tmp_path: Path) -> None:
    """With a pool and with slots; a stranger's pickle does not run."""
    for package in object_servers.PACKAGES[kind]:
        pytest.importorskip(package, reason="scripts/test --all installs it")
    text = """
        import pickle, sys
        from concurrent.futures import ThreadPoolExecutor
        sys.path.insert(0, sys.argv[1])
        import fleet_cases as cases, object_servers, synkhronos as synk

        class Evil:
            def __reduce__(self):
                return print, ("a stranger's code",)

        kind = sys.argv[2]
        address = f"{kind}://bucket/fits"
        with object_servers.opened(kind) as system:
            with ThreadPoolExecutor(1) as pool:
                first = synk.pymc.map(
                    cases.slow, dict.fromkeys("abc", 0.0), folder=address, on=pool
                )
            assert dict(first) == dict.fromkeys("abc", 0.0), first
            names = {name.rpartition("/")[2] for name in system.ls("bucket/fits", detail=False)}
            assert len(names) == 5, names
            again = synk.pymc.map(
                cases.slow, dict.fromkeys("abcd", 0.0), folder=address, cores=1
            )
            assert dict(again) == dict.fromkeys("abcd", 0.0)
            synk.pymc.map(bytes, {"large": 900_000, "e": 0}, folder=f"{kind}://bucket/bytes")
            large = synk.pymc.map(bytes, {"large": 900_000}, folder=f"{kind}://bucket/bytes")
            assert large["large"] == bytes(900_000)
            place = next(n for n in system.ls("bucket/fits", detail=False) if n.endswith(".fit"))
            code, head, _ = system.cat_file(place).split(b"\\n", 2)
            system.pipe_file(place, b"\\n".join([code, head, pickle.dumps(Evil())]))
            try:
                synk.pymc.map(cases.slow, dict.fromkeys("abcd", 0.0), folder=address)
            except synk.InputError as exc:
                assert "is not signed" in str(exc)
            else:
                raise AssertionError("it was read")
        print("as it must be")
    """
    printed = run_script(tmp_path, text, str(Path(cases.__file__).parent), kind)
    assert "as it must be" in printed
    assert "a stranger's code" not in printed
