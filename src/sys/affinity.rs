//! Reads the CPUs that the process may use, and binds a thread to a CPU.
//!
//! Uses libc: the CPU sets of rustix end at CPU 1,023, and a kernel that knows more CPUs does not
//! fill so short a set.

use std::io;

/// Bits in a word of the kernel's CPU masks, which are arrays of C's unsigned long.
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

/// Words of the largest mask. Linux knows at most 8,192 CPUs (`NR_CPUS`).
const MAX_WORDS: usize = 8_192 / WORD_BITS;

/// Returns the CPUs that the calling thread, and each thread that it starts, may run on, in
/// ascending order.
pub fn allowed() -> io::Result<Vec<usize>> {
    mask_of(0).map(|mask| members(&mask))
}

/// Gives thread `thread` the CPUs of thread `other`; both are kernel thread ids.
pub fn follow(thread: i32, other: i32) -> io::Result<()> {
    set_mask(thread, &mask_of(other)?)
}

/// Returns the CPU mask of a thread, or of the calling thread if `thread` is 0.
fn mask_of(thread: i32) -> io::Result<Vec<libc::c_ulong>> {
    // glibc's cpu_set_t has 1,024 bits; a kernel with more CPUs refuses this size (EINVAL).
    let mut mask: Vec<libc::c_ulong> = vec![0; 1024 / WORD_BITS];
    loop {
        let bytes = size_of_val(mask.as_slice());
        // SAFETY: the kernel writes at most `bytes` bytes, all of which `mask` owns; any bits are
        // valid there. A cpu_set_t is an array of unsigned longs too.
        let failed =
            unsafe { libc::sched_getaffinity(thread, bytes, mask.as_mut_ptr().cast()) } != 0;
        if !failed {
            return Ok(mask);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) || mask.len() >= MAX_WORDS {
            return Err(error);
        }
        mask.resize(2 * mask.len(), 0);
    }
}

/// Binds the calling thread to one CPU; EINVAL if the thread may not run on the CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= MAX_WORDS * WORD_BITS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask: Vec<libc::c_ulong> = vec![0; cpu / WORD_BITS + 1];
    mask[cpu / WORD_BITS] = 1 << (cpu % WORD_BITS);
    set_mask(0, &mask)
}

/// Binds a thread, or the calling thread if `thread` is 0, to the CPUs of `mask`.
fn set_mask(thread: i32, mask: &[libc::c_ulong]) -> io::Result<()> {
    let bytes = size_of_val(mask);
    // SAFETY: the kernel reads `bytes` bytes, all of which `mask` owns.
    match unsafe { libc::sched_setaffinity(thread, bytes, mask.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the numbers of the set bits.
fn members(mask: &[libc::c_ulong]) -> Vec<usize> {
    let is_set = |cpu: &usize| mask[cpu / WORD_BITS] >> (cpu % WORD_BITS) & 1 != 0;
    (0..mask.len() * WORD_BITS).filter(is_set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_allowed_there_and_nowhere_else() {
        let me = rustix::thread::gettid().as_raw_pid();
        let before = allowed().unwrap();
        assert!(before.is_sorted() && !before.is_empty());
        for &cpu in &before {
            let pinned = std::thread::spawn(move || {
                pin(cpu).unwrap();
                allowed().unwrap()
            });
            assert_eq!(pinned.join().unwrap(), [cpu]);
            let followed = std::thread::spawn(move || {
                pin(cpu).unwrap();
                follow(0, me).unwrap();
                allowed().unwrap()
            });
            assert_eq!(followed.join().unwrap(), before);
        }
        assert_eq!(allowed().unwrap(), before, "another thread's");
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_refused() {
        for cpu in [8_191, MAX_WORDS * WORD_BITS, usize::MAX] {
            assert_eq!(pin(cpu).unwrap_err().raw_os_error(), Some(libc::EINVAL), "{cpu}");
        }
    }

    #[test]
    fn masks_are_read_bit_by_bit() {
        assert_eq!(members(&[0b1001, 1 << (WORD_BITS - 1)]), [0, 3, 2 * WORD_BITS - 1]);
    }
}
