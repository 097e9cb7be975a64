"""What the figures were measured on, and what has to be prepared there."""

import os
import platform
import re
import subprocess
import tempfile
import time

HUGE_PAGES = 512  # of 2 MiB, free before DPDK starts: 1 GiB serves 64 ports.


def read(path, default=""):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return default


def first_line(*command):
    """The first line a command prints; nothing if it fails."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().split("\n")[0] if done.returncode == 0 else ""


def cpus():
    """CPUs this process may use, one of each core, in order."""
    chosen, seen = [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", str(cpu))
        if siblings not in seen:
            seen.add(siblings)
            chosen.append(cpu)
    return chosen


def describe(repo, switches, place):
    """Lines that say which machine, which versions, and when."""
    info = read("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info)
    hypervisor = first_line("systemd-detect-virt", "--vm")
    if not hypervisor:
        hypervisor = "yes" if re.search(r"^flags.*\bhypervisor\b", info, re.M) else "no"
    memory = re.search(r"MemTotal:\s*(\d+)", read("/proc/meminfo"))
    commit = first_line("git", "-C", repo, "describe", "--always", "--dirty", "--abbrev=12")
    lines = [
        ("date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
        ("CPU", f"{model.group(1) if model else platform.machine()}, {os.cpu_count()} CPUs"),
        ("memory", f"{int(memory.group(1)) >> 20} GiB" if memory else "unknown"),
        ("virtualised", hypervisor),
        ("kernel", platform.release()),
        ("load average", " ".join(f"{x:.2f}" for x in os.getloadavg())),
        ("CPUs used", place),
        ("commit", commit or "unknown"),
    ]
    lines += [(switch.name, switch.version()) for switch in switches]
    return [f"{name + ':':16}{value}" for name, value in lines]


class HugePages:
    """Enough free huge pages while DPDK runs; the former number comes back at the end."""

    NUMBER = "/proc/sys/vm/nr_hugepages"

    def __init__(self):
        self.before = None
        self.mounted = None

    def acquire(self):
        """Whether there are enough, after asking for them where we may."""
        free = self._field("HugePages_Free")
        if free < HUGE_PAGES:
            total = self._field("HugePages_Total")
            try:
                with open(self.NUMBER, "w", encoding="ascii") as file:
                    file.write(str(total + HUGE_PAGES - free))
                self.before = total
            except OSError:
                return False
        if not re.search(r"^\S+ \S+ hugetlbfs ", read("/proc/mounts"), re.M):
            where = tempfile.mkdtemp(prefix="vioswitch-huge.")
            if subprocess.run(["mount", "-t", "hugetlbfs", "none", where], check=False).returncode:
                os.rmdir(where)
                return False
            self.mounted = where
        return self._field("HugePages_Free") >= HUGE_PAGES // 2

    def release(self):
        if self.mounted:
            subprocess.run(["umount", self.mounted], check=False)
            os.rmdir(self.mounted)
            self.mounted = None
        if self.before is not None:
            with open(self.NUMBER, "w", encoding="ascii") as file:
                file.write(str(self.before))
            self.before = None

    @staticmethod
    def _field(name):
        found = re.search(rf"^{name}:\s*(\d+)", read("/proc/meminfo"), re.M)
        return int(found.group(1)) if found else 0
