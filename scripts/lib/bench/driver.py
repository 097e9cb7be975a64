"""DPDK's virtio-user driver in the place of loadgen: testpmd sends each frame that it receives on
one port from the other, so that frames circle through the switch. It rewrites their addresses and
does not check their contents.
"""

import glob
import os
import re
import shutil
import time

from processes import Failure, Process

READY_SECONDS = 30
WARM_UP_SECONDS = 1.0
# Frames under way in each direction: half a ring, so that no switch has to drop one. A dropped
# frame circles no more.
BURST, BURSTS = 64, 2
RING = 256


def missing():
    return None if shutil.which("dpdk-testpmd") else "needs dpdk-testpmd (package dpdk-dev)"


def command(paths, cpu, length):
    """testpmd with a port at each of two sockets, whose driver runs on one CPU."""
    # stdbuf: its figures are read while it runs.
    words = ["stdbuf", "-oL", "dpdk-testpmd", "--lcores", f"0@{cpu},1@{cpu}", "--no-pci",
             "--in-memory", "--single-file-segments", "--file-prefix=guests",
             "--log-level=warning"]
    macs = [f"02:00:00:00:00:{port + 1:02x}" for port in range(len(paths))]
    for port, path in enumerate(paths):
        words += ["--vdev", f"net_virtio_user{port},path={path},queues=1,queue_size={RING},"
                            f"mac={macs[port]}"]
    words += ["--", "-i", "--forward-mode=mac", "--nb-cores=1", f"--txpkts={length}",
              f"--burst={BURST}", "--no-mlockall", "--total-num-mbufs=16384"]
    return words + [f"--eth-peer={port},{macs[port ^ 1]}" for port in range(len(paths))]


class Guests:
    """A running testpmd, steered by its command line."""

    def __init__(self, paths, cpu, length, log):
        self.process = Process(command(paths, cpu, length), log, [cpu])
        self.ports = len(paths)

    def output(self):
        with open(self.process.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def do(self, words, last, times=1):
        """What testpmd prints for a command, of which so many times `last` comes last."""
        before = self.output()
        self.process.child.stdin.write(f"{words}\n".encode())
        self.process.child.stdin.flush()
        self.process.wait_for(lambda: self.output()[len(before):].count(last) >= times,
                              READY_SECONDS)
        return self.output()[len(before):]

    def counts(self):
        """Frames received and sent by all ports, and when that was."""
        text = self.do("show port stats all", "Tx-bps:", self.ports)
        both = [sum(map(int, re.findall(rf"{side}-packets: +(\d+)", text)))
                for side in ("RX", "TX")]
        return (*both, time.monotonic())


def scheduled(pid):
    """Seconds that a process's threads ran, and that they waited for a CPU."""
    total = [0, 0]
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with open(path, encoding="ascii") as file:
            total = [sum(pair) for pair in zip(total, map(int, file.read().split()))]
    return [nanoseconds / 1e9 for nanoseconds in total]


def cpu_shares(switch, guests, during):
    """Runs `during`; its result, and what parts of its time switch and guests ran and waited."""
    pids = [pid for pid in (switch, guests) if pid]
    before, began = [scheduled(pid) for pid in pids], time.monotonic()
    result = during()
    took = time.monotonic() - began
    shares = [[(now - then) / took for now, then in zip(scheduled(pid), old)]
              for pid, old in zip(pids, before)]
    names = (["cpu", "cpu_wait"] if switch else []) + ["generator_cpu", "generator_wait"]
    return result, dict(zip(names, sum(shares, [])))


def measure(started, case, cpu, seconds):
    """The figures of one run, by the names that loadgen gives them, as far as testpmd has them."""
    paths = started.arguments[1::2]
    log = f"{os.path.dirname(paths[0])}/guests.log"
    guests = Guests(paths, cpu, case.driver, log)
    try:
        guests.process.wait_for(lambda: "testpmd>" in guests.output(), READY_SECONDS)
        guests.do(f"start tx_first {BURSTS}", "packet forwarding")
        time.sleep(WARM_UP_SECONDS)
        began = guests.counts()
        _, shares = cpu_shares(started.pid, guests.process.pid, lambda: time.sleep(seconds))
        ended = guests.counts()
    finally:
        guests.process.stop()
    received, sent, took = (after - before for before, after in zip(began, ended))
    if not received:
        raise Failure("no frame came back")
    lost = max(0, ended[1] - ended[0] - len(paths) * BURST * BURSTS)
    return {"mpps": received / took / 1e6, "gbps": received * case.driver * 8 / took / 1e9,
            "sent": sent, "received": received, "lost": lost, "seconds": took, **shares}
