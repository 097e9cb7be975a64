"""The switches: how each is started with so many ports, and what it can do.

A started switch has `pid`, the process whose CPU time counts (None: the generator's own time in
the kernel), `arguments` for the generator, and `stop()`. `has_sockets`: its ports are vhost-user.
`has_vlans`: `start` takes what each port is of VLAN 10. `has_filters`: `start` takes whether the ports
accept connections to port 80 of TCP alone.
"""

import os
import re
import shutil

from machine import first_line
from processes import Failure, Process, run

READY_SECONDS = 30


def sockets(directory, ports):
    return [f"{directory}/s{i}" for i in range(ports)]


def socket_arguments(directory, ports):
    return [word for path in sockets(directory, ports) for word in ("--socket", path)]


class Started:
    """A switch that runs: its processes, the one that counts last."""

    def __init__(self, processes, arguments, wrapper=()):
        self.processes = processes
        self.pid = processes[-1].pid if processes else None
        self.arguments = arguments
        self.wrapper = list(wrapper)

    def stop(self):
        for process in reversed(self.processes):
            process.stop()
        self.processes = []

    def figures(self):
        """What the switch itself tells at its end."""
        return {}


class StartedOurs(Started):
    """vioswitchd; its last report has a line for each worker."""

    def figures(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            found = re.findall(r"worker \d+ .*\bcycles_per_frame (\d+(?:\.\d+)?)", file.read())
        # The last report alone, as many lines as workers; they share the frames evenly enough.
        last = [float(x) for x in found[-self.workers:]]
        return {"busy_cycles": sum(last) / len(last)} if last else {}


class Vioswitch:
    """This project's daemon, spinning or sleeping."""

    learns = True
    most_ports = 1024
    sleeps_when_idle = True
    has_sockets = True
    has_vlans = True
    has_filters = True
    FILTER = """[[filter]]
name = "web"
default-in = "drop"
default-out = "drop"
rules = ["in accept tcp to port 80", "out accept tcp to port 80"]
"""

    # For cases alone in which there is not work for all of the time.
    only_unbusy = False

    def __init__(self, binary, *options):
        self.binary = binary
        self.options = list(options)
        self.poll = "--poll" in options
        self.name = "vioswitch-poll" if self.poll else "vioswitch"

    def missing(self):
        return None

    def version(self):
        return " ".join([first_line(self.binary, "--version"), *self.options])

    def command(self, directory, ports, workers=1, vlans=(), filtered=False):
        command = [self.binary, "--workers", str(workers), *self.options]
        for i, path in enumerate(sockets(directory, ports)):
            keys = {"access": ",vlan=10", "trunk": ",trunk=10"}[vlans[i]] if vlans else ""
            keys += ",filter=web" if filtered else ""
            command += ["--port", f"p{i},socket={path}{keys}"]
        if filtered:
            with open(f"{directory}/filters.toml", "w", encoding="ascii") as file:
                file.write(self.FILTER)
            command.append(f"--config={file.name}")
        return command

    def start(self, directory, ports, cpus, workers=1, vlans=(), filtered=False):
        command = self.command(directory, ports, workers, vlans, filtered)
        process = Process(command, f"{directory}/log", cpus)
        started = StartedOurs([process], socket_arguments(directory, ports))
        started.log, started.workers = process.log, workers
        try:
            process.wait_for(lambda: all(map(os.path.exists, sockets(directory, ports))),
                             READY_SECONDS)
        except BaseException:
            started.stop()
            raise
        return started


class VioswitchLow(Vioswitch):
    """The same with CPUs that are kept from deep idle states while frames come."""

    only_unbusy = True
    device = "/dev/cpu_dma_latency"

    def __init__(self, binary):
        super().__init__(binary, "--latency=low")
        self.name = "vioswitch-low"

    def missing(self):
        return None if os.access(self.device, os.W_OK) else f"needs {self.device}"


class Testpmd:
    """DPDK's testpmd: copies from port 0 to 1 and back, 2 to 3 and so on. It does not switch."""

    name = "testpmd"
    learns = False
    most_ports = 32  # RTE_MAX_ETHPORTS of the usual builds
    sleeps_when_idle = False
    has_sockets = True
    has_vlans = False
    has_filters = False

    def missing(self):
        return None if shutil.which("dpdk-testpmd") else "not installed (package dpdk-dev)"

    def version(self):
        # The program itself tells its version only after it has started up.
        version = first_line("dpdk-hugepages.py", "--version")
        package = first_line("dpkg-query", "-W", "-f", "${Version}", "dpdk-dev")
        return f"DPDK {package or version}, io forwarding, net_vhost"

    def start(self, directory, ports, cpus, workers=1):
        cpu = cpus[0]
        command = ["dpdk-testpmd", "--lcores", f"0@{cpu},1@{cpu}", "--no-pci", "--in-memory",
                   "--log-level=warning"]
        for i, path in enumerate(sockets(directory, ports)):
            command += ["--vdev", f"net_vhost{i},iface={path},queues=1"]
        command += ["--", "-i", "--auto-start", "--forward-mode=io", "--nb-cores=1",
                    f"--total-num-mbufs={16384 + 2048 * ports}", "--disable-link-check"]
        process = Process(command, f"{directory}/log", [cpu])
        started = Started([process], socket_arguments(directory, ports))
        try:
            process.wait_for(lambda: all(map(os.path.exists, sockets(directory, ports)))
                             and "testpmd>" in process.tail(), READY_SECONDS)
        except BaseException:
            started.stop()
            raise
        return started


class OpenVSwitch:
    """OVS with the userspace data path: a learning switch on DPDK."""

    name = "ovs-dpdk"
    learns = True
    most_ports = 1024
    sleeps_when_idle = False
    has_sockets = True
    has_vlans = True
    has_filters = True
    # Packets meet conntrack once; vioswitch has a connection at each of the two ports.
    FLOWS = """table=0,priority=2,ip,actions=ct(table=1)
table=0,priority=1,actions=NORMAL
table=1,priority=2,ct_state=+trk+est,ip,actions=NORMAL
table=1,priority=2,ct_state=+trk+new,tcp,tp_dst=80,actions=ct(commit),NORMAL
table=1,priority=1,actions=drop
"""
    SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"

    def __init__(self):
        candidates = ["/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk",
                      shutil.which("ovs-vswitchd", path=os.environ["PATH"] + ":/usr/sbin") or ""]
        self.daemon = next(filter(os.path.exists, candidates), None)
        self.server = shutil.which("ovsdb-server", path=os.environ["PATH"] + ":/usr/sbin")

    def missing(self):
        if not self.daemon or not self.server or not os.path.exists(self.SCHEMA):
            return "not installed (package openvswitch-switch-dpdk)"
        if os.geteuid() != 0:
            return "needs root"
        done = first_line("sh", "-c", f"{self.daemon} --version | grep DPDK")
        return None if done else "without DPDK (package openvswitch-switch-dpdk)"

    def version(self):
        version = first_line(self.daemon, "--version")
        dpdk = first_line("sh", "-c", f"{self.daemon} --version | grep DPDK")
        return f"{version.replace('ovs-vswitchd ', '')}, {dpdk}, NORMAL action"

    def boot(self, directory, cpus, *config):
        """Both daemons and a bridge br0; the processes, and what runs ovs-vsctl."""
        database = f"unix:{directory}/db.sock"
        env = dict(os.environ, OVS_RUNDIR=directory, OVS_DBDIR=directory, OVS_LOGDIR=directory,
                   OVS_SYSCONFDIR=directory)
        processes = []

        def vsctl(*words):
            run(["ovs-vsctl", f"--db={database}", "--timeout=30", *words], 35, env)

        try:
            run(["ovsdb-tool", "create", f"{directory}/conf.db", self.SCHEMA], env=env)
            processes.append(Process(
                [self.server, f"{directory}/conf.db", f"--remote=punix:{directory}/db.sock",
                 f"--unixctl={directory}/db.ctl", "--no-chdir"], f"{directory}/db.log", cpus, env))
            processes[0].wait_for(lambda: os.path.exists(f"{directory}/db.sock"), READY_SECONDS)
            mask = sum(1 << cpu for cpu in cpus)
            vsctl("--no-wait", "init", "--", "set", "Open_vSwitch", ".",
                  f"other_config:pmd-cpu-mask={mask:#x}", *config)
            processes.append(Process([self.daemon, database, f"--unixctl={directory}/ctl"],
                                     f"{directory}/log", cpus, env))
            vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev",
                  "other_config:mac-table-size=131072")
        except BaseException:
            Started(processes, []).stop()
            raise
        return processes, vsctl

    def filter(self, directory):
        """Like vioswitch it looks at no sequence numbers."""
        run(["ovs-appctl", "-t", f"{directory}/ctl", "dpctl/ct-disable-tcp-seq-chk"])
        with open(f"{directory}/flows", "w", encoding="ascii") as file:
            file.write(self.FLOWS)
        bridge = f"unix:{directory}/br0.mgmt"
        run(["ovs-ofctl", "del-flows", bridge])
        run(["ovs-ofctl", "add-flows", bridge, file.name])

    def start(self, directory, ports, cpus, workers=1, vlans=(), filtered=False):
        processes, vsctl = self.boot(directory, cpus, "other_config:dpdk-init=true",
                                     "other_config:dpdk-extra=--in-memory --no-pci")
        try:
            words = []
            for i in range(ports):
                keys = [{"access": "tag=10", "trunk": "trunks=10"}[vlans[i]]] if vlans else []
                words += ["--", "add-port", "br0", f"s{i}", *keys,
                          "--", "set", "Interface", f"s{i}", "type=dpdkvhostuser"]
            vsctl(*words[1:])
            processes[1].wait_for(lambda: all(map(os.path.exists, sockets(directory, ports))),
                                  READY_SECONDS)
            if filtered:
                self.filter(directory)
        except BaseException:
            Started(processes, []).stop()
            raise
        return Started(processes, socket_arguments(directory, ports))


class OpenVSwitchZones(OpenVSwitch):
    """The same, and a packet meets conntrack for its sender and for its receiver, as with OVN."""

    name = "ovs-zones"
    only_filtered = True
    FLOWS = """table=0,priority=2,ip,in_port=1,actions=ct(zone=1,table=1)
table=0,priority=2,ip,in_port=2,actions=ct(zone=2,table=1)
table=0,priority=1,actions=NORMAL
table=1,priority=2,ct_state=+trk+est,ip,actions=goto_table:2
table=1,priority=2,ct_state=+trk+new,tcp,tp_dst=80,in_port=1,actions=ct(commit,zone=1),goto_table:2
table=1,priority=2,ct_state=+trk+new,tcp,tp_dst=80,in_port=2,actions=ct(commit,zone=2),goto_table:2
table=1,priority=1,actions=drop
table=2,in_port=1,ip,actions=ct(zone=2,table=3)
table=2,in_port=2,ip,actions=ct(zone=1,table=3)
table=3,priority=2,ct_state=+trk+est,ip,actions=NORMAL
table=3,priority=2,ct_state=+trk+new,tcp,tp_dst=80,in_port=1,actions=ct(commit,zone=2),NORMAL
table=3,priority=2,ct_state=+trk+new,tcp,tp_dst=80,in_port=2,actions=ct(commit,zone=1),NORMAL
table=3,priority=1,actions=drop
"""


class Bridge:
    """The Linux bridge with a TAP for each port, in a network namespace of the generator's own.

    The namespace ends with the generator. The bridge works in the generator's system calls, so
    that both share a CPU.
    """

    name = "bridge"
    learns = True
    most_ports = 1024
    sleeps_when_idle = True
    has_sockets = False
    has_vlans = False
    has_filters = False
    SETUP = """set -e
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
ip link add br0 type bridge forward_delay 0 mcast_snooping 0
i=0
while [ $i -lt $PORTS ]; do
    ip tuntap add dev t$i mode tap
    ip link set t$i master br0 up
    i=$((i + 1))
done
ip link set br0 up
exec "$@"
"""

    def missing(self):
        if os.geteuid() != 0:
            return "needs root"
        if not os.path.exists("/dev/net/tun"):
            return "there is no /dev/net/tun"
        try:
            run(["unshare", "--net", "ip", "link", "add", "br0", "type", "bridge"])
        except Failure as error:
            return f"no bridge can be made: {error}"
        return None

    def version(self):
        return "of the kernel, a TAP for each port, no offloads"

    def start(self, directory, ports, cpus, workers=1):
        arguments = [word for i in range(ports) for word in ("--tap", f"t{i}")]
        wrapper = ["unshare", "--net", "env", f"PORTS={ports}", "sh", "-c", self.SETUP, "sh"]
        return Started([], arguments, wrapper)

