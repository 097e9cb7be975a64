//! Bounds the address space and the mappings of each port, so that a hostile port cannot take those
//! that other ports need.
//!
//! A process has 128 TiB of addresses and `vm.max_map_count` mappings. A port may ask for 1 TiB in
//! 509 regions, and for the old and the new table together while it replaces one. If all ports did,
//! no port could map any more, and an allocation that fails ends the process. So each port has a
//! guaranteed part that no other port can use. The part is set aside when the port is made and
//! given back when the port is gone. Everything beyond the part comes from a common pool; an empty
//! pool refuses. A port takes a [`Lease`] before it maps and gives the lease back after it unmaps.
//! The lease is for the bytes mapped: whole huge pages where only some of their bytes were asked
//! for.

use std::sync::{Arc, Mutex};

use base::limits::{
    GUARANTEED_MAPPED_BYTES, GUARANTEED_MAPPINGS, MAX_MAPPED_BYTES, OWN_MAPPINGS,
    OWN_MAPPINGS_PER_PORT,
};
use sys::fs::max_map_count;
use sys::threads::lock;

/// Bytes of address space, and a number of mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Amount {
    bytes: u64,
    mappings: u64,
}

impl Amount {
    fn plus(self, other: Amount) -> Amount {
        self.with(other, u64::saturating_add)
    }

    fn minus(self, other: Amount) -> Amount {
        self.with(other, u64::saturating_sub)
    }

    fn with(self, other: Amount, each: fn(u64, u64) -> u64) -> Amount {
        let (bytes, mappings) =
            (each(self.bytes, other.bytes), each(self.mappings, other.mappings));
        Amount { bytes, mappings }
    }

    /// Returns the amount beyond a port's guaranteed part.
    fn beyond_guarantee(self) -> Amount {
        self.minus(GUARANTEED)
    }

    fn covers(self, other: Amount) -> bool {
        other.bytes <= self.bytes && other.mappings <= self.mappings
    }
}

/// Amount that a port can always have, and no other port can use.
const GUARANTEED: Amount = Amount { bytes: GUARANTEED_MAPPED_BYTES, mappings: GUARANTEED_MAPPINGS };

/// Amount that a port takes out of the pool during its life: its guaranteed part, and the mappings
/// that the daemon itself makes for the port.
const PER_PORT: Amount = Amount {
    bytes: GUARANTEED_MAPPED_BYTES,
    mappings: GUARANTEED_MAPPINGS + OWN_MAPPINGS_PER_PORT,
};

/// The amount that is left for all ports of the process.
#[derive(Debug)]
pub struct Ledger {
    pool: Mutex<Amount>,
}

/// The amount that one port holds.
#[derive(Debug)]
pub struct Account {
    ledger: Arc<Ledger>,
    held: Mutex<Amount>,
}

/// An amount taken from an [`Account`], given back on drop.
#[derive(Debug)]
pub struct Lease {
    account: Arc<Account>,
    amount: Amount,
}

/// The port has used up its guaranteed part, and all ports the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no address space or mappings left for this port")]
pub struct Exhausted;

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger::with_mappings(max_map_count())
    }
}

impl Ledger {
    fn with_mappings(mappings: u64) -> Ledger {
        let mappings = mappings.saturating_sub(OWN_MAPPINGS);
        Ledger { pool: Mutex::new(Amount { bytes: MAX_MAPPED_BYTES, mappings }) }
    }

    /// Opens the account of a new port, which holds nothing yet; one account for each port, for its
    /// whole life. Fails if the pool has no part left for a port.
    pub fn open(self: &Arc<Ledger>) -> Result<Arc<Account>, Exhausted> {
        let mut pool = lock(&self.pool);
        if !pool.covers(PER_PORT) {
            return Err(Exhausted);
        }
        *pool = pool.minus(PER_PORT);
        Ok(Arc::new(Account { ledger: Arc::clone(self), held: Mutex::default() }))
    }
}

impl Account {
    /// Takes one mapping of `bytes`, which are whole pages. Fails if the pool is exhausted.
    pub(crate) fn lease(self: &Arc<Account>, bytes: u64) -> Result<Lease, Exhausted> {
        let amount = Amount { bytes, mappings: 1 };
        let mut held = lock(&self.held);
        let more = held.plus(amount);
        let needed = more.beyond_guarantee().minus(held.beyond_guarantee());
        let mut pool = lock(&self.ledger.pool);
        if !pool.covers(needed) {
            return Err(Exhausted);
        }
        *pool = pool.minus(needed);
        *held = more;
        Ok(Lease { account: Arc::clone(self), amount })
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut pool = lock(&self.ledger.pool);
        *pool = pool.plus(PER_PORT);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut held = lock(&self.account.held);
        let less = held.minus(self.amount);
        let returned = held.beyond_guarantee().minus(less.beyond_guarantee());
        *held = less;
        let mut pool = lock(&self.account.ledger.pool);
        *pool = pool.plus(returned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::limits::{MAX_MEM_SLOTS, MAX_PORT_MAPPED_BYTES, MAX_PORTS};

    const DEFAULT_MAPPINGS: u64 = 65_530;

    /// Takes leases for regions of `bytes` until one is refused, at most twice as many as a port
    /// may have.
    fn take(account: &Arc<Account>, bytes: u64) -> Vec<Lease> {
        (0..2 * MAX_MEM_SLOTS).map_while(|_| account.lease(bytes).ok()).collect()
    }

    #[test]
    fn whatever_others_take_each_port_has_its_part() {
        for bytes in [4096, 1 << 30, MAX_PORT_MAPPED_BYTES] {
            let ledger = Arc::new(Ledger::with_mappings(DEFAULT_MAPPINGS));
            let victim = ledger.open().unwrap();
            let accounts: Vec<_> = (1..MAX_PORTS).map(|_| ledger.open().unwrap()).collect();
            let taken: Vec<_> = accounts.iter().map(|account| take(account, bytes)).collect();
            let part = GUARANTEED_MAPPED_BYTES / GUARANTEED_MAPPINGS;
            let leases: Vec<_> = (0..GUARANTEED_MAPPINGS).map(|_| victim.lease(part)).collect();
            assert!(leases.iter().all(Result::is_ok), "regions of {bytes}");
            let all = taken.iter().flatten().map(|lease| lease.amount.bytes).sum::<u64>();
            assert!(all + GUARANTEED_MAPPED_BYTES <= MAX_MAPPED_BYTES, "{all}");
            let mappings: usize = taken.iter().map(Vec::len).sum();
            assert!((mappings as u64) < DEFAULT_MAPPINGS);
        }
    }

    #[test]
    fn a_hundred_of_the_largest_guests_fit() {
        let ledger = Arc::new(Ledger::with_mappings(DEFAULT_MAPPINGS));
        let accounts: Vec<_> = (0..100).map(|_| ledger.open().unwrap()).collect();
        let slots = MAX_MEM_SLOTS as u64;
        for account in &accounts {
            let leases = (0..slots).map(|_| account.lease(MAX_PORT_MAPPED_BYTES / slots));
            std::mem::forget(leases.collect::<Result<Vec<_>, _>>().unwrap());
        }
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let ledger = Arc::new(Ledger::with_mappings(DEFAULT_MAPPINGS));
        let (one, two) = (ledger.open().unwrap(), ledger.open().unwrap());
        let before = *lock(&ledger.pool);
        for _ in 0..3 {
            let taken = take(&one, MAX_PORT_MAPPED_BYTES);
            assert!(taken.len() > 100);
            assert!(two.lease(2 * MAX_PORT_MAPPED_BYTES).is_err());
            drop(taken);
            assert_eq!(*lock(&ledger.pool), before);
            assert_eq!(*lock(&one.held), Amount::default());
        }
    }

    #[test]
    fn a_port_has_its_part_from_its_making_to_its_end() {
        let ledger = Arc::new(Ledger::with_mappings(OWN_MAPPINGS + 2 * PER_PORT.mappings));
        let whole = *lock(&ledger.pool);
        for _ in 0..3 {
            let (one, two) = (ledger.open().unwrap(), ledger.open().unwrap());
            assert_eq!(ledger.open().unwrap_err(), Exhausted);
            let lease = one.lease(4096).unwrap();
            drop(two);
            drop(one);
            assert_eq!(*lock(&ledger.pool), whole.minus(PER_PORT), "what is mapped still counts");
            drop(lease);
            assert_eq!(*lock(&ledger.pool), whole);
        }
    }
}
