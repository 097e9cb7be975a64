"""Instructions per frame under callgrind: a figure that noise does not change."""

import os
import re
import shutil
import tempfile

from machine import cpus
from processes import Failure, Process, run
from switches import sockets, socket_arguments

FRAMES = 100_000  # of each of two senders; twice that in the second run


def total(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        found = re.search(r"^(?:summary|totals): (\d+)", file.read(), re.M)
    if not found:
        raise Failure(f"no total in {path}")
    return int(found.group(1))


def one(ours, loadgen, length, frames, work, options):
    """Instructions the daemon took for so many frames, start and end included; frames."""
    directory = tempfile.mkdtemp(dir=work)
    out = f"{directory}/callgrind.out"
    place = cpus()
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
    daemon = Process(command + ours.command(directory, 2), f"{directory}/log", place[:1])
    try:
        daemon.wait_for(lambda: all(map(os.path.exists, sockets(directory, 2))), 60)
        result = run([loadgen, "--frames", str(frames), "--len", str(length), "--cpu",
                      str(place[-1])] + options + socket_arguments(directory, 2), 120)
    finally:
        daemon.stop()
    sent = int(re.search(r'"sent": (\d+)', result).group(1))
    return total(out), sent


def per_frame(ours, loadgen, length, work, options):
    """The difference of a long and a short run, so that start and end cancel."""
    short, few = one(ours, loadgen, length, FRAMES, work, options)
    long, many = one(ours, loadgen, length, 2 * FRAMES, work, options)
    return (long - short) / (many - few)


def main(ours, loadgen, limits, work):
    """Prints a line for each length; the exit status tells whether all limits are kept."""
    if not shutil.which("valgrind"):
        raise Failure("valgrind is not installed")
    kept = True
    for length in (60, 1514):
        value = per_frame(ours, loadgen, length, work, [])
        limit = limits.get(length)
        note = "" if limit is None else f"  (limit {limit:g})"
        if limit is not None and value > limit:
            kept = False
            note += "  EXCEEDED"
        print(f"{length:5} B: {value:8.1f} instructions per frame{note}", flush=True)
    for length in (60, 1514):
        value = per_frame(ours, loadgen, length, work, ["--log"])
        print(f"{length:5} B: {value:8.1f} instructions per frame while guests migrate", flush=True)
    return 0 if kept else 1
