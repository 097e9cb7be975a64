//! What guests' memory costs this process.

/// Kilobytes, as proc(5) has them in the status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Footprint {
    /// Pages of guests' memory that are mapped here and resident, those of huge pages apart.
    pub shared_kib: u64,
    /// Huge pages.
    pub huge_kib: u64,
    /// Page tables: 4 KiB for each 2 MiB of guests' memory in which a page was ever touched.
    pub page_tables_kib: u64,
}

impl Footprint {
    /// As it is now; `None` if the kernel does not say. Takes the time of a system call for which
    /// all of the process's mappings are not looked at.
    pub fn now() -> Option<Footprint> {
        std::fs::read_to_string("/proc/self/status").ok().map(|status| Footprint::parse(&status))
    }

    /// A value that a kernel does not have is 0.
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
