//! Requests from the kernel that CPUs wake up soon: `/dev/cpu_dma_latency`.
//!
//! While a process has the device open, no CPU of the host enters an idle state whose exit latency
//! exceeds the value that the process wrote last. The request ends with the descriptor, in whatever
//! way the process ends; a value in a CPU's `pm_qos_resume_latency_us` in sysfs would stay.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Path of the device.
pub const DEVICE: &str = "/dev/cpu_dma_latency";

/// The value without a request: the kernel's `PM_QOS_DEFAULT_VALUE`.
const NOTHING: i32 = -1;

/// An open request.
#[derive(Debug)]
pub struct WakeupRequest(File);

impl WakeupRequest {
    /// Opens the device; no request is made yet.
    pub fn open(device: &Path) -> io::Result<WakeupRequest> {
        // A file that is no device may block.
        OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(device)
            .map(WakeupRequest)
    }

    /// Requests that CPUs wake up within `micros` microseconds; with 0 they do not sleep.
    pub fn hold(&mut self, micros: u16) -> io::Result<()> {
        self.write(micros.into())
    }

    /// Withdraws the request: CPUs may sleep as usual.
    pub fn release(&mut self) -> io::Result<()> {
        self.write(NOTHING)
    }

    /// Writes a number of four bytes, which the kernel takes only as a whole.
    fn write(&mut self, micros: i32) -> io::Result<()> {
        self.0.write_all(&micros.to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::proc::Dir;

    #[test]
    fn each_request_is_a_number_of_four_bytes() {
        let dir = Dir::new();
        let path = dir.path().join("device");
        assert_eq!(WakeupRequest::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, "").unwrap();
        let mut request = WakeupRequest::open(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"", "nothing is requested yet");
        request.hold(20).unwrap();
        request.release().unwrap();
        request.hold(0).unwrap();
        let words = [20, -1, 0].map(i32::to_ne_bytes).concat();
        assert_eq!(std::fs::read(&path).unwrap(), words);
    }
}
