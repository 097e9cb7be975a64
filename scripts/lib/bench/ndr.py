"""`scripts/bench --ndr`: the rates at which switches lose nothing (NDR) and at most 0.5 % (PDR) of
frames between two guests with DPDK's driver, and how long frames take at 10, 50 and 90 % of NDR.

The search is MLRsearch (draft-ietf-bmwg-mlrsearch) by the library of its authors. A load is good
if half of the time of its trials is: on a shared machine some trial always loses a frame. Rates
are of both directions together.
"""

import json
import math
import os
import shutil
import statistics
import subprocess
import tempfile

from MLRsearch import AbstractMeasurer, Config, MeasurementResult, MultipleLossRatioSearch, SearchGoal

import driver
import load
from processes import Failure

# Frames a second that are tried.
LEAST, MOST = 10_000.0, 100e6
TRIAL_SECONDS = 0.5
# The bounds of what is found are this part of it apart.
WIDTH = 0.01
GOALS = {"ndr": 0.0, "pdr": 0.005}
LOADS = (10, 50, 90)
# A trial in which the generator or the switch waits for its CPU for more of the time is repeated.
WAIT_SHARE = 0.03
REPEATS = 5


def goal(ratio):
    """Three seconds at a load decide."""
    return SearchGoal(loss_ratio=ratio, exceed_ratio=0.5, relative_width=WIDTH,
                      initial_trial_duration=TRIAL_SECONDS, final_trial_duration=TRIAL_SECONDS,
                      duration_sum=6 * TRIAL_SECONDS, preceding_targets=2, expansion_coefficient=2,
                      fail_fast=False)


class Generator(AbstractMeasurer):
    """A running generator; each trial is a line to it, and one from it."""

    def __init__(self, program, started, cpu, length):
        self.switch, self.disturbed = started.pid, 0
        self.load = load.Load(program, started.arguments[1::2], cpu, [str(length)])

    def trial(self, rate, seconds):
        """The generator's figures; of several disturbed trials the last."""
        for _ in range(REPEATS):
            figures, shares = driver.cpu_shares(
                self.switch, self.load.pid, lambda: self.load.trial(f"{rate} {seconds}", seconds))
            if figures["foreign"]:
                raise Failure(f"{figures['foreign']} frames were of others or damaged")
            waited = max(1 - figures["cpu"], shares.get("cpu_wait", 0))
            if waited < WAIT_SHARE:
                break
            self.disturbed += 1
        return figures

    def measure(self, intended_duration, intended_load):
        figures = self.trial(intended_load, intended_duration)
        return MeasurementResult(
            intended_duration=intended_duration, intended_load=intended_load,
            intended_count=figures["intended"], offered_count=figures["sent"],
            forwarding_count=figures["received"])


def search(generator):
    """The rates that were found, in frames a second."""
    config = Config()
    config.goals = [goal(ratio) for ratio in GOALS.values()]
    config.min_load, config.max_load = LEAST, MOST
    config.search_duration_max, config.warmup_duration = 600.0, TRIAL_SECONDS
    results = MultipleLossRatioSearch(config=config).search(generator, debug=lambda _: None)
    bounds = [result.relevant_lower_bound for result in results.values()]
    return {name: float(bound) if bound is not None else 0.0 for name, bound in zip(GOALS, bounds)}


def measure(switch, length, program, place, work):
    """One search and the latencies under what it found."""
    generator_cpu, switch_cpus = place
    directory = tempfile.mkdtemp(dir=work)
    started = switch.start(directory, 2, switch_cpus[:1])
    generator = None
    try:
        generator = Generator(program, started, generator_cpu, length)
        row = search(generator)
        for part in LOADS:
            figures = generator.trial(max(LEAST, row["ndr"] * part / 100), 2 * TRIAL_SECONDS)
            row.update({f"p50 {part}": figures["p50"], f"p99 {part}": figures["p99"]})
        row["disturbed"] = generator.disturbed
        return row
    finally:
        if generator:
            generator.load.stop()
        started.stop()
        shutil.rmtree(directory, ignore_errors=True)


def interval(values):
    """Median, and the two of the values between which it is with 95 % confidence by their order
    alone: the second and the last but one of ten. The extremes if there are less than six."""
    values, count = sorted(values), len(values)
    outside, tail = 0, 1 / 2 ** count
    while 2 * tail <= 0.05:
        outside += 1
        tail += math.comb(count, outside) / 2 ** count
    edge = max(0, outside - 1)
    return statistics.median(values), values[edge], values[count - 1 - edge]


def table(rows, switches, lengths):
    lines = []
    for length in lengths:
        lines += ["", f"{length} B, two ports both ways: Mpps (95 % confidence); p50, p99 in µs at "
                      + ", ".join(f"{part} %" for part in LOADS) + " of NDR",
                  f"{'switch':16}{'NDR':>25}{'PDR':>25}" +
                  "".join(f"{f'{part} %':>16}" for part in LOADS) + f"{'repeats':>9}"]
        for switch in switches:
            mine = [row for row in rows if row["length"] == length and row["switch"] == switch.name]
            errors = [row["error"] for row in mine if "error" in row]
            mine = [row for row in mine if "error" not in row]
            if not mine:
                lines.append(f"{switch.name:16}FAILED: {errors[0] if errors else 'not run'}")
                continue
            line = f"{switch.name:16}"
            for name in GOALS:
                median, low, high = (value / 1e6 for value in interval([r[name] for r in mine]))
                line += f"{f'{median:.2f} ({low:.2f} to {high:.2f})':>25}"
            for part in LOADS:
                both = [statistics.median(row[f"{q} {part}"] for row in mine) for q in ("p50", "p99")]
                line += f"{f'{both[0]:.1f}, {both[1]:.1f}':>16}"
            lines.append(f"{line}{len(mine):>9}")
    return lines


def main(chosen, switches, cases, place, work):
    """All rounds, the switches in turn; the lines of the table, and whether a run failed."""
    program = load.build(chosen.out, "dpdk_load")
    rows, lengths = [], [case.driver for case in cases]
    for number in range(1, chosen.rounds + 1):
        for length in lengths:
            for switch in switches:
                row = {"round": number, "length": length, "switch": switch.name}
                try:
                    row.update(measure(switch, length, program, place, work))
                    print(f"round {number}: {length} B {switch.name}: NDR {row['ndr'] / 1e6:.2f}, "
                          f"PDR {row['pdr'] / 1e6:.2f} Mpps", flush=True)
                except (Failure, RuntimeError, subprocess.SubprocessError) as error:
                    row["error"] = " ".join(str(error).split())[-160:]
                    print(f"round {number}: {length} B {switch.name}: {row['error']}", flush=True)
                rows.append(row)
    with open(f"{chosen.out}/ndr.json", "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1)
    return table(rows, switches, lengths), any("error" in row for row in rows)
