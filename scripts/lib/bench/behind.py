#!/usr/bin/env python3
"""What the kernel behind a TAP costs a frame: `scripts/bench --behind`, as root.

In a network namespace of its own one thread writes frames to a TAP, as the switch does with
io=write, and the kernel does something else with them in each case. Printed are CPU nanoseconds a
frame of that thread and of the kernel's threads for packets, less a write to /dev/null of the same
bytes by the same loop: medians of rounds in turn. Frames of an EtherType that no protocol takes."""

import argparse
import ctypes
import fcntl
import os
import socket
import statistics
import struct
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D8
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x2, 0x1000, 0x4000
HEADER = bytes(12)
SINK, SOURCE = bytes.fromhex("020000000009"), bytes.fromhex("020000000001")
# bpf(2): its number by the machine, two commands, a program's type, where it is attached, how.
BPF = {"x86_64": 321, "aarch64": 280}
BPF_PROG_LOAD, BPF_LINK_CREATE = 5, 28
BPF_PROG_TYPE_XDP, BPF_XDP = 6, 37
GENERIC, NATIVE = 2, 4
XDP_DROP, REDIRECT_HELPER = 1, 23

libc = ctypes.CDLL(None, use_errno=True)


def fail(text):
    sys.exit(f"scripts/bench --behind: {text}")


def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    fd = libc.syscall(BPF[os.uname().machine], command, buffer, len(attributes))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def instruction(code, register, immediate):
    return struct.pack("<BBhi", code, register, 0, immediate)


def program(*instructions):
    code = ctypes.create_string_buffer(b"".join(instructions))
    licence = ctypes.create_string_buffer(b"GPL")
    addresses = ctypes.addressof(code), ctypes.addressof(licence)
    return bpf(BPF_PROG_LOAD, struct.pack("<IIQQ", BPF_PROG_TYPE_XDP, len(instructions), *addresses))


def dropping():
    return program(instruction(0xB7, 0, XDP_DROP), instruction(0x95, 0, 0))


def redirecting(ifname):
    arguments = instruction(0xB7, 1, socket.if_nametoindex(ifname)), instruction(0xB7, 2, 0)
    return program(*arguments, instruction(0x85, 0, REDIRECT_HELPER), instruction(0x95, 0, 0))


def attach(prog, ifname, mode=NATIVE):
    """Until what is answered is closed."""
    return bpf(BPF_LINK_CREATE, struct.pack("<IIII", prog, socket.if_nametoindex(ifname), BPF_XDP, mode))


def ip(words):
    subprocess.run(["ip", *words.split()], check=True)


def sent(ifname):
    """Frames that an interface sent."""
    with open("/proc/thread-self/net/dev") as file:
        line = next(line for line in file if line.strip().startswith(f"{ifname}:"))
    return int(line.split(":")[1].split()[9])


class Tap:
    """A TAP as the switch has it. What is behind it may be a veth whose far end drops all."""

    def __init__(self, name):
        self.name = name
        self.fd = os.open("/dev/net/tun", os.O_RDWR)
        flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
        fcntl.ioctl(self.fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(self.fd, TUNSETVNETHDRSZ, struct.pack("i", len(HEADER)))
        ip(f"link set {name} up")
        self.links = []

    def with_veth(self):
        near, far = f"{self.name}n", f"{self.name}f"
        ip(f"link add {near} type veth peer name {far}")
        ip(f"link set {near} up")
        ip(f"link set {far} up")
        self.links.append(attach(dropping(), far))
        return near

    def in_bridge(self):
        near, bridge = self.with_veth(), f"{self.name}b"
        ip(f"link add {bridge} type bridge mcast_snooping 0")
        ip(f"link set {bridge} up")
        ip(f"link set {self.name} master {bridge}")
        ip(f"link set {near} master {bridge}")
        sink = ":".join(f"{byte:02x}" for byte in SINK)
        subprocess.run(["bridge", "fdb", "add", sink, "dev", near, "master", "static"], check=True)
        return near

    def write(self, frame, count):
        write, fd = os.write, self.fd
        for _ in range(count):
            write(fd, frame)


class Floor:
    name = None

    def __init__(self):
        self.fd = os.open("/dev/null", os.O_WRONLY)

    write = Tap.write


def kernel_threads():
    """CPU nanoseconds of the kernel's threads that receive packets for others."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm") as file:
                if not file.read().startswith(("ksoftirqd/", "napi/")):
                    continue
            with open(f"/proc/{pid}/schedstat") as file:
                total += int(file.read().split()[0])
        except OSError:
            pass
    return total


def measure(sink, frame, count):
    kernel, own = kernel_threads(), time.thread_time_ns()
    sink.write(frame, count)
    own = time.thread_time_ns() - own
    return (own + kernel_threads() - kernel) / count


def cases():
    """Each with its name, where it writes, and an interface that has to count all frames, if any."""
    yield "plain", Tap("plain"), None
    bridged = Tap("bridged")
    yield "in a bridge, to a veth", bridged, bridged.in_bridge()
    dropped = Tap("dropped")
    dropped.links.append(attach(dropping(), dropped.name))
    yield "XDP_DROP", dropped, None
    redirected = Tap("redir")
    near = redirected.with_veth()
    redirected.links.append(attach(redirecting(near), redirected.name))
    yield "XDP_REDIRECT, to a veth", redirected, near
    generic = Tap("generic")
    generic.links.append(attach(dropping(), generic.name, GENERIC))
    yield "XDP_DROP, generic", generic, None


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench --behind")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--frames", type=int, default=4000)
    options = parser.parse_args()
    if os.geteuid() != 0 or libc.unshare(CLONE_NEWNET) != 0:
        fail("needs root, for a network namespace of its own")
    if os.uname().machine not in BPF:
        fail(f"does not know the number of bpf(2) on {os.uname().machine}")
    floor, all_cases = Floor(), list(cases())
    print(f"{'CPU ns a frame':<26}" + "".join(f"{length:>8} B" for length in (60, 1514)))
    rows = {name: [] for name, _, _ in all_cases}
    for length in (60, 1514):
        frame = HEADER + (SINK + SOURCE + b"\x88\xb5").ljust(length, b"\x5a")
        samples = {name: [] for name in rows}
        for _ in range(options.rounds):
            below = measure(floor, frame, options.frames)
            for name, tap, passes in all_cases:
                before = passes and sent(passes)
                cost = measure(tap, frame, options.frames) - below
                # What is lost on a busy machine costs less. Those rounds do not count.
                if not passes or sent(passes) - before == options.frames:
                    samples[name].append(cost)
        for name, counted in samples.items():
            if 3 * len(counted) < options.rounds:
                fail(f"{name}: frames were lost in {options.rounds - len(counted)} rounds")
            rows[name].append(statistics.median(counted))
    for name, figures in rows.items():
        print(f"{name:<26}" + "".join(f"{figure:>10.0f}" for figure in figures))


if __name__ == "__main__":
    main()
