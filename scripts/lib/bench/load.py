"""Traffic generators of our own with DPDK's virtio-user driver: C programs that take a line for
each trial, and answer with a line of JSON.
"""

import json
import os
import shutil

from processes import Failure, Process, run

HERE = os.path.dirname(os.path.abspath(__file__))
READY_SECONDS = 30


def missing():
    """Why no generator can be built, if so."""
    if not shutil.which("cc") or not shutil.which("pkg-config"):
        return "needs cc and pkg-config"
    try:
        run(["pkg-config", "--exists", "libdpdk"])
    except Failure:
        return "needs libdpdk-dev"
    return None


def build(out, name):
    """A generator, for this machine."""
    os.makedirs(out, exist_ok=True)
    program = f"{out}/{name}"
    flags = run(["pkg-config", "--cflags", "--libs", "libdpdk"]).split()
    run(["cc", "-O3", "-march=native", "-o", program, f"{HERE}/{name}.c", *flags], 120)
    return program


class Load:
    """A running generator with a port at each socket."""

    def __init__(self, program, sockets, cpu, words):
        command = [program, "--lcores", f"0@{cpu}", "--no-pci", "--in-memory",
                   "--single-file-segments", "--file-prefix=load", "--log-level=error"]
        for port, path in enumerate(sockets):
            command += ["--vdev", f"net_virtio_user{port},path={path},queues=1,queue_size=256,"
                                  f"mac=02:00:00:00:00:{port + 1:02x}"]
        log = f"{os.path.dirname(sockets[0])}/load.log"
        self.process = Process(command + ["--", *words], log, [cpu])
        self.read = 0
        try:
            self.line(lambda line: line == "ready", READY_SECONDS)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self):
        return self.process.pid

    def line(self, wanted, seconds):
        """The next line that is wanted."""
        found = []

        def look():
            with open(self.process.log, encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")[:-1]
            found.extend(filter(wanted, lines[self.read:]))
            self.read = len(lines)
            return found
        self.process.wait_for(look, seconds)
        return found[0]

    def trial(self, line, seconds):
        """The figures of a trial that takes so long at most."""
        self.process.child.stdin.write(f"{line}\n".encode())
        self.process.child.stdin.flush()
        return json.loads(self.line(lambda line: line.startswith("{"), seconds + 10))

    def stop(self):
        self.process.stop()
