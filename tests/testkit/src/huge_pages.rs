//! Huge pages of 2 MiB, reserved for a test.

const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Raises the number of huge pages for as long as it lives.
pub struct HugePages {
    before: u64,
}

impl HugePages {
    /// `count` more; `Err` says why there are not enough.
    pub fn reserve(count: u64) -> Result<HugePages, String> {
        let refused = |e| format!("huge pages cannot be reserved: {e}");
        let read = || -> Result<u64, String> {
            let text = std::fs::read_to_string(NR_HUGEPAGES).map_err(refused)?;
            text.trim().parse().map_err(|e| format!("{NR_HUGEPAGES}: {e}"))
        };
        let before = read()?;
        // The kernel first takes back those in use that were to go.
        let wanted = before + number_of("HugePages_Surp:") + count;
        std::fs::write(NR_HUGEPAGES, wanted.to_string()).map_err(refused)?;
        let pages = HugePages { before };
        let there = read()? >= wanted && HugePages::free() >= count;
        if there { Ok(pages) } else { Err("memory is short of huge pages".into()) }
    }

    /// How many nobody uses.
    pub fn free() -> u64 {
        number_of("HugePages_Free:")
    }
}

/// What a line of /proc/meminfo that begins with this counts.
fn number_of(line: &str) -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number = info.lines().find_map(|of| of.strip_prefix(line));
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(NR_HUGEPAGES, self.before.to_string());
    }
}
