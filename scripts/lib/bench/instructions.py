"""Instructions per frame under callgrind: a figure that noise does not change. With `connections` a
count is per TCP connection of four frames, and dpdk_tcp the generator.
"""

import os
import re
import shutil
import tempfile
from dataclasses import dataclass

import load
from machine import HugePages, cpus
from processes import Failure, Process, run
from switches import sockets, socket_arguments

FRAMES = 100_000  # of each sender; twice that in the second run

# Twice that in the first run, after which the list of a port's ended connections is full (16,384).
CONNECTIONS = 10_000

LENGTHS = (60, 1514)
SHORTEST = 32  # of the generator's frames without a head
GROUP = "01005e010101"


def words(text):
    return tuple(text.split())


def checked(data, at):
    """Bytes with their Internet checksum at an offset."""
    total = sum(int.from_bytes(data[i:i + 2], "big") for i in range(0, len(data), 2))
    total = (total & 0xffff) + (total >> 16)
    return data[:at] + (0xffff - total).to_bytes(2, "big") + data[at + 2:]


def ipv4(port, length, protocol=253, to=(10, 0, 0, 99)):
    """Type and header of a packet from 10.0.0.PORT in a frame of this length."""
    head = bytes([0x45, 0]) + (length - 14).to_bytes(2, "big") + bytes([0, 0, 0, 0, 1, protocol])
    return b"\x08\0" + checked(head + bytes([0, 0, 10, 0, 0, port, *to]), 10)


def tcp(port):
    """Header of a segment between port 40000 of port 0 and port 80 of port 1."""
    ends = [value.to_bytes(2, "big") for value in (40000, 80)]
    return ends[port] + ends[1 - port] + bytes([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 255, 255, 0, 0, 0, 0])


def filters(count):
    """A filter of so many rules, of which the last permits what comes."""
    others = [f'"in accept tcp from 10.9.{i // 250}.{i % 250} to port {1000 + i}"'
              for i in range(count - 1)]
    rules = ", ".join([*others, '"in accept tcp to port 80"'])
    return f'[[filter]]\nname = "web"\ndefault-in = "drop"\nrules = [{rules}]\n'


def igmp(port, to, message):
    """A frame of IGMP from a port of the generator, for its --first."""
    mac = bytes([1, 0, 0x5e, to[1], to[2], to[3], 2, 0x76, 0, port, 0, 0])
    packet = ipv4(port, 34 + len(message), 2, to) + checked(message, 2)
    return f"{port}:{(mac + packet).hex()}"


# A query of all groups that is answered at once, and a report of the group above.
QUERY = igmp(1, (224, 0, 0, 1), bytes([0x11, 0, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0]))
REPORT = igmp(1, (239, 1, 1, 1), bytes([0x16, 0, 0, 0, 239, 1, 1, 1]))


@dataclass(frozen=True)
class Case:
    """Keys of two ports, further options of the daemon and of the generator. Port 0 sends, and port
    1 unless it is one-way; `tags` says whose frames have a tag on the wire, `ip` that they are of
    IPv4 (protocol 253), `to` where, `tcp` that they are of a TCP connection. `rules`: of the filter
    of both ports."""

    name: str
    title: str
    keys: tuple = ("", "")
    daemon: tuple = ()
    generator: tuple = ()
    tags: tuple = (False, False)
    ip: bool = False
    to: tuple = (10, 0, 0, 99)
    tcp: bool = False
    connections: bool = False
    rules: int = 0

    def head(self, port, length):
        """What the port's frames of this length have behind their addresses."""
        tag = bytes([0x81, 0, 0, 10]) if self.tags[port] else b""
        if self.tcp:
            return tag + ipv4(port, length - len(tag), 6, (10, 0, 0, 1 - port)) + tcp(port)
        return tag + (ipv4(port, length - len(tag), to=self.to) if self.ip else b"")

    def lengths(self):
        """Packets of TCP have a length of their own, which announcements must not fall below."""
        return (SHORTEST + len(self.head(0, LENGTHS[0])),) if self.tcp else LENGTHS

    def options(self, length):
        """Of the generator, which counts what is behind the head."""
        heads = [self.head(port, length) for port in (0, 1)]
        given = [word for port, head in enumerate(heads) if head
                 for word in ("--head", f"{port}:{head.hex()}")]
        return ["--len", str(length - len(heads[0])), *given, *self.generator]


def both(keys):
    return (keys, keys)


ONE_WAY = words("--pattern one-way")
TO_ALL = words("--pattern broadcast")
TO_GROUP = (*TO_ALL, "--group", GROUP)
OWN = ("02:76:00:00:00:00", "02:76:00:01:00:00")
MACS = tuple(f",mac={mac}" for mac in OWN)
GUARD = tuple(f",guard=on,ethertypes=0x88b5,allowed-macs={mac}"
              f",allowed-ips=10.0.0.{port},fd00::{port}"
              for port, mac in enumerate(OWN))

CASES = [
    Case("plain", "no key"),
    Case("bridge", "bridge=a", both(",bridge=a")),
    Case("isolated", "isolated=on, one of the two", (",isolated=on", "")),
    Case("learn", "learn=off mac=", tuple(f",learn=off{mac}" for mac in MACS)),
    Case("max-addresses", "max-addresses=1", both(",max-addresses=1")),
    Case("flood", "flood=off", both(",flood=off")),
    Case("pass", "pass=lldp", both(",pass=lldp")),
    Case("storm", "storm=", both(",storm=bcast:1gbit,mcast:1gbit,unknown:1gbit")),
    Case("rate-in", "rate-in=100gbit", both(",rate-in=100gbit")),
    Case("rate-out", "rate-out=100gbit", both(",rate-out=100gbit")),
    Case("guard", "guard=on, frames that are not IP", GUARD),
    Case("snooping", "--multicast-snooping", daemon=("--multicast-snooping",)),
    Case("vlan", "vlan=10, without tags", both(",vlan=10")),
    Case("trunk", "trunk=10, with tags", both(",trunk=10"), tags=(True, True)),
    Case("one-way", "no key, one way", generator=ONE_WAY),
    Case("push", "from vlan=10 to trunk=10, one way", (",vlan=10", ",trunk=10"),
         generator=ONE_WAY, tags=(False, True)),
    Case("pop", "from trunk=10 to vlan=10, one way", (",trunk=10", ",vlan=10"),
         generator=ONE_WAY, tags=(True, False)),
    Case("ip", "no key, IPv4", ip=True),
    Case("guard-ip", "guard=on, IPv4", GUARD, ip=True),
    Case("guard-log-ip", "guard=log, IPv4", tuple(k.replace("=on", "=log") for k in GUARD),
         ip=True),
    Case("flooded", "to all, one copy", generator=TO_ALL),
    Case("flooded-storm", "to all, one copy, storm=", both(",storm=bcast:100gbit"),
         generator=TO_ALL),
    Case("group", "to a group, one copy", generator=TO_GROUP, ip=True, to=(239, 1, 1, 1)),
    Case("group-snooped", "to a group, one copy, --multicast-snooping",
         ("", ",multicast-router=on"), ("--multicast-snooping",),
         (*TO_GROUP, "--first", QUERY, "--first", REPORT), ip=True, to=(239, 1, 1, 1)),
    Case("filter-off", "no key, a TCP stream (74 B)", tcp=True),
    *(Case(f"filter-{count}", f"filter= of {count} rules, a TCP stream (74 B)", tcp=True, rules=count)
      for count in (1, 10, 1000)),
    Case("filter-new-off", "no key, a TCP connection of four frames", connections=True),
    *(Case(f"filter-new-{count}", f"filter= of {count} rules, a TCP connection of four frames",
           connections=True, rules=count) for count in (1, 10, 1000)),
]


class WithKeys:
    """The daemon with a case's keys."""

    def __init__(self, ours, case):
        self.ours, self.case = ours, case

    def command(self, directory, ports):
        command = self.ours.command(directory, ports)
        at = [i for i, word in enumerate(command) if word == "--port"]
        for i, keys in zip(at, self.case.keys):
            command[i + 1] += keys + (",filter=web" if self.case.rules else "")
        if self.case.rules:
            with open(f"{directory}/filters.toml", "w", encoding="ascii") as file:
                file.write(filters(self.case.rules))
            command.append(f"--config={file.name}")
        return command + list(self.case.daemon)


def total(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        found = re.search(r"^(?:summary|totals): (\d+)", file.read(), re.M)
    if not found:
        raise Failure(f"no total in {path}")
    return int(found.group(1))


def one(ours, work, traffic):
    """Instructions the daemon took for traffic, start and end included; what `traffic` counted."""
    directory = tempfile.mkdtemp(dir=work)
    out = f"{directory}/callgrind.out"
    place = cpus()
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
    # Valgrind makes code as it runs.
    command += ours.command(directory, 2) + ["--sandbox=off"]
    daemon = Process(command, f"{directory}/log", place[:1])
    try:
        daemon.wait_for(lambda: all(map(os.path.exists, sockets(directory, 2))), 60)
        counted = traffic(directory, place[-1])
    finally:
        daemon.stop()
    return total(out), counted


def frames(loadgen, count, options):
    """Sends so many frames from each sender; how many that were."""
    def traffic(directory, cpu):
        result = run([loadgen, "--frames", str(count), "--cpu", str(cpu)] + options
                     + socket_arguments(directory, 2), 120)
        return int(re.search(r'"sent": (\d+)', result).group(1))
    return traffic


def connections(program, count):
    """Begins and ends so many connections; how many that were."""
    def traffic(directory, cpu):
        guests = load.Load(program, sockets(directory, 2), cpu, ["new", str(LENGTHS[0])])
        try:
            result = guests.trial(f"120 {count}", 120)
        finally:
            guests.stop()
        if result["lost"] or result["foreign"]:
            raise Failure(f"{result['lost']} connections were lost, {result['foreign']} frames damaged")
        return result["connections"]
    return traffic


def difference(ours, work, short, long):
    """Of a long and a short run, so that start and end cancel."""
    (less, few), (more, many) = (one(ours, work, traffic) for traffic in (short, long))
    return (more - less) / (many - few)


def per_frame(ours, loadgen, work, options):
    return difference(ours, work, *(frames(loadgen, count, options) for count in (FRAMES, 2 * FRAMES)))


def per_connection(ours, program, work):
    return difference(ours, work, *(connections(program, count)
                                    for count in (2 * CONNECTIONS, 3 * CONNECTIONS)))


def tenants(ours, loadgen, cases, work):
    """Prints a line for each case: the lengths' figures, or that of a connection."""
    pages = HugePages()
    try:
        if any(case.connections for case in cases):
            why = load.missing() or (None if pages.acquire() else "no huge pages (needs root)")
            if why:
                raise Failure(why)
        for case in cases:
            with_keys = WithKeys(ours, case)
            if case.connections:
                values = [per_connection(with_keys, load.build(work, "dpdk_tcp"), work)]
            else:
                values = [per_frame(with_keys, loadgen, work, case.options(length))
                          for length in case.lengths()]
            print(f"{case.name:16} {case.title:53}"
                  + "".join(f"{value:8.1f}" for value in values), flush=True)
    finally:
        pages.release()
    return 0


def main(ours, loadgen, limits, work):
    """Prints a line for each length; the exit status tells whether all limits are kept."""
    if not shutil.which("valgrind"):
        raise Failure("valgrind is not installed")
    kept = True
    for length in LENGTHS:
        value = per_frame(ours, loadgen, work, ["--len", str(length)])
        limit = limits.get(length)
        note = "" if limit is None else f"  (limit {limit:g})"
        if limit is not None and value > limit:
            kept = False
            note += "  EXCEEDED"
        print(f"{length:5} B: {value:8.1f} instructions per frame{note}", flush=True)
    for length in LENGTHS:
        value = per_frame(ours, loadgen, work, ["--len", str(length), "--log"])
        print(f"{length:5} B: {value:8.1f} instructions per frame while guests migrate", flush=True)
    return 0 if kept else 1
