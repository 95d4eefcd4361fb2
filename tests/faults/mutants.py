"""The guards, taken out one by one: each mutant must fail a test (promise 23).

    python tests/faults/mutants.py [name ...]

A mutant is the package with one text replaced by another. Its tests run in a copy of the tree.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("synkhronos", "tests", "scripts", "demos", "pyproject.toml", "README.rst", "setup.py")
LIMIT = 300  # seconds: a mutant may hang, which is a failure of its tests too


@dataclass(frozen=True)
class Mutant:
    """A guard taken out."""

    guard: str
    module: str
    text: str
    instead: str
    tests: str  # where it is expected to be caught: arguments of pytest

    def source(self) -> str:
        """The module's text, which must have the guard exactly once."""
        found = (ROOT / "synkhronos" / self.module).read_text()
        if found.count(self.text) != 1:
            raise ValueError(f"{self.guard}: {self.text!r} is not once in {self.module}")
        return found

    def mutated(self) -> str:
        """The module without the guard."""
        return self.source().replace(self.text, self.instead)


GUARDS, LOCAL = "_transport/processes/guards.py", "_transport/channels/one_node.py"
NODE = "_transport/shared_state/node.py"
WAITING, PROCESSES = "_transport/shared_state/waiting.py", "_transport/processes/child_process.py"
FORKS = "tests/faults/test_forks.py"
FAULTS, DEATHS = "tests/engine/test_faults.py", "tests/faults/test_deaths.py"
SECURITY = "tests/faults/test_security.py"
CHECKPOINTS = "tests/extensions/test_checkpoints.py"
GPUS = "tests/transport/test_jax_gpus.py"
RESIDENT_ROUNDS = "tests/extensions/test_jax_resident_rounds.py"
FREE_FAULTS = "tests/faults/test_free_faults.py"
FREE_ROWS = "tests/extensions/test_free_rows.py"
FREE_TURNS = "tests/extensions/test_free_turns.py"
NODES = "tests/mpi/test_node_faults.py"
RUN = "tests/cli/test_run.py"
NODE_SHORTAGES = "tests/mpi/test_node_shortages.py"
RECORDER = "tests/training/test_recorder.py"
SOURCES = "tests/training/sources/test_files.py"
AUGMENTATION = "tests/training/test_augmentation.py"
EXCHANGE = "tests/extensions/test_exchange.py"

MUTANTS = (
    Mutant(
        "PR_SET_PDEATHSIG",
        GUARDS,
        "ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)",
        "pass",
        f"{FAULTS} -k die_with_the_master",
    ),
    Mutant(
        "lifeline",
        GUARDS,
        "        hold(lifeline)\n",
        "",
        f"{FAULTS} -k die_with_the_master",
    ),
    Mutant(
        "F_SETSIG",
        GUARDS,
        "    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)\n",
        "",
        f"{FAULTS} -k die_with_the_master",
    ),
    Mutant(
        "ppid check",
        GUARDS,
        "if os.getppid() != parent:",
        "if False:",
        "tests/faults/test_guards.py",
    ),
    Mutant(
        "forks of the master let go of the lifeline",
        LOCAL,
        "os.register_at_fork(after_in_child=_disown_all)",
        "",
        f"{FAULTS} tests/engine/test_groups.py -k 'die_with_the_master or fork'",
    ),
    Mutant(
        "workers ignore Ctrl-C",
        GUARDS,
        "        signal.signal(signal.SIGINT, signal.SIG_IGN)\n",
        "        pass\n",
        f"tests/faults {FAULTS} -k 'interrupt or guards'",
    ),
    Mutant(
        "process group of a forked worker",
        "_transport/processes/worker.py",
        "            os.setpgid(0, 0)  # the terminal's Ctrl-C reaches only the master\n",
        "            pass\n",
        f"{FAULTS} -k grandchildren",
    ),
    Mutant(
        "process group of a fresh interpreter",
        "_transport/processes/interpreter.py",
        '"process_group": 0',
        '"process_group": None',
        f"{FAULTS} -k grandchildren",
    ),
    Mutant(
        "descriptors of exec'd workers",
        GUARDS,
        "        os.set_inheritable(fd, False)\n",
        "        pass\n",
        SECURITY,
    ),
    Mutant(
        "grandchildren are ended",
        PROCESSES,
        "                os.killpg(self.pid, signal.SIGKILL)\n",
        "                pass\n",
        f"{FAULTS} -k grandchildren",
    ),
    Mutant(
        "pidfds of workers",
        LOCAL,
        "        self.node.waiter.watch({w.rank: w.pidfd for w in self.workers})\n",
        "",
        DEATHS,
    ),
    Mutant(
        "pidfds of siblings",
        NODE,
        "        self.watch_others()\n",
        "",
        f"{FAULTS} -k sibling",
    ),
    Mutant(
        "the thread that starts workers lasts",
        "_transport/processes/lasting_thread.py",
        "                readable(pidfd, seconds=math.inf)\n",
        "",
        f"tests/transport/test_lasting_thread.py {FAULTS} -k 'lasting or die_with'",
    ),
    Mutant(
        "children of operations report nothing",
        "_engine/transactions.py",
        "                self._leave()\n",
        "                pass\n",
        FORKS,
    ),
    Mutant(
        "children of operations have copies",
        "_host/arena.py",
        "os.register_at_fork(after_in_child=_part)",
        "",
        FORKS,
    ),
    Mutant(
        "children of operations wait for nobody",
        WAITING,
        "os.register_at_fork(after_in_child=_part)",
        "",
        FORKS,
    ),
    Mutant(
        "descriptors are looked at before they are closed",
        "_host/descriptors.py",
        "        if self.is_ours:\n",
        "        if True:\n",
        "tests/host/test_descriptors.py",
    ),
    Mutant(
        "killed workers are awaited",
        LOCAL,
        "        await_killed()\n        reasons",
        "        reasons",
        DEATHS,
    ),
    Mutant(
        "abort eventfd",
        LOCAL,
        "            os.eventfd_write(self._abort, 1)\n",
        "            pass\n",
        "tests/faults/test_guards.py",
    ),
    Mutant(
        "deadline of the start",
        LOCAL,
        "if time.monotonic() > until:",
        "if False:",
        "tests/faults/test_guards.py",
    ),
    Mutant(
        "posix_fallocate",
        "_host/arena.py",
        "            os.posix_fallocate(self.own_fd(), offset, length)\n",
        "            pass\n",
        "tests/faults/test_guards.py",
    ),
    Mutant(
        "limits of the machine and the cgroup",
        "_host/arena.py",
        "            self._check(length)\n",
        "            pass\n",
        "tests/faults/test_guards.py",
    ),
    Mutant(
        "seals",
        "_host/arena.py",
        "        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)\n",
        "",
        SECURITY,
    ),
    Mutant(
        "freed memory is given back",
        "_host/arena.py",
        "        gone.also = _Finalizer(block, free)\n",
        "",
        SECURITY,
    ),
    Mutant(
        "a fork frees nothing of its parent's",
        "_host/arena.py",
        "        self._blocks.clear()\n",
        "        pass\n",
        "tests/engine/test_groups.py tests/api/test_data.py",
    ),
    Mutant(
        "no core dumps of the data",
        "_host/arena.py",
        "        self._advise(0, self._bytes, mmap.MADV_DONTDUMP)\n",
        "",
        SECURITY,
    ),
    Mutant(
        "words begin at zero after a restart",
        "_host/arena.py",
        "            self._advise(region * self.region_bytes, HEAD_BYTES, self._drop)\n",
        "",
        "tests/faults/test_restarts.py",
    ),
    Mutant(
        "deaths are seen while GPUs exchange",
        WAITING,
        "            self._listen(self._poll.poll(0))\n",
        "",
        f"{GPUS} -k death",
    ),
    Mutant(
        "failures are seen while GPUs exchange",
        "_transport/shared_state/node.py",
        "any(words[EXCHANGE_FAILED] >= self.number for words in others)",
        "False",
        f"{GPUS} -k 'error_of_nccl or cannot_be_served'",
    ),
    Mutant(
        "an abort of NCCL's has a limit",
        "_backends/nccl.py",
        "_thread.join(ABORT_SECONDS)",
        "_thread.join()",
        f"{GPUS} -k abort_that_hangs",
    ),
    Mutant(
        "an event is recorded when NCCL has taken what was posted",
        "_backends/nccl.py",
        "            self._watch(self._settled)\n",
        "            pass\n",
        f"{GPUS} -k posting",
    ),
    Mutant(
        "members agree before GPUs exchange",
        "_transport/communicators/gpus.py",
        "if not vote[0] or vote[0] != -vote[1]:",
        "if not vote[0]:",
        f"{GPUS} -k unequal",
    ),
    Mutant(
        "the host waits for NCCL",
        "_transport/communicators/gpus.py",
        "                link.finish(event)\n",
        "",
        f"{GPUS} -k conformance",
    ),
    Mutant(
        "a transfer between nodes can be left",
        "_backends/mpi.py",
        "self._wait(request.Test)",
        "request.Wait()",
        f"{NODES} -k 'stopped and transfer'",
    ),
    Mutant(
        "a failed transfer is told to all",
        "_transport/communicators/between_nodes.py",
        "            self._leaders.fail_transfer()\n",
        "",
        f"{NODE_SHORTAGES} -k 'failure_in and mpich'",
    ),
    Mutant(
        "changes that were not acknowledged are sent again",
        "_transport/channels/multi_node.py",
        "        if not any([type(o) is Failure for _, o in objects]):",
        "        if True:",
        f"{NODE_SHORTAGES} -k 'acknowledged and mpich'",
    ),
    Mutant(
        "the master alone has a limit",
        "_engine/nodes.py",
        "        channel.inspector.limit = channel.inspector.warning = math.inf",
        "        pass",
        f"{NODES} -k 'time_of_commands'",
    ),
    Mutant(
        "leaders agree before a transfer",
        "_transport/communicators/between_nodes.py",
        '            payloads = self.agree_on(arrays, b"\\1" if undefined else b"")\n',
        "            payloads = {}\n",
        f"{NODES} -k 'exceptions'",
    ),
    Mutant(
        "the script ends with synk run",
        "cli/_run/process.py",
        "        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)\n",
        "",
        f"{RUN} -k no_orphans",
    ),
    Mutant(
        "a key at the terminal is not sent twice",
        "cli/_run/process.py",
        "if not (self._in_our_group and received.from_terminal):",
        "if True:",
        f"{RUN} -k terminal",
    ),
    Mutant(
        "settings of synk run are for one process",
        "_host/launch_settings.py",
        "return environ.setdefault(_SCRIPT, str(os.getpid())) == str(os.getpid())",
        "return True",
        f"{RUN} -k follow",
    ),
    Mutant(
        "a launcher of another MPI is refused",
        "_engine/group_options.py",
        "if spans and settings.nodes not in (0, size):",
        "if False:",
        f"{RUN} -k srun",
    ),
    Mutant(
        "MPICH does not take SIGUSR1 from the script",
        "_engine/nodes.py",
        "        with _kept(signal.SIGUSR1):\n            world = mpi_backend.World()\n",
        "        world = mpi_backend.World()\n",
        f"{RUN} -k 'two_nodes and mpich'",
    ),
    Mutant(
        "SIGINT is held back",
        "_transport/processes/interrupts.py",
        "        if self._depth == 0:\n            self._exchange()\n",
        "",
        f"{FAULTS} -k interrupt",
    ),
    Mutant(
        "a fork that a thread has made holds Ctrl-C back, and not for its parent",
        "_transport/processes/interrupts.py",
        "os.register_at_fork(after_in_child=_part)",
        "",
        "tests/faults/test_forks.py -k ctrl_c",
    ),
    Mutant(
        "a fork has the signals of before the run",
        "training/_run/signals.py",
        "os.register_at_fork(after_in_child=_part)",
        "",
        "tests/training/test_resume.py -k ends_by_sigterm",
    ),
    Mutant(
        "a fork does not wait for the lock of a thread that it lacks",
        "_engine/runner.py",
        'self.ended = "belongs to another process"\n        self._make_lock()',
        'self.ended = "belongs to another process"',
        "tests/faults/test_forks.py -k beside_a_call",
    ),
    Mutant(
        "a fork does not hold the lock of a folder",
        "_host/folder_locks.py",
        "os.register_at_fork(after_in_child=_part)",
        "pass",
        "tests/host/test_folder_locks.py",
    ),
    Mutant(
        "a command left without its verdict is settled",
        "_engine/runner.py",
        "            if self._transactions.undecided or self._left:  # a restart has made others\n"
        "                self._leave()\n\n    def reserved",
        "            pass\n\n    def reserved",
        f"{FAULTS} tests/engine/test_groups.py",
    ),
    Mutant(
        "what failed is undone",
        "_engine/changes.py",
        "            if any(p is entry.storage[0] for p in placed):\n"
        "                entry.storage[0] = value\n",
        "            pass\n",
        f"{FAULTS} tests/api/test_functions.py -k 'fail or undo or interrupt or rais'",
    ),
    Mutant(
        "half-written values are marked",
        "_engine/changes.py",
        "                mark_torn(entry)\n        self.in_place = ()",
        "                pass\n        self.in_place = ()",
        f"{FAULTS} tests/faults/test_restarts.py -k 'reduction_writes or half'",
    ),
    Mutant(
        "what a failed command of steps overwrote on GPUs is put back",
        "extensions/_apart/resident.py",
        "            for held, value in values:\n                held[0] = value",
        "            pass",
        RESIDENT_ROUNDS,
    ),
    Mutant(
        "a meeting of members on GPUs reads their values of now",
        "extensions/_apart/member_values.py",
        "        self._bring([kind for kind in KINDS if meeting.reads(kind)])",
        "        pass",
        RESIDENT_ROUNDS,
    ),
    Mutant(
        "a value on a GPU is not the common array of the node",
        "extensions/_step/resident.py",
        "                    entry.lent, entry.view = entry.view, None",
        "                    pass",
        "tests/extensions/test_jax_resident.py -k two_modes",
    ),
    Mutant(
        "writing in place begins when all have come",
        "_transport/shared_state/node.py",
        "            self._await(words, here)\n        if leads",
        "            pass\n        if leads",
        f"{FAULTS} tests/transport/test_communicators.py tests/extensions/test_train.py",
    ),
    Mutant(
        "who leaves a command frees those at its barriers",
        "_transport/shared_state/node.py",
        "peer[BARRIER] < here:\n            raise PeerFailed",
        "peer[BARRIER] < here:\n            pass",
        "tests/faults/test_exceptions.py -k raising",
    ),
    Mutant(
        "limit of a wait",
        "_transport/channels/stalls.py",
        "if waited >= limit:",
        "if False:",
        "tests/faults/test_stalls.py",
    ),
    Mutant(
        "turns",
        "_engine/runner.py",
        "        if self._is_reserved_here():\n",
        "        if False:\n",
        "tests/api/test_reentry.py",
    ),
    Mutant(
        "codecs of zarr by name",
        "training/sources/_zarr.py",
        "                _check_codecs(found.metadata)\n",
        "",
        "tests/training/sources/test_strangers.py -k codecs",
    ),
    Mutant(
        "sweep of half-written checkpoints",
        "extensions/_saving/checkpoints.py",
        "        self._clear()\n        listed = self._listed()\n",
        "        listed = self._listed()\n",
        f"{CHECKPOINTS} tests/faults -k 'checkpoint or leavings or kill or save'",
    ),
    Mutant(
        "fsync of a checkpoint",
        "_host/files.py",
        "                os.fsync(inner)\n",
        "                pass\n",
        f"{CHECKPOINTS} tests/faults -k 'checkpoint or power'",
    ),
    Mutant(
        "checksum of a checkpoint",
        "extensions/_saving/checkpoints.py",
        'if digest(path) != body["blake2b"]:',
        "if False:",
        f"{CHECKPOINTS} -k damage",
    ),
    Mutant(
        "DONE after all other writes",
        "extensions/_apart/free/turn_taker.py",
        "            self._pass_over(turn, old, new)\n",
        "            self._centre.commit(number + changes)\n"
        "            self._pass_over(turn, old, new)\n",
        f"{FREE_FAULTS} -k 'go_on and spare'",
    ),
    Mutant(
        "two versions of the centre",
        "extensions/_apart/free/centre.py",
        "return self._versions[number % 2]",
        "return self._versions[0]",
        f"{FREE_FAULTS} -k 'go_on and spare'",
    ),
    Mutant(
        "two versions of the states at the centre",
        "extensions/_apart/free/allocation.py",
        "counts[k], states[k])",
        "counts[k], states[0])",
        f"{FREE_FAULTS} -k 'go_on and spare'",
    ),
    Mutant(
        "a quorum that is not full at the end of a round is applied",
        "extensions/_apart/nodes/node_training.py",
        "            participant.conclude()\n",
        "            pass\n",
        f"{FREE_ROWS} -k closed",
    ),
    Mutant(
        "tickets of turns",
        "extensions/_apart/free/turns.py",
        "            if all(self._passed[other] == ticket for other, ticket in self._before()):\n",
        "            if True:\n",
        FREE_TURNS,
    ),
    Mutant(
        "the next member is rung",
        "extensions/_apart/free/turns.py",
        "            self._peers.ring([following])\n",
        "            pass\n",
        FREE_TURNS,
    ),
    Mutant(
        "a message is acknowledged after the merge",
        "extensions/_apart/free/gossiper.py",
        "self._merge_from(self.shared.slots[sender].sent",
        "self._page.merged[sender] = sent; self._merge_from(self.shared.slots[sender].sent",
        FREE_TURNS,
    ),
    Mutant(
        "a torn line ends before the next one",
        "training/_record/recorder.py",
        'self._append((b"\\n" if self._torn else b"") + text.encode() + b"\\n")',
        'self._append(text.encode() + b"\\n")',
        f"{RECORDER} -k 'torn or full'",
    ),
    Mutant(
        "a fork gives up the lock of a run's folder",
        "training/_record/recorder.py",
        "os.register_at_fork(after_in_child=_leave_all)",
        "",
        f"{RECORDER} -k lock",
    ),
    Mutant(
        "one writer of a run's folder",
        "training/_record/recorder.py",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        f"{RECORDER} -k two_processes",
    ),
    Mutant(
        "steps before a return no longer count",
        "training/_record/run_folder.py",
        "if not is_later(kept, step)",
        "",
        f"{RECORDER} -k go_on",
    ),
    Mutant(
        "a return is told to TensorBoard",
        "training/_record/exporters/_tensorboard.py",
        "self._drop_after(int(to))",
        "pass",
        "tests/training/test_exporters.py -k tensorboard",
    ),
    Mutant(
        "an exporter ends though a fork holds its pipe",
        "training/_record/exporters/process.py",
        'process.stdin.write(b"\\n")',
        "pass",
        "tests/training/test_exporters.py -k fork_holds",
    ),
    Mutant(
        "texts of a run stay texts in its page",
        "cli/_report/page.py",
        "autoescape=True",
        "autoescape=False",
        "tests/cli/test_report.py -k hostile",
    ),
    Mutant(
        "no link is followed where a file is written in place",
        "_host/files.py",
        "os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK",
        "os.O_CREAT | os.O_NONBLOCK",
        "tests/host/test_files.py tests/faults/test_strange_folders.py",
    ),
    Mutant(
        "a run looks at its folder before each save",
        "training/_run/loop.py",
        "        self._recorder.check()\n",
        "",
        "tests/faults/test_strange_folders.py -k lost",
    ),
    Mutant(
        "a copy of remote rows has its version in its name",
        "training/sources/_copies.py",
        "{_short(origin)}-{_short(version)}-{own}",
        "{_short(origin)}-{own}",
        "tests/training/sources/test_files.py -k cop",
    ),
    Mutant(
        "run.json is replaced as a whole",
        "_host/files.py",
        "        new.replace(path)",
        "        path.write_text(new.read_text())",
        f"{RECORDER} -k 'replaced'",
    ),
    Mutant(
        "no file of a source is open when nobody reads",
        "training/sources/_files.py",
        "                    opened.close(self._format)",
        "                    pass",
        f"{SOURCES} -k open_only",
    ),
    Mutant(
        "a fork opens the files of a source anew",
        "training/sources/_files.py",
        "if self._open.pid != os.getpid():",
        "if False:",
        f"{SOURCES} -k fork_opens",
    ),
    Mutant(
        "what a left loop has read is not taken for the next one's",
        "extensions/_rows/by_nodes.py",
        "if found != job:",
        "if False:",
        "tests/mpi/test_node_loader.py -k exactly",
    ),
    Mutant(
        "the words of images are not those of their order",
        "training/_run/augmentation.py",
        "spawn_key=(epoch, _KEY)",
        "spawn_key=(epoch,)",
        f"{AUGMENTATION} -k words",
    ),
    Mutant(
        "each epoch has its own words",
        "training/_run/augmentation.py",
        "if epoch != self._epoch:",
        "if self._epoch < 0:",
        f"{AUGMENTATION} -k 'sources or resumed'",
    ),
    Mutant(
        "members that train apart use the words of the epoch",
        "training/_run/feeds.py",
        'self._words.begin_epoch(self.batches.state()["epoch"])',
        "pass",
        f"{AUGMENTATION} -k free",
    ),
    Mutant(
        "a batch with rows left out has the words of the others",
        "extensions/_rows/by_master.py",
        "        self.rows = read.rows",
        "        self.rows = self._walk.rows(number)[: len(read.rows)]",
        f"{AUGMENTATION} -k leaves_out",
    ),
    Mutant(
        "numba reads a word for each image, and no others",
        "nn/_numba.py",
        "    check_counts(*counts)",  # compiled code is cached, and would not change
        "",
        "tests/nn/test_augmentation.py -k turn_out",
    ),
    Mutant(
        "augmented images are not linear in a value over all rows",
        "nn/_inference_rules.py",
        """    if images.factors:
        raise Stuck("it is not linear in a value over all rows")
    return _apart([images, *words]""",
        "    return _apart([images, *words]",
        "tests/nn/test_augmentation.py -k proofs",
    ),
    Mutant(
        "a gradient that is not finite does not stay in the residual",
        "extensions/_step/sparse.py",
        "                piece[...] = residual\n",
        "                pass\n",
        f"{EXCHANGE} -k not_finite",
    ),
    Mutant(
        "elements that the sum has dropped stay in the residual",
        "extensions/_step/sparse.py",
        "sums[np.intersect1d(mine.numbers, found.numbers, assume_unique=True)] = 0",
        "sums[mine.numbers] = 0",
        "tests/mpi/test_node_exchange.py",
    ),
    Mutant(
        "the residual is written with the parameters",
        "extensions/_step/sparse.py",
        "            piece += residual\n",
        "            piece += residual\n            residual[...] = piece\n",
        f"{EXCHANGE} -k fails",
    ),
    Mutant(
        "checkpoints collect the residuals of all nodes",
        "extensions/_saving/checkpoints.py",
        "            self._collect()\n",
        "            pass\n",
        "tests/mpi/test_node_exchange.py",
    ),
)


def caught(mutant: Mutant) -> str:
    """The first test that the mutant fails; "" if it passes all of them."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        tree = Path(name)
        for part in PARTS:
            source = ROOT / part
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, tree / part)
        (tree / "synkhronos" / mutant.module).write_text(mutant.mutated())
        selected = "-m 'not thorough'"  # what scripts/test runs must catch it
        command = f"{sys.executable} -m pytest -x -q -p no:cacheprovider {selected} {mutant.tests}"
        places = [str(tree), str(tree / "tests" / "support"), str(tree / "tests" / "faults")]
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return "the tests hung"
        finally:
            _end_all(tree)
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    if found and "::" in found[1]:
        return found[1]
    if found:  # no test has run
        print(f"{found[1]} cannot be imported: {said[-300:]}")
        return ""
    if process.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        return ""
    return f"pytest ended with status {process.returncode}: {said[-300:]}"


def _end_all(tree: Path) -> None:
    """Mutants leave processes behind, which is what their tests have noticed."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(tree).encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue


def main(names: list[str]) -> int:
    missed = 0
    for mutant in MUTANTS:
        if names and mutant.guard not in names:
            continue
        began = time.monotonic()
        test = caught(mutant)
        missed += not test
        print(
            f"{mutant.guard}: {test or 'NOT CAUGHT'} ({time.monotonic() - began:.0f} s)", flush=True
        )
    print(f"{missed} not caught")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
