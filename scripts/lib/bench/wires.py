#!/usr/bin/env python3
"""How fast switches forward between two network interfaces: `scripts/bench --wires`, as root.

In a network namespace of its own the near ends of two veth pairs are uplinks of a switch. Frames go
around: what the switch sends out of the second comes back to its first by an XDP program, so that
no generator takes a CPU, and the switch has work all the time. Switch, programs and the kernel's
part share one CPU. Printed are frames a second, and CPU nanoseconds a frame of the switch and of
the kernel's threads for packets: medians of rounds in turn, each with a switch started anew."""

import argparse
import os
import socket
import statistics
import sys
import tempfile
import time

import behind
from behind import SINK, SOURCE, attach, ip, kernel_threads, redirecting, sent
from processes import Failure, Process, end_like_an_exception, run
from switches import READY_SECONDS, OpenVSwitch, Started

# Under way at a time: less than a veth's ring of 256.
FRAMES = 128
ETHER_TYPE = b"\x88\xb5"
SETTLE_SECONDS = 0.3


class Ours:
    def __init__(self, binary, mode):
        self.binary, self.mode = binary, mode
        self.name = f"vioswitch, XDP {mode}"

    def missing(self):
        return None

    def start(self, directory, cpu):
        uplinks = [f"--xdp={end},ifname={end},mode={self.mode}" for end in ("near1", "near2")]
        command = [self.binary, "--uplink-to-uplink", *uplinks]
        process = Process(command, f"{directory}/log", [cpu])
        started = Started([process], [])
        try:
            process.wait_for(lambda: "ready: " in process.tail(), READY_SECONDS)
        except BaseException:
            started.stop()
            raise
        return started


class OpenVSwitchXdp(OpenVSwitch):
    def __init__(self, mode):
        super().__init__()
        self.daemon = self.daemon and self.daemon.replace("-dpdk", "")
        self.mode = mode
        self.name = f"Open vSwitch, afxdp {mode}"

    def missing(self):
        if not self.daemon or not self.server or not os.path.exists(self.SCHEMA):
            return "not installed (package openvswitch-switch)"
        return None

    def start(self, directory, cpu):
        processes, vsctl = self.boot(directory, [cpu])
        try:
            for end in ("near1", "near2"):
                vsctl("add-port", "br0", end, "--", "set", "Interface", end, "type=afxdp",
                      f"options:xdp-mode={self.mode}")
        except BaseException:
            Started(processes, []).stop()
            raise
        return Started(processes, [])


class LinuxBridge:
    name = "Linux bridge"

    def missing(self):
        return None

    def start(self, directory, cpu):
        ip("link add br0 type bridge forward_delay 0 mcast_snooping 0")
        for end in ("near1", "near2"):
            ip(f"link set {end} master br0")
        ip("link set br0 up")
        return Started([], [])


def cpu_nanoseconds(pid):
    """Of all threads of a process."""
    total = kernel_threads()
    for task in os.listdir(f"/proc/{pid}/task") if pid else ():
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def send(interface, frame, count=1):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as packets:
        packets.bind((interface, 0))
        for _ in range(count):
            packets.send(frame)


def measure(switch, length, seconds, cpu):
    """Frames a second, and CPU nanoseconds a frame; a round that lost frames is none."""
    for near, far in ("near1", "far1"), ("near2", "far2"):
        ip(f"link add {near} type veth peer name {far}")
        for end in (near, far):
            ip(f"link set {end} up")
    # So a veth takes what is redirected to it, also without a program of its own.
    run(["ethtool", "-K", "near1", "gro", "on"])
    program_fd = attach(redirecting("far1"), "far2")
    with tempfile.TemporaryDirectory() as directory:
        started = switch.start(directory, cpu)
        try:
            time.sleep(SETTLE_SECONDS)
            # The switch learns the receiver, then gets what goes around.
            send("far2", (b"\xff" * 6 + SINK + ETHER_TYPE).ljust(60, b"\0"))
            time.sleep(SETTLE_SECONDS)
            send("far1", (SINK + SOURCE + ETHER_TYPE).ljust(length, b"\0"), FRAMES)
            time.sleep(SETTLE_SECONDS)
            frames, cpu_time, begun = sent("near2"), cpu_nanoseconds(started.pid), time.monotonic()
            time.sleep(seconds)
            frames, cpu_time = sent("near2") - frames, cpu_nanoseconds(started.pid) - cpu_time
            took = time.monotonic() - begun
        finally:
            started.stop()
            os.close(program_fd)
            for link in ("near1", "near2", "br0"):
                if os.path.exists(f"/proc/sys/net/ipv4/conf/{link}"):
                    ip(f"link delete {link}")
    if not frames:
        raise Failure(f"{switch.name} forwards nothing")
    return frames / took / 1e6, cpu_time / frames


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench --wires")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("binary")
    options = parser.parse_args()
    if os.geteuid() != 0 or behind.libc.unshare(behind.CLONE_NEWNET) != 0:
        sys.exit("scripts/bench --wires: needs root, for a network namespace of its own")
    end_like_an_exception()
    with open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as file:
        file.write("1")
    switches = [Ours(options.binary, "native"), Ours(options.binary, "generic"),
                OpenVSwitchXdp("native"), OpenVSwitchXdp("generic"), LinuxBridge()]
    cpu = max(os.sched_getaffinity(0))
    print(f"{'':<28}" + "".join(f"{f'{length} B: Mpps':>16}{'CPU ns':>8}" for length in (60, 1514)))
    figures = {switch: {60: [], 1514: []} for switch in switches}
    for length in (60, 1514):
        for _ in range(options.rounds):
            for switch in [switch for switch in switches if not switch.missing()]:
                figures[switch][length].append(measure(switch, length, options.seconds, cpu))
    for switch in switches:
        row = f"{switch.name:<28}{switch.missing() or ''}"
        for rounds in filter(None, figures[switch].values()):
            rate, cost = (statistics.median(column) for column in zip(*rounds))
            row += f"{rate:>16.2f}{cost:>8.0f}"
        print(row)


if __name__ == "__main__":
    try:
        main()
    except Failure as error:
        sys.exit(f"scripts/bench --wires: {error}")
