"""The benchmark: runs the switches in turn, round by round, and tells what came out.

Started by scripts/bench, which has built the daemon and the generator.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

import driver
import instructions
import load
import machine
import plot
import tcp
from cases import CASES, SERIES
from processes import Failure, end_like_an_exception, run
from switches import Bridge, OpenVSwitch, OpenVSwitchZones, Testpmd, Vioswitch, VioswitchLow

REPO = os.path.normpath(os.path.join(os.path.dirname(__file__), "../../.."))

# A run is disturbed if the generator or the switch was ready to run, and something else had its
# CPU, for more than this share of the time; or if one that never sleeps got less than the rest.
WAIT_SHARE = 0.03
# Before a run the worst of 20 series of cache-line transfers may take so many times the quietest
# median seen; after it the median may.
GATE_FACTOR = 2.0
GATE_WAIT = 0.5
# Switches that need huge pages.
ON_DPDK = ("testpmd", "ovs-dpdk", "ovs-zones")

# Repeats of one disturbed run, and seconds for waiting and repeating in all with --quick.
REPEATS = 3
QUICK_PATIENCE = 25

UNITS = {"mpps": "million frames/s", "gbps": "Gbit/s", "p50": "µs (median)",
         "kcps": "thousand connections/s",
         "cpu": "CPUs"}
# Less is better.
FALLING = {"p50", "cpu"}

COLUMNS = ["round", "case", "switch", "disturbed", "error", "mpps", "gbps", "kcps", "sent", "received",
           "lost", "late", "duplicates", "flooded", "foreign", "corrupt", "jain", "p50", "p99",
           "max", "cpu", "cpu_wait", "cycles_per_frame", "busy_cycles", "generator_cpu",
           "generator_wait", "generator_idle", "kicks", "seconds",
           "tsc_mhz", "gate_ns"]


def options():
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measures vioswitchd beside other switches.",
        epilog="docs/performance.md explains the columns, --list the cases.")
    parser.add_argument("--quick", action="store_true",
                        help="one short round of the main cases: at most 3 minutes")
    parser.add_argument("--long", action="store_true", help="with 2 to 64 ports as well")
    parser.add_argument("--cases", metavar="LIST", help="of these cases alone (see --list)")
    parser.add_argument("--switches", metavar="LIST", help="of these switches alone (see --list)")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds (5; with --ndr 10, with --quick 1)")
    parser.add_argument("--seconds", type=float, metavar="S",
                        help="seconds measured in each run (3; with --quick 1)")
    parser.add_argument("--out", metavar="DIR", help="for the results (target/bench)")
    parser.add_argument("--install", action="store_true",
                        help="install the other switches' packages with apt (root)")
    parser.add_argument("--ndr", action="store_true",
                        help="instead search for the highest rates without loss and with 0.5 %%, "
                             "with DPDK's driver")
    parser.add_argument("--instructions", action="store_true",
                        help="count vioswitchd's instructions per frame under valgrind instead; "
                             "with --cases all or a list those of tenants' keys")
    parser.add_argument("--limit", metavar="LEN=N,…", default="",
                        help="with --instructions: fail above so many, as in 60=300,1514=700")
    parser.add_argument("--parts", action="store_true",
                        help="only the micro-benchmarks, which otherwise come last")
    parser.add_argument("--behind", action="store_true",
                        help="only, as the first option: what the kernel behind a TAP costs")
    parser.add_argument("--scale", metavar="N",
                        help="only, as the first option: how 1 to N workers add up")
    parser.add_argument("--wires", action="store_true",
                        help="only, as the first option: from one interface to another")
    parser.add_argument("--list", action="store_true", help="list cases and switches")
    parser.add_argument("--target", default=f"{REPO}/target", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.behind or chosen.scale or chosen.wires:
        parser.error("--behind, --scale and --wires come first")
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 10 if chosen.ndr else 5)
    chosen.seconds = chosen.seconds or (1.0 if chosen.quick else 3.0)
    chosen.out = chosen.out or f"{chosen.target}/bench"
    if chosen.rounds < 1 or not 0.1 <= chosen.seconds <= 600:
        parser.error("rounds and seconds must be positive, seconds at most 600")
    return parser, chosen


def select(parser, wanted, things, default):
    """The named ones, or the default; a name without a thing stands for those that begin with it
    and a hyphen; a wrong name ends the program."""
    if not wanted:
        return [thing for thing in things if default(thing)]
    known, names = {thing.name for thing in things}, set()
    for word in wanted.split(","):
        found = {word} & known or {name for name in known if name.startswith(word + "-")}
        if not found:
            parser.error(f"unknown: {word} (see --list)")
        names |= found
    return [thing for thing in things if thing.name in names]


class Bench:
    """The runs and what is known about the machine."""

    def __init__(self, chosen, switches, cases, place, work):
        self.chosen, self.switches, self.cases = chosen, switches, cases
        self.generator_cpu, self.switch_cpus = place
        self.work = work
        self.loadgen = f"{chosen.target}/release/examples/loadgen"
        self.quietest = float("inf")
        self.patience = QUICK_PATIENCE if chosen.quick else float("inf")
        self.rows = []
        # The generator of TCP, once it is built.
        self.tcp = None

    def skip(self, switch, case):
        """Why a switch cannot do a case, if so."""
        if case.ours and not isinstance(switch, Vioswitch):
            return "vioswitch only"
        if case.busy and getattr(switch, "only_unbusy", False):
            return "as vioswitch while frames come all the time"
        if not case.filtered and getattr(switch, "only_filtered", False):
            return "as ovs-dpdk without filters"
        if case.ports > switch.most_ports:
            return f"at most {switch.most_ports} ports"
        if case.learning and not switch.learns:
            return "does not learn"
        if case.vlans and not switch.has_vlans:
            return "has no VLANs here"
        if case.workers > len(self.switch_cpus):
            return f"needs {case.workers + 1} CPUs"
        if case.filtered and not switch.has_filters:
            return "has no filters here"
        if case.tcp:
            return load.missing() if switch.has_sockets else "no vhost-user"
        if case.driver:
            return driver.missing() if switch.has_sockets else "no vhost-user"
        return None

    def transfers(self):
        """Nanoseconds of a cache line's way between the two CPUs: median and worst series."""
        pair = f"{self.switch_cpus[0]},{self.generator_cpu}"
        figures = json.loads(run([self.loadgen, "--gate", pair]))
        # Null: the transfers did not come to an end, because others had the CPUs.
        median = figures["ping_pong_ns"] or float("inf")
        self.quietest = min(self.quietest, median)
        return median, figures["worst_ns"] or float("inf")

    def gate(self):
        """Waits until nobody else is on the two CPUs, for a while; the last median in ns."""
        for attempt in range(REPEATS + 1):
            median, worst = self.transfers()
            if worst < GATE_FACTOR * self.quietest or attempt == REPEATS or self.patience <= 0:
                break
            self.patience -= GATE_WAIT
            time.sleep(GATE_WAIT)
        return median

    def far(self, row):
        """Whether the CPUs were farther apart than at other times: a hypervisor may move them."""
        return row["gate_ns"] > GATE_FACTOR * self.quietest

    def once(self, switch, case):
        """One run of a case: the generator's figures, flat."""
        directory = tempfile.mkdtemp(dir=self.work)
        more = {"vlans": case.vlans} if case.vlans else {}
        if case.filtered:
            more["filtered"] = True
        started = switch.start(directory, case.ports, self.switch_cpus[:case.workers], case.workers,
                               **more)
        try:
            result = self.measure(started, case)
        finally:
            started.stop()
        result.update(result.pop("latency_us", {}))
        result.update(started.figures())
        if not case.busy:
            self.forget_spinning(switch, case, result)
        shutil.rmtree(directory, ignore_errors=True)
        return result

    def measure(self, started, case):
        """The figures of the case's generator."""
        place = (self.generator_cpu, self.chosen.seconds)
        if case.tcp:
            self.tcp = self.tcp or load.build(self.chosen.out, "dpdk_tcp")
            return tcp.measure(started, case, *place, self.tcp)
        return driver.measure(started, case, *place) if case.driver else self.generate(started, case)

    def generate(self, started, case):
        """The figures of our own generator."""
        command = started.wrapper + [self.loadgen, "--cpu", str(self.generator_cpu),
                                     "--seconds", str(self.chosen.seconds)]
        if started.pid:
            command += ["--pid", str(started.pid)]
        try:
            out = run(command + list(case.arguments) + started.arguments, self.chosen.seconds + 40)
        except Failure as error:
            raise Failure(error_of(str(error))) from None
        return json.loads(out)

    @staticmethod
    def forget_spinning(switch, case, result):
        """Drops what only tells how the time without work was spent."""
        if spins(switch):
            result.pop("cycles_per_frame", None)
        if switch.name == "bridge" and case.metric != "cpu":
            # The generator's own polling is in it.
            result.pop("cpu", None)
            result.pop("cycles_per_frame", None)

    @staticmethod
    def disturbed(switch, case, result):
        """Whether the generator, or a switch that spins, did not have its CPU to itself."""
        if max(result["generator_wait"], result.get("cpu_wait", 0)) > WAIT_SHARE:
            return True
        # Time that a hypervisor took is not in the above. The generator polls, but for the case
        # in which nobody sends.
        return (case.metric != "cpu" and result["generator_cpu"] < 1 - WAIT_SHARE
                or spins(switch) and result.get("cpu", 1) < (1 - WAIT_SHARE) * case.workers)

    def run(self, number, switch, case):
        """A run and its repeats, until one is undisturbed; the row for the table."""
        row = {"round": number, "case": case.name, "switch": switch.name}
        for attempt in range(REPEATS):
            row["gate_ns"] = self.gate()
            began = time.monotonic()
            try:
                row.update(self.once(switch, case))
            except Failure as error:
                return {**row, "error": " ".join(str(error).split())[-160:]}
            row["gate_ns"] = max(row["gate_ns"], self.transfers()[0])
            row["disturbed"] = int(self.disturbed(switch, case, row) or self.far(row))
            if not row["disturbed"] or attempt + 1 == REPEATS or self.patience <= 0:
                break
            self.patience -= time.monotonic() - began
        return row

    def all(self):
        """All rounds; each runs every switch once in each case."""
        runs = [(case, switch) for case in self.cases for switch in self.switches
                if not self.skip(switch, case)]
        count = len(runs) * self.chosen.rounds
        for number in range(1, self.chosen.rounds + 1):
            for case, switch in runs:
                row = self.run(number, switch, case)
                self.rows.append(row)
                print(f"[{len(self.rows)}/{count}] {case.name:10} {switch.name:15} {brief(row)}",
                      flush=True)
        # What was far is known only at the end, if the first runs were.
        for row in self.rows:
            if "error" not in row and self.far(row):
                row["disturbed"] = 1


def spins(switch):
    """Whether it takes a whole CPU even if there is nothing to do."""
    return not switch.sleeps_when_idle or getattr(switch, "poll", False)


def error_of(output):
    """The generator's own words, if it had any."""
    try:
        return json.loads(output)["error"]
    except (ValueError, KeyError, TypeError):
        return output


def brief(row):
    """A row in a few words."""
    if "error" in row:
        return "FAILED: " + row["error"]
    note = "  (disturbed)" if row["disturbed"] else ""
    connections = f"{row['kcps']:8.0f} k/s" if row.get("kcps") else ""
    return (f"{row['mpps']:8.3f} Mpps {row['gbps']:7.2f} Gbit/s{connections}  lost {share(row):>7}  "
            f"p50 {figure(row, 'p50', 1)} µs  CPU {figure(row, 'cpu', 2)}{note}")


def figure(row, name, digits):
    """A figure that not every run has."""
    value = row.get(name)
    return "-" if value is None else f"{value:.{digits}f}"


def late(case, row):
    """Frames out of order; not told where a pair of ports has many flows, whose order among each
    other is free."""
    return "-" if "--addresses" in case.arguments else figure(row, "late", 0)


def spare(case, row):
    """Time the generator had to spare, in percent; it means nothing at a fixed rate."""
    idle = row.get("generator_idle")
    return f"{100 * idle:.0f}%" if case.busy and idle is not None else "-"


def share(row):
    """Frames lost, in percent of those that had to arrive."""
    expected = row["received"] + row["lost"]
    return f"{100 * row['lost'] / expected:.3f}%" if expected else "-"


def good(rows, case, switch):
    """Rows that count: undisturbed ones, or all if there are none."""
    mine = [r for r in rows if (r["case"], r["switch"]) == (case.name, switch.name)]
    fine = [r for r in mine if "error" not in r]
    return [r for r in fine if not r["disturbed"]] or fine, mine


def best_and_median(rows, metric):
    values = [row.get(metric, 0) for row in rows]
    return (min if metric in FALLING else max)(values), statistics.median(values)


def table(bench):
    """The lines of the final table."""
    head = (f"{'switch':16}{'best':>9}{'median':>9} {'unit':8}{'Gbit/s':>8}{'lost':>9}{'late':>7}"
            f"{'dup':>5}{'bad':>7}{'Jain':>7}{'p50':>8}{'p99':>9}{'max µs':>10}{'CPU':>6}"
            f"{'cycles':>8}{'busy':>7}{'spare':>7}")
    short = {"mpps": "Mpps", "gbps": "Gbit/s", "p50": "µs", "cpu": "CPUs",
             "kcps": "k/s"}
    lines = []
    for case in bench.cases:
        lines += ["", f"{case.name}: {case.title}", head]
        for switch in bench.switches:
            why = bench.skip(switch, case)
            rows, mine = good(bench.rows, case, switch)
            if why or not rows:
                error = mine[0].get("error", "") if mine else ""
                lines.append(f"{switch.name:16}{why or 'FAILED: ' + error or 'not run'}")
                continue
            best, median = best_and_median(rows, case.metric)
            pick = min if case.metric in FALLING else max
            row = pick(rows, key=lambda r: r.get(case.metric, 0))
            bad = row.get("flooded", 0) + row.get("foreign", 0) + row.get("corrupt", 0)
            bad = "-" if case.driver or case.tcp else bad
            mark = "~" if row["disturbed"] else ""
            lines.append(
                f"{switch.name + mark:16}{best:9.3f}{median:9.3f} {short[case.metric]:8}"
                f"{row['gbps']:8.2f}{share(row):>9}{late(case, row):>7}"
                f"{figure(row, 'duplicates', 0):>5}{bad:>7}{figure(row, 'jain', 3):>7}"
                f"{figure(row, 'p50', 1):>8}{figure(row, 'p99', 1):>9}{figure(row, 'max', 1):>10}"
                f"{figure(row, 'cpu', 2):>6}{figure(row, 'cycles_per_frame', 0):>8}"
                f"{figure(row, 'busy_cycles', 0):>7}{spare(case, row):>7}")
    if any(r.get("disturbed") for r in bench.rows):
        lines += ["", "~ disturbed in every round: something else ran on the CPUs, or they were "
                  "moved apart."]
    return lines


def write(bench, about, lines):
    """results.csv, results.txt, machine.txt and the plots."""
    out = bench.chosen.out
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(out):
        if name.endswith(".svg"):
            os.remove(f"{out}/{name}")
    with open(f"{out}/machine.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(about) + "\n")
    with open(f"{out}/results.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(about + lines) + "\n")
    with open(f"{out}/results.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(bench.rows)
    names = [switch.name for switch in bench.switches]
    facts = [line.split(":", 1)[1].strip() for line in about]
    source = f"{facts[1]}; virtualised: {facts[3]}; {facts[0]}; commit {facts[7]}"
    curves = {}
    for case in bench.cases:
        bars = []
        for switch in bench.switches:
            rows, _ = good(bench.rows, case, switch)
            if rows:
                best, median = best_and_median(rows, case.metric)
                bars.append((switch.name, best, median))
                if case.series:
                    curve = curves.setdefault(case.series, {}).setdefault(switch.name, [])
                    curve.append((case.at, best))
        if bars:
            with open(f"{out}/{case.name}.svg", "w", encoding="utf-8") as file:
                file.write(plot.bars(case.title, UNITS[case.metric], source, bars, names))
    for series, found in curves.items():
        if len({x for curve in found.values() for x, _ in curve}) > 1:
            with open(f"{out}/{series}.svg", "w", encoding="utf-8") as file:
                file.write(plot.lines(SERIES[series], UNITS["mpps"], source, found, names))


def usable(switches):
    """Those that can run here; says why the others cannot."""
    there = []
    for switch in switches:
        why = switch.missing()
        if why:
            print(f"not measured: {switch.name}: {why}")
        else:
            there.append(switch)
    return there


def measure(parser, chosen, all_switches, work):
    """The benchmark proper; answers the exit status."""
    place = machine.cpus()
    if len(place) < 2:
        raise Failure("two CPUs are needed: one for the switch, one for the generator")
    if chosen.ndr:
        cases = select(parser, chosen.cases, [c for c in CASES if c.driver], lambda _: True)
        all_switches = [s for s in all_switches if s.has_sockets
                        and not hasattr(s, "only_filtered") and not getattr(s, "only_unbusy", False)]
    else:
        cases = select(parser, chosen.cases, CASES,
                       lambda c: c.quick if chosen.quick else chosen.long or not c.long)
    switches = usable(select(parser, chosen.switches, all_switches, lambda _: True))
    pages = machine.HugePages()
    try:
        wanted = (chosen.ndr or any(s.name in ON_DPDK for s in switches)
                  or any(case.tcp for case in cases))
        there = wanted and pages.acquire()
        if chosen.ndr and not there:
            raise Failure("DPDK's driver needs huge pages (root)")
        if wanted and not there:
            print(f"not measured: {', '.join(ON_DPDK)}, TCP: no huge pages (needs root)")
            switches = [s for s in switches if s.name not in ON_DPDK]
            cases = [case for case in cases if not case.tcp]
        if not switches:
            raise Failure("no switch to measure")
        generator, others = place[-1], place[:-1]
        words = f"switch {others[0]}, generator {generator}, of {place}"
        about = machine.describe(REPO, switches, words)
        print("\n".join(about), flush=True)
        if chosen.ndr:
            return search_rates(chosen, switches, cases, (generator, others), work, about)
        bench = Bench(chosen, switches, cases, (generator, others), work)
        try:
            bench.all()
        finally:
            # What was measured before Ctrl-C is kept.
            if bench.rows:
                lines = table(bench)
                write(bench, about, lines)
                print("\n".join(["", *about, *lines, "", f"written to {chosen.out}"]), flush=True)
    finally:
        pages.release()
    return 1 if any("error" in row for row in bench.rows) else 0


def search_rates(chosen, switches, cases, place, work, about):
    """The search for rates; answers the exit status."""
    import ndr  # Its library is there with --ndr alone.
    lines, failed = ndr.main(chosen, switches, cases, place, work)
    with open(f"{chosen.out}/ndr.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(about + lines) + "\n")
    print("\n".join(["", *about, *lines, "", f"written to {chosen.out}"]), flush=True)
    return int(failed)


def main():
    parser, chosen = options()
    end_like_an_exception()
    binary = f"{chosen.target}/release/vioswitchd"
    switches = [Vioswitch(binary, "--poll"), Vioswitch(binary), VioswitchLow(binary), OpenVSwitch(),
                OpenVSwitchZones(), Testpmd(), Bridge()]
    if chosen.list:
        for case in CASES:
            print(f"{case.name:12} {case.title}")
        print("with --instructions:", ", ".join(case.name for case in instructions.CASES))
        print("alone: vduse")
        print("switches:", ", ".join(switch.name for switch in switches))
        return 0
    work = tempfile.mkdtemp(prefix="vioswitch-bench.")
    try:
        if chosen.instructions:
            limits = dict(pair.split("=", 1) for pair in chosen.limit.split(",") if pair)
            limits = {int(length): float(value) for length, value in limits.items()}
            loadgen = f"{chosen.target}/release/examples/loadgen"
            if chosen.cases:
                cases = select(parser, "" if chosen.cases == "all" else chosen.cases,
                               instructions.CASES, lambda _: True)
                return instructions.tenants(switches[1], loadgen, cases, work)
            return instructions.main(switches[1], loadgen, limits, work)
        return measure(parser, chosen, switches, work)
    except ValueError as error:
        parser.error(str(error))
    except Failure as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
