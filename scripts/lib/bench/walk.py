"""Prints the files and functions through which one frame passes, from its sender's kick to the
receiver's signal.

A build without optimisation, in which each function is one, runs under callgrind twice. A guest sends
frames one by one. A function is on the way if the longer run calls the function once more for each
further frame; some frames meet a worker that is awake.
"""

import argparse
import collections
import glob
import os
import re
import sys
import tempfile

from machine import cpus
from processes import Failure, Process, run
from switches import Vioswitch, sockets, socket_arguments

FEW, MANY, RATE = 200, 800, 200
PART = 0.25  # of the frames
# Derived of a type, or what a reader need not open.
DERIVED = {"eq", "hash", "default", "deref", "deref_mut"}
TURN = ("datapath/worker/run.rs", "Worker::turn")


def calls_of(path, source):
    """Calls of each function below `source`, by its file and its name without types."""
    home, calls, file, called = {}, collections.Counter(), "", ""
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            key, _, value = line.rstrip("\n").partition("=")
            if key == "fl":
                file = value
            elif key == "fn":
                home[value] = file
            elif key == "cfn":
                called = value
            elif key == "calls":
                calls[called] += int(value.split()[0])
    found = collections.Counter()
    for name, count in calls.items():
        file = home.get(name, "")
        if file.startswith(source) and plain(name) not in DERIVED:
            found[os.path.relpath(file, source), plain(name)] += count
    return found


def plain(name):
    """A function's name without crate, types and closures, as a reader looks for it."""
    name = re.sub(r"'\d+$|::\{\{?closure[^}]*\}?\}", "", name)
    while (shorter := re.sub(r"::<[^<>]*>|<[^<>]*>", "", name)) != name:
        name = shorter
    parts = [part for part in name.split("::") if part and not part.startswith("{")]
    return "::".join(part for part in parts[-2:] if part[0].isupper() or part is parts[-1])


def one(daemon, loadgen, frames, work, source):
    """Calls of a run with so many frames."""
    directory = tempfile.mkdtemp(dir=work)
    out, place = f"{directory}/callgrind.out", cpus()
    command = ["valgrind", "--tool=callgrind", "--compress-strings=no", "--separate-threads=yes",
               f"--callgrind-out-file={out}", *Vioswitch(daemon).command(directory, 2),
               "--sandbox=off"]
    process = Process(command, f"{directory}/log", place[:1])
    try:
        process.wait_for(lambda: all(map(os.path.exists, sockets(directory, 2))), 120)
        run([loadgen, "--pattern", "one-way", "--burst", "1", "--frames", str(frames),
             "--rate", str(RATE), "--cpu", str(place[-1]), *socket_arguments(directory, 2)], 300)
    finally:
        process.stop()
    threads = (calls_of(path, source) for path in glob.glob(f"{out}-*"))
    return max(threads, key=lambda calls: calls[TURN])


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("daemon")
    arguments.add_argument("loadgen")
    arguments.add_argument("source")
    given = arguments.parse_args()
    source = os.path.realpath(given.source) + "/"
    with tempfile.TemporaryDirectory() as work:
        few, many = (one(given.daemon, given.loadgen, frames, work, source)
                     for frames in (FEW, MANY))
    way = [place for place in many if many[place] - few[place] >= PART * (MANY - FEW)]
    if not way:
        raise Failure("no function was called for each frame")
    files = collections.defaultdict(list)
    for file, name in sorted(way):
        files[file].append(name)
    for file, names in files.items():
        print(f"{file}: {', '.join(names)}")
    print(f"\n{len(files)} files, {len(way)} functions")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(str(failure))
