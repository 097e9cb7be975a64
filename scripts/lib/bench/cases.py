"""What is measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One kind of traffic. `metric` is the column that its plot shows and runs are compared by."""

    name: str
    title: str
    ports: int
    arguments: tuple = ()
    metric: str = "mpps"
    # Only a switch that learns can do it: more than one receiver, or broadcasts.
    learning: bool = False
    workers: int = 1
    # Of vioswitch alone, or of all.
    ours: bool = False
    # The length of frames that DPDK's driver sends in the generator's place.
    driver: int = 0
    # The pattern and the length of frames that our generator with DPDK's driver sends instead, and
    # whether the ports have filters.
    tcp: tuple = ()
    filtered: bool = False
    # The series of a line chart and the place on its axis.
    series: str = ""
    at: int = 0
    quick: bool = False
    long: bool = False
    # Whether there is work for all of the time.
    busy: bool = True
    # What each port is of VLAN 10: "access" or "trunk".
    vlans: tuple = ()


def pairs(name, title, *arguments, **rest):
    return Case(name, title, 2, ("--pattern", "pairs", *arguments), **rest)


def of_vlan(name, title, first, second):
    """60 bytes without the tag that a trunk's frames have behind their addresses."""
    vlans = (first, second)
    heads = [word for port, kind in enumerate(vlans) if kind == "trunk"
             for word in ("--head", f"{port}:8100000a")]
    return pairs(name, title, "--len", "60", *heads, vlans=vlans)


CASES = [
    Case("driver", "60 B, two ports of DPDK's driver, both ways", 2, driver=60, quick=True),
    Case("driver-1514", "1514 B, two ports of DPDK's driver, both ways", 2, driver=1514,
         metric="gbps", quick=True),
    pairs("small", "60 B, two ports, both ways", "--len", "60", quick=True),
    pairs("large", "1514 B, two ports, both ways", "--len", "1514", metric="gbps", quick=True),
    pairs("untouched", "1514 B of which the guests touch 32, two ports, both ways", "--len", "1514",
          "--no-touch", metric="gbps"),
    pairs("mix", "60, 590, 1514 B as 7:4:1, two ports, both ways", "--len", "mix", metric="gbps"),
    Case("fan-in", "60 B, four ports to one", 5, ("--pattern", "all-to-one"), learning=True,
         quick=True),
    Case("broadcast", "60 B, one port to eight", 9, ("--pattern", "broadcast"), learning=True,
         quick=True),
    pairs("latency", "60 B, 100,000 frames/s, two ports", "--rate", "100000", metric="p50",
          quick=True, busy=False),
    Case("idle", "16 silent ports", 16, ("--pattern", "idle"), metric="cpu", quick=True,
         busy=False),
    pairs("ring-256", "60 B, two ports, rings of 256", "--ring", "256", series="ring", at=256),
    pairs("ring-1024", "60 B, two ports, rings of 1024", "--ring", "1024", series="ring", at=1024),
    Case("workers-1", "60 B, four ports in pairs, one worker", 4, ours=True),
    Case("workers-2", "60 B, four ports in pairs, two workers", 4, ours=True, workers=2),
]

CASES += [
    of_vlan("trunk", "60 B and a tag, two trunks of a VLAN, both ways", "trunk", "trunk"),
    of_vlan("access-trunk", "60 B, an access port and a trunk of a VLAN, both ways",
            "access", "trunk"),
]

CASES += [
    Case(f"fdb-{count}", f"60 B, 16 ports in pairs, {count} addresses", 16,
         ("--addresses", str(count // 16)), learning=True, series="fdb", at=count)
    for count in (16, 1024, 65536)
]

CASES += [
    Case(f"ports-{ports}", f"60 B, {ports} ports in pairs", ports, (), series="ports", at=ports,
         long=True)
    for ports in (2, 4, 8, 16, 32, 64)
]

CASES += [
    Case("filter-off", "TCP of one connection, 60 B both ways, no filters", 2, tcp=("stream", 60)),
    Case("filter-stream", "TCP of one connection, 60 B both ways, two filtered ports", 2,
         tcp=("stream", 60), filtered=True),
    Case("filter-1514", "TCP of one connection, 1514 B both ways, two filtered ports", 2,
         tcp=("stream", 1514), filtered=True, metric="gbps"),
    Case("filter-new", "new TCP connections of four frames, two filtered ports", 2,
         tcp=("new", 60), filtered=True, metric="kcps"),
]

SERIES = {
    "ring": "60 B, two ports: descriptors in each ring",
    "fdb": "60 B, 16 ports in pairs: addresses in use",
    "ports": "60 B, ports in pairs: number of ports",
}
