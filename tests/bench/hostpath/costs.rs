//! What threads cost: samples of `/proc`, and the difference of two samples.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;

/// The kernel's first thread but for `init`, the parent of all others.
const KTHREADD: u32 = 2;

/// The times of threads, and the wake-ups of the switch.
pub struct Sample {
    /// Nanoseconds of each thread that takes part, by its number; the flag is of the switch.
    threads: BTreeMap<u32, (bool, u64)>,
    wakes: u64,
}

/// Costs of a frame.
pub struct Costs {
    /// Nanoseconds of the switch's threads, system calls included.
    switch: f64,
    /// Nanoseconds of the switch, the sender, the receiver and the kernel's threads.
    all: f64,
    /// Times that a thread of the switch went to sleep.
    wakes: f64,
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Costs { switch, all, wakes } = self;
        write!(f, "{switch:.0} {all:.0} {wakes:.2}")
    }
}

impl Sample {
    /// Takes a sample of the switch's, this process's and the kernel's threads without `guest`,
    /// the thread of this process that plays a guest.
    pub fn take(switch: u32, guest: Option<u32>) -> io::Result<Sample> {
        let mut sample = Sample { threads: BTreeMap::new(), wakes: 0 };
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let takes_part = pid == switch || pid == std::process::id() || is_kernel(pid);
            let threads = fs::read_dir(entry.path().join("task"));
            for thread in threads.ok().filter(|_| takes_part).into_iter().flatten().flatten() {
                let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
                let read = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
                let Some(number) = number.filter(|number| Some(*number) != guest) else { continue };
                let ran = read("schedstat").split(' ').next().and_then(|word| word.parse().ok());
                sample.threads.insert(number, (pid == switch, ran.unwrap_or(0)));
                if pid == switch {
                    sample.wakes += wakes(&read("status"));
                }
            }
        }
        match sample.threads.values().any(|(is_switch, ran)| *is_switch && *ran > 0) {
            true => Ok(sample),
            false => Err(io::Error::other("the switch's threads have no times")),
        }
    }

    /// Returns the costs of each of `frames` since an earlier sample.
    pub fn since(&self, before: &Sample, frames: u64) -> Costs {
        let spent = |of_switch: bool| -> u64 {
            let counted = self.threads.iter().filter(|(_, (switch, _))| *switch || !of_switch);
            counted
                .map(|(number, (_, ran))| {
                    ran.saturating_sub(before.threads.get(number).map_or(0, |(_, ran)| *ran))
                })
                .sum()
        };
        let each = |total: u64| total as f64 / frames as f64;
        Costs {
            switch: each(spent(true)),
            all: each(spent(false)),
            wakes: each(self.wakes.saturating_sub(before.wakes)),
        }
    }
}

/// True for a thread of the kernel.
fn is_kernel(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
    parent.and_then(|word| word.parse::<u32>().ok()) == Some(KTHREADD)
}

/// Returns the times that a thread went to sleep, from its `status`.
fn wakes(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}
