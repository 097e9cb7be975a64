//! A field of a packet: from the field's value to the bitmap of the lines that match the value.
//!
//! Values that the same lines match are a class, with one bitmap. A range of values is given by its
//! ends, both included.

use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

use super::too_large::TooLarge;
use base::limits::MAX_FILTER_WORDS;

/// Bits of a port below its page.
const PAGE_BITS: u32 = 8;
const PAGE: usize = 1 << PAGE_BITS;

/// A range of values, both ends included.
pub(in crate::filter) type Range = (u128, u128);

/// A set of values of a field. Lines with equal addresses share a set: a group may have thousands
/// of addresses, and be in each rule.
pub(super) type Set = Rc<[Range]>;

/// The lines that match a value.
#[derive(Clone, Copy)]
pub(super) struct Map<'a> {
    /// Bit n is set if word n is not zero.
    pub(super) summary: u64,
    pub(super) words: &'a [u64],
}

/// Classes of values, and their bitmaps.
#[derive(Debug)]
pub(super) struct Field<Finder> {
    finder: Finder,
    /// Words of a bitmap.
    stride: usize,
    /// By class.
    summaries: Vec<u64>,
    words: Vec<u64>,
}

/// Finds the class of an address by a binary search.
#[derive(Debug)]
pub(super) struct Ranges<Value> {
    /// First value of each range, ascending from 0; padded with the largest value to a power of
    /// two.
    firsts: Vec<Value>,
    classes: Vec<u16>,
}

/// Finds the class of a value of 16 bits in a page of classes. Equal pages are one.
#[derive(Debug)]
pub(super) struct Pages {
    pages: Vec<[u16; PAGE]>,
    /// Page of each value without its lower bits.
    of: [u8; PAGE],
}

impl<Finder> Field<Finder> {
    #[inline(always)]
    fn map(&self, class: u16) -> Map<'_> {
        let class = usize::from(class);
        let words = self.words.get(class * self.stride..).unwrap_or_default();
        Map { summary: self.summaries.get(class).copied().unwrap_or(0), words }
    }
}

impl<Value: Copy + Ord> Field<Ranges<Value>> {
    /// Returns the lines that match a value.
    #[inline(always)]
    pub(super) fn of(&self, value: Value) -> Map<'_> {
        let Ranges { firsts, classes } = &self.finder;
        let (mut at, mut half) = (0, firsts.len() / 2);
        // The first value is 0, so the range is at `at` or up to `half` places behind.
        while half > 0 {
            let middle = at + half;
            at = if firsts.get(middle).is_some_and(|first| *first <= value) { middle } else { at };
            half /= 2;
        }
        self.map(classes.get(at).copied().unwrap_or(0))
    }
}

impl Field<Pages> {
    /// Returns the lines that match a value.
    #[inline(always)]
    pub(super) fn of(&self, value: u16) -> Map<'_> {
        let Pages { pages, of } = &self.finder;
        let page = pages.get(usize::from(of[usize::from(value >> PAGE_BITS)]));
        self.map(page.map_or(0, |page| page[usize::from(value) % PAGE]))
    }
}

/// Classes in the order of their values.
struct Classes {
    /// First value and class of each range.
    ranges: Vec<(u128, u16)>,
    stride: usize,
    bitmaps: Vec<u64>,
}

impl Classes {
    /// Sorts the values up to `last` into classes; `lines` has the values of each line.
    fn of(lines: &[&Set], last: u128) -> Result<Classes, TooLarge> {
        let stride = lines.len().div_ceil(64).max(1);
        let sets = Classes::sets(lines, stride);
        let mut changes = Vec::new();
        for (number, (set, _)) in sets.iter().enumerate() {
            for (first, end) in union(set) {
                changes.push((first, number));
                changes.extend((end < last).then(|| (end + 1, number)));
            }
        }
        changes.sort_unstable();
        let mut found = Classes { ranges: Vec::new(), stride, bitmaps: Vec::new() };
        let mut known = HashMap::new();
        let mut bitmap = vec![0; stride];
        if changes.first().is_none_or(|(first, _)| *first > 0) {
            found.add(0, &bitmap, &mut known)?;
        }
        for group in changes.chunk_by(|a, b| a.0 == b.0) {
            for (_, number) in group {
                bitmap.iter_mut().zip(&sets[*number].1).for_each(|(word, lines)| *word ^= lines);
            }
            found.add(group[0].0, &bitmap, &mut known)?;
        }
        Ok(found)
    }

    /// Returns each set of values with the bitmap of its lines.
    fn sets<'l>(lines: &[&'l Set], stride: usize) -> Vec<(&'l Set, Vec<u64>)> {
        let mut sets: Vec<(&Set, Vec<u64>)> = Vec::new();
        let mut known = HashMap::new();
        for (line, set) in lines.iter().enumerate() {
            let number = *known.entry(Rc::as_ptr(set)).or_insert_with(|| {
                sets.push((set, vec![0; stride]));
                sets.len() - 1
            });
            sets[number].1[line / 64] |= 1 << (line % 64);
        }
        sets
    }

    fn add(
        &mut self,
        first: u128,
        bitmap: &[u64],
        known: &mut HashMap<Vec<u64>, u16>,
    ) -> Result<(), TooLarge> {
        let class = match known.get(bitmap) {
            Some(class) => *class,
            None => {
                let class = u16::try_from(known.len()).map_err(|_| TooLarge::Words)?;
                if self.bitmaps.len() + bitmap.len() > MAX_FILTER_WORDS {
                    return Err(TooLarge::Words);
                }
                self.bitmaps.extend_from_slice(bitmap);
                known.insert(bitmap.to_vec(), class);
                class
            }
        };
        if self.ranges.last().is_none_or(|(_, before)| *before != class) {
            self.ranges.push((first, class));
        }
        Ok(())
    }

    fn field<Finder>(self, finder: impl FnOnce(&[(u128, u16)]) -> Finder) -> Field<Finder> {
        let Classes { ranges, stride, bitmaps: words } = self;
        let summary = |bitmap: &[u64]| {
            let set = bitmap.iter().enumerate().filter(|(_, word)| **word != 0);
            set.fold(0, |all, (at, _)| all | 1 << at)
        };
        let summaries = words.chunks(stride).map(summary).collect();
        Field { finder: finder(&ranges), stride, summaries, words }
    }
}

/// Returns the ranges sorted, with those that touch or overlap joined, so that a value is in one.
pub(super) fn union(ranges: &[Range]) -> Vec<Range> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut joined: Vec<Range> = Vec::with_capacity(sorted.len());
    for (first, last) in sorted {
        match joined.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// Makes the field of an address; `most` is the largest value.
pub(super) fn addresses<Value: Copy + Ord + TryFrom<u128>>(
    lines: &[&Set],
    most: Value,
) -> Result<Field<Ranges<Value>>, TooLarge>
where
    u128: From<Value>,
{
    let value = |bits: u128| Value::try_from(bits).unwrap_or(most);
    Ok(Classes::of(lines, most.into())?.field(|ranges| {
        let mut firsts: Vec<_> = ranges.iter().map(|(first, _)| value(*first)).collect();
        let mut classes: Vec<_> = ranges.iter().map(|(_, class)| *class).collect();
        let padded = firsts.len().next_power_of_two();
        firsts.resize(padded, most);
        // The largest value is found in the padding, which belongs to the last range.
        classes.resize(padded, classes.last().copied().unwrap_or(0));
        Ranges { firsts, classes }
    }))
}

/// Makes the field of a port or a protocol.
pub(super) fn numbers(lines: &[&Set]) -> Result<Field<Pages>, TooLarge> {
    Ok(Classes::of(lines, u16::MAX.into())?.field(|ranges| {
        let mut known: HashMap<[u16; PAGE], u8> = HashMap::new();
        let (mut pages, mut of) = (Vec::new(), [0; PAGE]);
        let (mut at, mut value) = (0, 0);
        for slot in &mut of {
            let page: [u16; PAGE] = std::array::from_fn(|_| {
                while ranges.get(at + 1).is_some_and(|(first, _)| *first <= value) {
                    at += 1;
                }
                value += 1;
                ranges.get(at).map_or(0, |(_, class)| *class)
            });
            *slot = intern(&mut known, page, &mut pages);
        }
        Pages { pages, of }
    }))
}

/// Returns the number of a page, which is added if it is new.
fn intern<T: Copy + Eq + Hash>(known: &mut HashMap<T, u8>, page: T, pages: &mut Vec<T>) -> u8 {
    *known.entry(page).or_insert_with(|| {
        pages.push(page);
        // There are as many numbers as pages.
        (pages.len() - 1) as u8
    })
}
