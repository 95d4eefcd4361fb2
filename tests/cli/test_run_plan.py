"""The plan of a launch: hosts, the launcher's line and the environment; nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from synkhronos._errors import InputError, StartFailed
from synkhronos._host.launch_settings import LaunchSettings, launch_settings
from synkhronos.cli._command_line import main
from synkhronos.cli._parser import parsers_for
from synkhronos.cli._run import hosts as _hosts
from synkhronos.cli._run.hosts import Host, allocation, expanded_by_hand, listed_hosts
from synkhronos.cli._run.launchers import Mpi, library_beside
from synkhronos.cli._run.plan import Machine, Plan, plan_of
from synkhronos.cli._run.usage import UsageError

MPICH = Mpi("/mpich/bin/mpiexec.hydra", "MPICH 5.0.1")
OPEN_MPI = Mpi("/ompi/bin/mpirun", "mpirun (Open MPI) 5.0.8")
SCRIPT = str(Path(__file__))
SLURM = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "72(x2),36"}


def planned(
    *words: str,
    environ: dict[str, str] | None = None,
    mpi: Mpi | None = MPICH,
    name: str = "here",
    root: bool = False,
) -> Plan:
    parser, _ = parsers_for("run")
    machine = Machine(name, ("python",), root, lambda: mpi)
    return plan_of(parser.parse_args(["run", *words]), environ or {}, machine)


def line(*words: str, **known: object) -> str:
    """The line without the program."""
    plan = planned(*words, SCRIPT, **known)  # type: ignore[arg-type]
    assert plan.words[-2:] == ("python", SCRIPT)
    return " ".join(plan.words[:-2])


@pytest.mark.parametrize(
    ("words", "environ", "wanted"),
    [
        ((), {}, ""),
        (("--nodes", "1", "-n", "4"), {}, ""),
        (("-H", "localhost:4"), {}, ""),
        (("-H", "here.cluster:4"), {}, ""),
        (("--nodes", "2"), {}, "/mpich/bin/mpiexec.hydra -n 2"),
        (("-H", "localhost,localhost"), {}, "/mpich/bin/mpiexec.hydra -n 2"),
        (("--launcher", "mpirun"), {}, "/mpich/bin/mpiexec.hydra -n 1"),
        (("-H", "a,b,c"), {}, "/mpich/bin/mpiexec.hydra -hosts a,b,c -ppn 1 -n 3"),
        (("-H", "a,b,c", "--nodes", "2"), {}, "/mpich/bin/mpiexec.hydra -hosts a,b -ppn 1 -n 2"),
        (("-H", "a"), {}, "/mpich/bin/mpiexec.hydra -hosts a -ppn 1 -n 1"),
        (
            ("-H", "a,b", "--launcher-args=-iface 'ib 0'"),
            {},
            "/mpich/bin/mpiexec.hydra -hosts a,b -ppn 1 -n 2 -iface ib 0",
        ),
        (
            (),
            SLURM,
            "srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --cpus-per-task=36 --cpu-bind=none "
            "--kill-on-bad-exit=1 --export=ALL --mpi=pmix",
        ),
        (
            ("--nodes", "2", "--launcher-args=--mpi=pmi2 --time=5"),
            {"SLURM_JOB_NODELIST": "n[1-3]"},
            "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 "
            "--export=ALL --mpi=pmi2 --time=5",
        ),
        (
            ("--launcher", "srun", "-H", "a,b"),
            {"SLURM_MPI_TYPE": "cray"},
            "srun --nodes=2 --nodelist=a,b --ntasks=2 --ntasks-per-node=1 --cpu-bind=none "
            "--kill-on-bad-exit=1 --export=ALL",
        ),
        (
            ("--launcher", "mpirun"),
            SLURM,
            "/mpich/bin/mpiexec.hydra -hosts n1,n2,n3 -ppn 1 -n 3",
        ),
        ((), {"SLURM_JOB_NODELIST": "here"}, ""),
        (("--nodes", "1"), {"SLURM_JOB_NODELIST": "here,there"}, ""),
        (  # salloc on another machine
            (),
            {"SLURM_JOB_NODELIST": "there"},
            "srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 "
            "--export=ALL --mpi=pmix",
        ),
        (
            (),
            {"LSB_MCPU_HOSTS": "here 4 there 8"},
            "/mpich/bin/mpiexec.hydra -hosts here,there -ppn 1 -n 2",
        ),
    ],
)
def test_lines(words: tuple[str, ...], environ: dict[str, str], wanted: str) -> None:
    assert line(*words, environ=environ) == wanted


def test_each_node_runs_the_script_with_functions_of_pymc_replaced() -> None:
    words = planned("--pymc", "--nodes", "2", SCRIPT, "--pymc").words
    script = ("python", "-m", "synkhronos.pymc._everywhere.script")
    assert words[-5:] == (*script, SCRIPT, "--pymc")
    words = planned("--pymc-folder", "night", "-m", "module").words
    assert words[-7:] == (*script, "--folder", "night", "-m", "module")


def test_open_mpi() -> None:
    """It is told which variables to send, and to bind nothing: fork divides the cores."""
    assert line("--nodes", "2", mpi=OPEN_MPI).split(" -x ") == [
        "/ompi/bin/mpirun -n 2 --oversubscribe --bind-to none",
        *("SYNKHRONOS_NODES", "SYNKHRONOS_RESUME", "SYNKHRONOS_START"),
    ]
    environ = {"PYTHONPATH": "/code", "HOME": "/root", "MINE": "1"}
    found = line(
        *("-H", "a:4,b:4", "-x", "MINE", "-x", "YOURS=2"),
        environ=environ,
        mpi=OPEN_MPI,
        root=True,
    )
    assert found == (
        "/ompi/bin/mpirun -n 2 --host a,b --map-by ppr:1:node --bind-to none --allow-run-as-root "
        "-x MINE -x PYTHONPATH -x SYNKHRONOS_MEMBERS -x SYNKHRONOS_NODES -x SYNKHRONOS_RESUME "
        "-x SYNKHRONOS_START -x YOURS"
    )


def test_the_library_of_open_mpi(tmp_path: Path) -> None:
    """mpi4py's wheel is told of the library beside the launcher, unless the user has done so."""
    command = tmp_path / "bin" / "mpirun"
    library = tmp_path / "lib" / "libmpi.so.40"
    assert library_beside(str(command)) is None
    library.parent.mkdir()
    library.touch()
    mpi = Mpi(str(command), "mpirun (Open MPI) 5.0.8")
    assert planned("--nodes", "2", SCRIPT, mpi=mpi).variables == {
        "SYNKHRONOS_RESUME": "",
        "MPI4PY_MPIABI": "openmpi",
        "MPI4PY_LIBMPI": str(library),
    }
    chosen = {"MPI4PY_LIBMPI": "/mine"}
    found = planned("--nodes", "2", SCRIPT, mpi=mpi, environ=chosen).variables
    assert found == {"SYNKHRONOS_RESUME": ""}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), {}),
        (("-n", "4"), {"SYNKHRONOS_MEMBERS": "4"}),
        (("--nproc_per_node", "4"), {"SYNKHRONOS_MEMBERS": "4"}),
        (("-n", "auto"), {}),
        (("-H", "localhost:4"), {"SYNKHRONOS_MEMBERS": "4"}),
        (("-H", "a:4,b:4"), {"SYNKHRONOS_MEMBERS": "4", "SYNKHRONOS_NODES": "2"}),
        (("-H", "a:4,b:2"), {"SYNKHRONOS_MEMBERS": "4,2", "SYNKHRONOS_NODES": "2"}),
        (("-H", "a:4,b:2", "--nodes", "1"), {"SYNKHRONOS_MEMBERS": "4"}),
        (("-D", "cuda:0,cpu"), {"SYNKHRONOS_DEVICES": "cuda:0,cpu"}),
        (("-D", "cuda0,cuda3"), {"SYNKHRONOS_DEVICES": "cuda:0,cuda:3"}),
        (("--timeout", "90"), {"SYNKHRONOS_TIMEOUT": "90.0"}),
        (("--resume",), {"SYNKHRONOS_RESUME": "auto"}),
        (("--log-dir", "/logs", "--tee", "none"), {"SYNKHRONOS_LOG_DIR": "/logs"}),
        (("-x", "A=1=2"), {"A": "1=2"}),
    ],
)
def test_environment(words: tuple[str, ...], wanted: dict[str, str]) -> None:
    found = planned(*words, SCRIPT, environ={"HOME": "/root"}).environment
    usual = {"HOME": "/root", "SYNKHRONOS_START": "1", "SYNKHRONOS_NODES": "1"}
    assert found == {**usual, **wanted}


def test_a_restart_resumes() -> None:
    plan = planned(SCRIPT)
    assert "SYNKHRONOS_RESUME" not in plan.starting(1).environment
    again = plan.starting(2)
    assert again.environment["SYNKHRONOS_RESUME"] == "auto"
    open_mpi = planned("--nodes", "2", SCRIPT, mpi=OPEN_MPI)
    assert open_mpi.environment["SYNKHRONOS_RESUME"] == ""  # it is named for all starts
    assert open_mpi.starting(2).environment["SYNKHRONOS_RESUME"] == "auto"
    assert again.environment["SYNKHRONOS_START"] == "2"
    assert again.words == plan.words


def test_a_launch_inside_of_a_launch() -> None:
    """The settings of the outer one are not those of the inner one; what the user exports is."""
    outer = {
        **LaunchSettings(members=(8,), nodes=2, resume="auto", start=3).environment(),
        "SYNKHRONOS_SCRIPT": "17",
    }
    assert planned(SCRIPT, environ=outer).environment == {
        "SYNKHRONOS_NODES": "1",
        "SYNKHRONOS_START": "1",
    }
    exported = {"SYNKHRONOS_MEMBERS": "8"}
    assert planned(SCRIPT, environ=exported).environment["SYNKHRONOS_MEMBERS"] == "8"
    assert planned("-n", "2", SCRIPT, environ=exported).environment["SYNKHRONOS_MEMBERS"] == "2"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((SCRIPT, "--lr", "1", "-n", "7", "--no", "--", "-m", "x"), None),
        (("--", SCRIPT, "--lo"), (SCRIPT, "--lo")),
        (("-m", "package.train", "-n", "7", "--log"), None),
        (("-c", "pass", "-c", "--x=1"), None),
        (("-m", "package.train", "x", "--", "--y", "--"), None),
    ],
)
def test_words_behind_the_script_belong_to_it(
    words: tuple[str, ...], wanted: tuple[str, ...] | None
) -> None:
    plan = planned("-n", "2", *words)
    assert plan.words == ("python", *(wanted or words))
    assert plan.settings.members == (2,)


def test_the_line_can_be_pasted() -> None:
    assert str(planned("-n", "2", "-x", "A=b c", "-c", "print('x')")) == (
        "A='b c' SYNKHRONOS_MEMBERS=2 SYNKHRONOS_NODES=1 SYNKHRONOS_START=1 "
        """python -c 'print('"'"'x'"'"')'"""
    )


@pytest.mark.parametrize(
    ("words", "environ", "text"),
    [
        ((), {}, "name a script"),
        (("--pymc", "-c", "pass"), {}, "--pymc is for a script or a module"),
        (("--pymc-folder", "f", "-c", "pass"), {}, "--pymc is for a script or a module"),
        (("none.py",), {}, "none.py: there is no such script"),
        (("-m", "a", "-c", "b"), {}, None),
        (("--launcher", "fork", "--nodes", "2", SCRIPT), {}, "--launcher fork is for one node"),
        (("--launcher", "fork", "-H", "a", SCRIPT), {}, "--launcher fork is for one node"),
        (("-H", "a,b", "--nodes", "3", SCRIPT), {}, "-H or --hostfile names 2 hosts, a, b"),
        (("--nodes", "4", SCRIPT), SLURM, "the job of Slurm has 3 hosts, n1, n2, n3"),
        (("-H", "a:4,b", SCRIPT), {}, "give the members of all hosts"),
        (("-H", "a:0", SCRIPT), {}, "'a:0' is not a host"),
        (("-H", "a,b,a", SCRIPT), {}, "a is named twice"),
        (("-H", "a;b", SCRIPT), {}, "'a;b' is not a host"),
        (("-H=-Fcluster.cfg", SCRIPT), {}, "'-Fcluster.cfg' is not a host"),
        ((SCRIPT,), {"LSB_HOSTS": "a -Fx"}, "the scheduler's list of hosts has '-Fx'"),
        (("-H", "a", "--hostfile", "b", SCRIPT), {}, "give one of them"),
        (("--hostfile", "/no/file", SCRIPT), {}, "--hostfile /no/file: No such file"),
        (("-x", "MISSING", SCRIPT), {}, "-x MISSING: it is not set here"),
        (("-x", "=1", SCRIPT), {}, "-x =1: give a name"),
        (("--launcher-args=-v", SCRIPT), {}, "--launcher-args are for mpirun and srun"),
        ((SCRIPT,), {"PBS_NODEFILE": "/no/file"}, "PBS_NODEFILE=/no/file: No such file"),
        ((SCRIPT,), {"SLURM_JOB_NODELIST": "n[1-"}, "'n[1-' cannot be read"),
        ((SCRIPT,), {"SLURM_JOB_NODELIST": "n[a]"}, "'a' is not a range of numbers"),
        ((SCRIPT,), {"PMI_SIZE": "2"}, "(PMI_SIZE=2): start `synk run` once"),
        (
            (SCRIPT,),
            {"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "4"},
            "(SLURM_STEP_NUM_TASKS=4): start `synk run` once",
        ),
    ],
)
def test_wrong_usage(words: tuple[str, ...], environ: dict[str, str], text: str | None) -> None:
    """What contradicts itself; and hosts that are options, which would run code (T5)."""
    if text is None:
        assert planned(*words).words == ("python", *words)  # all behind -m belongs to the module
        return
    with pytest.raises(UsageError) as raised:
        planned(*words, environ=environ)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    "words",
    [
        *(("-n", "0"), ("-n", "two"), ("--nodes", "1:4"), ("--tee", "a"), ("--timeout", "0")),
        *(("--max-restarts", "-1"), ("--launcher", "ssh"), ("--unknown", "1"), ("--start", "1")),
        ("-D", "gpu0"),
    ],
)
def test_options_that_argparse_refuses(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words, SCRIPT]) == 2
    assert "usage: synk run" in capsys.readouterr().err


def test_processes_of_a_launched_process() -> None:
    """It may start `synk run`, though it inherits the variables of its launcher."""
    environ = {"PMI_SIZE": "2", "SYNKHRONOS_LAUNCHED": "17 job"}
    assert planned(SCRIPT, environ=environ).launcher == "fork"


def test_no_launcher() -> None:
    with pytest.raises(StartFailed, match="mpiexec and mpirun were not found"):
        planned("--nodes", "2", SCRIPT, mpi=None)


@pytest.mark.parametrize(
    ("words", "environ", "remote"),
    [
        (("--nodes", "2"), {}, ()),
        (("-H", "here,a,b"), {}, ("a", "b")),
        (("-H", "a,b"), {"HYDRA_LAUNCHER_EXEC": "/my/ssh"}, ()),
        ((), {"LSB_HOSTS": "a a b"}, ()),
        (("--launcher", "srun", "-H", "a,b"), {}, ()),
    ],
)
def test_which_hosts_are_tried_by_ssh(
    words: tuple[str, ...], environ: dict[str, str], remote: tuple[str, ...]
) -> None:
    """Those that the user names; a scheduler has its own way to start processes."""
    assert planned(*words, SCRIPT, environ=environ).remote == remote


def test_secrets_are_not_shown() -> None:
    """Values that the user has not typed, or of telling names; the script gets them."""
    environ = {"MINE": "from here", "WANDB_API_KEY": "abc"}
    plan = planned(
        *("-x", "MINE", "-x", "WANDB_API_KEY", "-x", "HF_TOKEN=def", "-x", "A=b c"),
        *("-c", "pass", "--password", "ghi", "s3://u:p@b/x?sig"),
        environ=environ,
    )
    assert str(plan).startswith("MINE=*** WANDB_API_KEY=*** HF_TOKEN=*** A='b c' ")
    assert str(plan).endswith(" -c pass --password *** s3://***@b/x?***")
    assert plan.variables["WANDB_API_KEY"] == "abc"
    assert plan.words[-1] == "s3://u:p@b/x?sig"


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ("gpu2", ["gpu2"]),
        ("n[001-003,7],gpu2", ["n001", "n002", "n003", "n7", "gpu2"]),
        ("r[1-2]c[09-10]-ib", ["r1c09-ib", "r1c10-ib", "r2c09-ib", "r2c10-ib"]),
        ("a,b", ["a", "b"]),
    ],
)
def test_slurm_lists(nodes: str, wanted: list[str]) -> None:
    assert expanded_by_hand(nodes) == wanted


@pytest.mark.parametrize(
    ("script", "wanted"),
    [("printf 'x1\\nx2\\n'", ["x1", "x2"]), ("exit 1", ["n1", "n2"])],
)
def test_scontrol(
    script: str, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's own program knows its lists best; without it, or if it fails, they are read here."""
    command = tmp_path / "scontrol"
    command.write_text(f'#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] || exit 2\n{script}\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert _hosts.expanded("n[1-2]") == wanted


def test_allocations(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("a.x\na.x\nb.x\nb.x\n")
    cases = [
        ({"PBS_NODEFILE": str(file)}, "PBS", ("a.x", "b.x")),
        ({"LSB_MCPU_HOSTS": "a 4 b 2"}, "LSF", ("a", "b")),
        ({"LSB_HOSTS": "a a b"}, "LSF", ("a", "b")),
        ({"LSB_DJOB_HOSTFILE": str(file)}, "LSF", ("a.x", "b.x")),
        ({"SLURM_NODELIST": "a[1-2]"}, "Slurm", ("a1", "a2")),
    ]
    for environ, scheduler, names in cases:
        found = allocation(environ, expanded_by_hand)
        assert found is not None
        assert (found.scheduler, found.hosts) == (scheduler, names)
    assert allocation({}) is None


def test_hosts_files(tmp_path: Path) -> None:
    text = "# ours\nnode1 slots=4 max_slots=8\nnode2:2\n\n  node3  # slow\nnode4\nnode4\n"
    assert listed_hosts(text, "hosts") == [
        *(Host("node1", 4), Host("node2", 2), Host("node3"), Host("node4", 2)),
    ]
    assert listed_hosts("a slots=4\nb\na slots=2\na\n", "hosts") == [Host("a", 7), Host("b")]
    for word in ("-Fcluster.cfg", "-oProxyCommand=x", ".a", "_a"):
        with pytest.raises(UsageError, match=f"hosts, line 1: '{word}' is not a host"):
            listed_hosts(f"{word} slots=2\n", "hosts")
    with pytest.raises(UsageError, match=r"hosts, line 2: 'a:b' is not a host"):
        listed_hosts("a\na:b\n", "hosts")
    file = tmp_path / "hosts"
    file.write_text("a slots=4\nb slots=4\n")
    plan = planned("--hostfile", str(file), SCRIPT)
    assert plan.words[:6] == (MPICH.command, "-hosts", "a,b", "-ppn", "1", "-n")
    assert plan.settings.members == (4,)
    assert planned("--hostfile", str(file), "-n", "2", SCRIPT).settings.members == (2,)
    file.write_text("# nothing\n")
    with pytest.raises(UsageError, match="it names no host"):
        planned("--hostfile", str(file), SCRIPT)


@pytest.mark.parametrize(
    "settings",
    [
        LaunchSettings(),
        LaunchSettings((4, 2), "cuda:0,cpu", 2.5, "/a folder", "auto", 2, 3, (2, 10)),
    ],
)
def test_settings_travel(settings: LaunchSettings) -> None:
    assert LaunchSettings.of(settings.environment()) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("MEMBERS", "many"), ("MEMBERS", "0"), ("MEMBERS", "2,"), ("NODES", "x")),
        *(("TIMEOUT", "-1"), ("TIMEOUT", "soon"), ("RESUME", "yes")),
    ],
)
def test_settings_that_are_wrong(name: str, value: str) -> None:
    with pytest.raises(InputError, match=f"SYNKHRONOS_{name}='{value}' in the environment"):
        LaunchSettings.of({f"SYNKHRONOS_{name}": value})


def test_settings_are_for_one_process() -> None:
    """T: what the script starts does not follow; what the user exports by hand is for all."""
    environ = LaunchSettings(members=(4,), start=1).environment()
    assert launch_settings(environ).members == (4,)
    assert launch_settings(environ).members == (4,)  # the same process again
    environ["SYNKHRONOS_SCRIPT"] = "1"
    assert launch_settings(environ) == LaunchSettings()
    assert launch_settings({"SYNKHRONOS_MEMBERS": "4"}).members == (4,)


def test_members_of_nodes() -> None:
    settings = LaunchSettings((4, 2))
    assert [settings.members_of(0), settings.members_of(1)] == [4, 2]
    with pytest.raises(InputError, match="names the members of 2 nodes, and this is node 2"):
        settings.members_of(2)
    assert LaunchSettings((3,)).members_of(5) == 3
    assert LaunchSettings().members_of(0) is None
