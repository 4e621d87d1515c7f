"""A real Slurm inside the emulated network: what a cluster's job scripts and ranks see, as a test.

Every compute node, and the login node with the controller, is a leaf of the testbed's network: a
network namespace with the shaped link `up`. Its daemon runs in its own UTS, mount and PID
namespaces as well, so that its host name, the addresses behind all host names and the interfaces
in `/sys/class/net` are the node's, and that all it has started ends with it.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from left_behind import read
from waiting import PATIENCE_S, wait_until

from repro.catalog.systems.topology import Level, Topology
from repro.testbed.kernel import die_with_parent
from repro.testbed.links import Network, build_network, set_rates
from repro.testbed.namespaces import Namespace, inside

PARTITION = "main"
MAX_TIME_MINUTES = 5
# The kernel's limit for the path of a socket; slurmstepd's is in the node's spool folder.
_LONGEST_SOCKET_PATH = 107
_LONGEST_SOCKET = "spool.node99/node99_4294967295.4294967295"
_PROGRAMS = ("slurmctld", "slurmd", "slurmstepd", "srun", "sbatch", "scontrol", "unshare")

# No munge (auth/none, cred/none): nobody but the test's user can reach these namespaces.
# cred_expire, at least 5, is how long a requeued job is held back (120 s if it is not set).
# config_overrides lets a node have the CPUs that the test wants instead of the machine's.
_CONF = """\
ClusterName=testbed
SlurmctldHost=login({login})
AuthType=auth/none
AuthInfo=cred_expire={cred_expire_s}
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
JobRequeue=1
SlurmdTimeout={slurmd_timeout_s}
MessageTimeout={message_timeout_s}
KillWait=2
MinJobAge=3600
EnforcePartLimits=ALL
{nodes}
PartitionName={partition} Nodes=ALL Default=YES DefaultTime=2 MaxTime={max_time} State=UP
"""
CRED_EXPIRE_S = 5
SLURMD_TIMEOUT_S = 6
MESSAGE_TIMEOUT_S = 4

# Both begin in new namespaces. sysfs shows the network namespace of whoever mounts it; the
# machine's cgroups are put back into it. The process id that is written is the one outside: /proc
# is still the old one then.
_FURNISH = """\
set -e
read -r pid rest < /proc/self/stat
hostname "$NODE"
mount --bind "$FOLDER/hosts" /etc/hosts
mkdir -p "$FOLDER/sys.$NODE"
mount -t sysfs sysfs "$FOLDER/sys.$NODE"
if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup "$FOLDER/sys.$NODE/fs/cgroup"; fi
mount --rbind "$FOLDER/sys.$NODE" /sys
"""
# slurmstepd's parent goes away: the shell stays as the process that adopts it, and reaps it. -b: a
# node that is started again has booted.
_NODE = (
    _FURNISH
    + """\
mount -t proc proc /proc
echo "$pid"
slurmd -D -b < /dev/null >&2 &
wait $!
"""
)
# The users' commands have the machine's process ids, for a signal to reach them and not a
# go-between. Only the controller, whose helper process must end with it, has a PID namespace.
_LOGIN = (
    _FURNISH
    + """\
exec unshare --pid --fork --kill-child sh -c '
read -r pid rest < /proc/self/stat
echo "$pid"
exec slurmctld -D >&2'
"""
)


def slurm_missing() -> str:
    """Why no Slurm can be started here; empty if it can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root here"
    if missing := [program for program in _PROGRAMS if shutil.which(program) is None]:
        return f"no Slurm here ({', '.join(missing)} not found)"
    return ""


needs_slurm = pytest.mark.skipif(bool(slurm_missing()), reason=slurm_missing() or "Slurm is here")


@dataclass
class _Daemon:
    """One daemon: the process that holds its namespaces, and the first one of its PID namespace."""

    holder: "subprocess.Popen[str]"
    first_pid: int

    def kill(self) -> None:
        """SIGKILL all that it started."""
        if self.holder.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.first_pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait till all that it started is gone."""
        # The first process of a PID namespace ends after all others in it, and its parent, the
        # holder, after that.
        self.holder.wait()


@dataclass
class SlurmTestbed:
    """A running Slurm: `node0`, `node1`, ... compute, users sit on `login`.

    `network.gpus` has the compute nodes in order, and the login node last. `environment` is what
    Slurm's commands need. Logs of the daemons are in `folder`.
    """

    folder: Path
    network: Network
    environment: dict[str, str]
    _daemons: dict[str, _Daemon] = field(default_factory=dict)
    _commands: "list[subprocess.Popen[str]]" = field(default_factory=list)

    @property
    def nodes(self) -> tuple[Namespace, ...]:
        """The compute nodes' namespaces."""
        return self.network.gpus[:-1]

    def popen(
        self,
        command: list[str],
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> "subprocess.Popen[str]":
        """Start a command on the login node, its output piped; a signal to it reaches the command.

        Neither it nor what it leaves behind outlives the context; it alone not even the thread
        that starts it, however that ends.
        """
        holder = self._daemons["login"].holder.pid
        enter = ["nsenter", f"--target={holder}", "--net", "--uts", "--mount"]
        process = subprocess.Popen(
            [*enter, f"--wdns={folder or self.folder}", "--", *command],
            env=os.environ | self.environment | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, signal.SIGKILL),
        )
        self._commands = [*(c for c in self._commands if c.poll() is None), process]
        return process

    def run(
        self,
        command: list[str],
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
        check: bool = False,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command on the login node, in a folder (the testbed's if none is given)."""
        process = self.popen(command, environment, folder)
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        result = subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
        if check and result.returncode:
            raise AssertionError(f"{command} exited {result.returncode}: {result.stderr}")
        return result

    def submit(self, *arguments: str, folder: Path | None = None) -> str:
        """Submit a batch job, and return its id."""
        command = ["sbatch", "--parsable", *arguments]
        return self.run(command, folder=folder, check=True).stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says about a job, running or ended."""
        shown = self.run(["scontrol", "show", "job", "--oneliner", job], check=True).stdout
        pairs = (word.partition("=") for word in shown.split())
        return {key: value for key, equals, value in pairs if equals}

    def wait_state(self, job: str, *states: str) -> None:
        """Wait till a job is in one of the states."""
        wait_until(lambda: self.job(job)["JobState"] in states, lambda: (states, self.job(job)))

    def node_states(self) -> dict[str, str]:
        """State of every compute node, as sinfo names it; `*` after it: the node does not respond.

        A node that runs jobs is `mixed` or `allocated`.
        """
        shown = self.run(["sinfo", "-h", "-N", "-o", "%N %T"]).stdout
        return dict(line.split(maxsplit=1) for line in shown.splitlines())

    def wait_idle(self, nodes: int) -> None:
        """Wait till so many nodes are idle."""
        self._wait(lambda states: states.count("idle") >= nodes, f"{nodes} idle nodes")

    def wait_down(self, nodes: int) -> None:
        """Wait till the controller has noticed that so many nodes failed."""
        self._wait(
            lambda states: sum(state.startswith("down") for state in states) >= nodes,
            f"{nodes} nodes that are down",
        )

    def _wait(self, reached: Callable[[list[str]], bool], what: str) -> None:
        wait_until(
            lambda: reached(list(self.node_states().values())),
            lambda: f"waited for {what}: {self.node_states()}; {self._last_lines()}",
        )

    def start_node(self, index: int) -> None:
        """Start a node's slurmd; it is idle some moments later."""
        name = f"node{index}"
        # It comes back with an empty disk: slurmd does not overwrite what jobs left in its spool.
        spool = self.folder / f"spool.{name}"
        shutil.rmtree(spool, ignore_errors=True)
        spool.mkdir()
        self._start(name, self.network.gpus[index])

    def kill_node(self, index: int) -> None:
        """SIGKILL a node's slurmd and all that it started, as a failing node does.

        The controller notices it some 15 seconds later. A node that is started again before may go
        on as if its jobs were running, for most of a minute: `wait_down` first.
        """
        daemon = self._daemons.pop(f"node{index}")
        daemon.kill()
        daemon.wait()

    @contextmanager
    def stopped(self, program: str) -> Iterator[None]:
        """Stop all daemons of a program, which then do not answer, till the block ends."""
        mine = {os.readlink(f"/proc/{one.holder.pid}/ns/mnt") for one in self._daemons.values()}
        pids = [
            int(process.name)
            for process in Path("/proc").glob("[0-9]*")
            if read(process / "comm").strip() == program and os.readlink(process / "ns/mnt") in mine
        ]
        assert pids, program
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def start_login(self) -> None:
        """Start the login node and the controller."""
        self._start("login", self.network.gpus[-1])

    def kill_all(self) -> None:
        """SIGKILL every daemon and every command."""
        login = self._daemons.get("login")
        if login and login.holder.poll() is None:
            _kill_all_in(os.readlink(f"/proc/{login.holder.pid}/ns/mnt"))
        for daemon in self._daemons.values():
            daemon.kill()
        for daemon in self._daemons.values():
            daemon.wait()
        for process in self._commands:
            process.wait()
        self._daemons.clear()

    def _start(self, name: str, namespace: Namespace) -> None:
        if name in self._daemons:
            raise ValueError(f"{name} is running")
        own = ["--uts", "--mount"]
        if name == "login":
            script = _LOGIN
        else:
            script = _NODE
            own += ["--pid", "--fork", "--kill-child"]
        with inside(namespace), (self.folder / f"{name}.out").open("a", encoding="utf-8") as out:
            holder = subprocess.Popen(
                ["unshare", *own, "sh", "-c", script],
                env=os.environ | self.environment | {"NODE": name, "FOLDER": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGKILL),
            )
        assert holder.stdout is not None
        first = holder.stdout.readline()
        holder.stdout.close()
        if not first:
            raise AssertionError(f"{name} exited {holder.wait()}; {self._last_lines()}")
        self._daemons[name] = _Daemon(holder, int(first))

    def _last_lines(self) -> str:
        lines = []
        for log in sorted(self.folder.glob("*.out")):
            last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
            lines.append(f"{log.name}: {' | '.join(last)}")
        return "; ".join(lines)


@contextmanager
def slurm_testbed(
    folder: Path, nodes: int = 4, cpus: int = 2, link_gbps: float = 0.2
) -> Iterator[SlurmTestbed]:
    """Start Slurm with so many compute nodes, idle, on links of `link_gbps`; on exit it is gone."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if len(str(folder / _LONGEST_SOCKET)) > _LONGEST_SOCKET_PATH:
        raise ValueError(f"{folder} is too long for slurmstepd's sockets; use a shorter one")
    levels = (
        Level(name="node", members=1, link_gbps=link_gbps),
        Level(name="fabric", members=nodes + 1, link_gbps=link_gbps),
    )
    with build_network(Topology(levels=levels)) as network:
        set_rates(network, {level.name: level.link_gbps for level in levels})
        _write_configuration(folder, network.addresses, cpus)
        environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        testbed = SlurmTestbed(folder, network, environment)
        try:
            testbed.start_login()
            for index in range(nodes):
                testbed.start_node(index)
            testbed.wait_idle(nodes)
            yield testbed
        finally:
            testbed.kill_all()


def _write_configuration(folder: Path, addresses: tuple[str, ...], cpus: int) -> None:
    names = [*(f"node{index}" for index in range(len(addresses) - 1)), "login"]
    hosts = ["127.0.0.1 localhost", *map(" ".join, zip(addresses, names, strict=True))]
    (folder / "hosts").write_text("\n".join(hosts) + "\n", encoding="utf-8")
    computing = [
        f"NodeName={name} NodeAddr={address} Sockets=1 CoresPerSocket={cpus} State=UNKNOWN"
        for name, address in list(zip(names, addresses, strict=True))[:-1]
    ]
    text = _CONF.format(
        login=addresses[-1],
        folder=folder,
        nodes="\n".join(computing),
        partition=PARTITION,
        max_time=MAX_TIME_MINUTES,
        cred_expire_s=CRED_EXPIRE_S,
        slurmd_timeout_s=SLURMD_TIMEOUT_S,
        message_timeout_s=MESSAGE_TIMEOUT_S,
    )
    (folder / "state").mkdir(exist_ok=True)
    (folder / "slurm.conf").write_text(text, encoding="utf-8")


def _kill_all_in(mount_namespace: str) -> None:
    """SIGKILL all processes that live in a mount namespace, also those that left their parent."""
    found = True
    while found:
        found = False
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(process / "ns/mnt") == mount_namespace:
                    os.kill(int(process.name), signal.SIGKILL)
                    found = True
