//! Loom's atomics, with one thing added: an access that all others to the same atomic depend on.
//!
//! Loom (0.7) tries two accesses in the other order only if the later one is not a load and the
//! earlier one is the *last* before it. A thread that looks before it writes hides the looks of all
//! others behind its own: "a move shows the old or the new port" then is one execution, in which
//! it shows the old one. So each access first counts in a second atomic, relaxed: that orders
//! nothing in the program, and makes loom try all orders.

use loom::sync::atomic::AtomicUsize;

pub use loom::hint::spin_loop;
pub use loom::sync::atomic::{Ordering, fence};
pub use loom::sync::{Mutex, MutexGuard};

/// Runs a model under every interleaving with at most so many preemptions, switches of a thread
/// that could have gone on. `MODEL_PREEMPTIONS` is another number.
pub fn model(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    let most = std::env::var("MODEL_PREEMPTIONS").ok().and_then(|n| n.parse().ok());
    builder.preemption_bound = Some(most.unwrap_or(preemptions));
    builder.max_branches = 100_000;
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = std::sync::Arc::clone(&count);
    builder.check(move || {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        check();
    });
    println!("{} executions", count.load(std::sync::atomic::Ordering::Relaxed));
}

/// Hashes that are the same in each execution: loom repeats its steps.
pub type RandomState = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

macro_rules! atomic {
    ($name:ident, $of:ident, $number:ty) => {
        #[doc = concat!("As `", stringify!($of), "` of the standard library.")]
        #[derive(Debug)]
        pub struct $name {
            value: loom::sync::atomic::$of,
            accesses: AtomicUsize,
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new(0)
            }
        }

        impl $name {
            pub fn new(value: $number) -> $name {
                let value = loom::sync::atomic::$of::new(value);
                $name { value, accesses: AtomicUsize::new(0) }
            }

            fn count(&self) -> &loom::sync::atomic::$of {
                self.accesses.fetch_add(1, Ordering::Relaxed);
                &self.value
            }

            pub fn load(&self, order: Ordering) -> $number {
                self.count().load(order)
            }

            pub fn store(&self, value: $number, order: Ordering) {
                self.count().store(value, order);
            }

            pub fn fetch_add(&self, value: $number, order: Ordering) -> $number {
                self.count().fetch_add(value, order)
            }

            pub fn fetch_and(&self, value: $number, order: Ordering) -> $number {
                self.count().fetch_and(value, order)
            }

            pub fn fetch_or(&self, value: $number, order: Ordering) -> $number {
                self.count().fetch_or(value, order)
            }

            pub fn fetch_sub(&self, value: $number, order: Ordering) -> $number {
                self.count().fetch_sub(value, order)
            }

            pub fn compare_exchange(
                &self,
                current: $number,
                new: $number,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$number, $number> {
                self.count().compare_exchange(current, new, success, failure)
            }

            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                update: impl FnMut($number) -> Option<$number>,
            ) -> Result<$number, $number> {
                self.count().fetch_update(success, failure, update)
            }
        }
    };
}

atomic!(AtomicU16, AtomicU16, u16);
atomic!(AtomicU32, AtomicU32, u32);
atomic!(AtomicU64, AtomicU64, u64);
