"""TCP between two guests with DPDK's driver, for the cases of filters."""

import driver
import load
from processes import Failure

WARM_UP_SECONDS = 1.0


def measure(started, case, cpu, seconds, program):
    """The figures of one run, by the names that loadgen gives them."""
    pattern, length = case.tcp
    guests = load.Load(program, started.arguments[1::2], cpu, [pattern, str(length)])
    try:
        guests.trial(f"{WARM_UP_SECONDS} 0", WARM_UP_SECONDS)
        found, shares = driver.cpu_shares(
            started.pid, guests.pid, lambda: guests.trial(f"{seconds} 0", seconds))
    finally:
        guests.stop()
    if found["foreign"] or not found["received"]:
        raise Failure(f"{found['received']} frames came, {found['foreign']} of them were damaged")
    # Time in which the shares were taken is longer than the run.
    shares["generator_cpu"] = found["cpu"]
    rate = found["received"] / found["seconds"]
    if pattern == "stream":
        found["lost"] = max(0, found["sent"] - found["received"])
    return {"mpps": rate / 1e6, "gbps": rate * length * 8 / 1e9,
            "kcps": found["connections"] / found["seconds"] / 1e3, "sent": found["sent"],
            "received": found["received"], "lost": found["lost"], "seconds": found["seconds"],
            **shares}
