//! The memory of this process that guests' memory takes.

/// Memory in kilobytes, from the process's status in proc(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Footprint {
    /// Resident pages of mapped guests' memory, huge pages excluded.
    pub shared_kib: u64,
    /// Mapped huge pages.
    pub huge_kib: u64,
    /// Page tables: 4 KiB for each 2 MiB of guests' memory in which a page was ever touched.
    pub page_tables_kib: u64,
}

impl Footprint {
    /// Returns the present footprint; `None` if the kernel does not report it. Takes the time of a
    /// few system calls: the kernel does not walk the mappings for them.
    pub fn now() -> Option<Footprint> {
        std::fs::read_to_string("/proc/self/status").ok().map(|status| Footprint::parse(&status))
    }

    /// Parses a status file; a missing value is 0.
    fn parse(status: &str) -> Footprint {
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
            line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        Footprint {
            shared_kib: value("RssShmem:"),
            huge_kib: value("HugetlbPages:"),
            page_tables_kib: value("VmPTE:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_names() {
        let status = "VmRSS:\t   9 kB\nRssShmem:\t     516 kB\nVmPTE:\t      76 kB\n\
            HugetlbPages:\t    2048 kB\n";
        let found = Footprint { shared_kib: 516, huge_kib: 2048, page_tables_kib: 76 };
        assert_eq!(Footprint::parse(status), found);
        assert_eq!(Footprint::parse("RssShmem:\nVmPTE: many kB"), Footprint::default());
        assert!(Footprint::now().is_some_and(|now| now.page_tables_kib > 0));
    }
}
