//! What the guests got and the daemon counted, against what the naive switch says.

use testkit::counters::Counters;
use testkit::vnet::Header;

use super::guest::Sent;
use super::naive::Books;

use super::lab::Item;

/// True if the frames' sources would change what is decided about their destinations.
pub fn teaches_itself(frames: &[Sent]) -> bool {
    let part = |frame: &Sent, from: usize| frame.bytes.get(from..from + 6).map(<[u8]>::to_vec);
    let sources: Vec<_> = frames.iter().filter_map(|f| part(f, 6)).collect();
    frames.iter().filter_map(|f| part(f, 0)).any(|dst| sources.contains(&dst))
}

/// Compares what came with what should have, in order for each destination; answers how many are
/// missing, which only a receiver that is `short` may.
pub fn match_up(port: usize, want: &[Item], got: &[(Header, Vec<u8>)], short: bool) -> u64 {
    let mut used = vec![false; got.len()];
    let mut last: std::collections::HashMap<&[u8], usize> = Default::default();
    let mut lost = 0;
    for item in want {
        let to = &item.bytes[..6];
        let from = last.get(to).map_or(0, |at| at + 1);
        let next = (from..got.len()).find(|&i| got[i].1[..6] == *to);
        match next {
            Some(i) if got[i].0 == item.header && got[i].1 == item.bytes => {
                used[i] = true;
                last.insert(to, i);
            }
            _ => {
                let shown = &item.bytes[..item.bytes.len().min(40)];
                assert!(
                    short,
                    "port {port} misses {} bytes {shown:02x?} (I1, I2)",
                    item.bytes.len()
                );
                lost += 1;
            }
        }
    }
    if let Some(i) = used.iter().position(|used| !used) {
        let (header, frame) = &got[i];
        let shown = &frame[..frame.len().min(40)];
        let bytes = frame.len();
        panic!(
            "port {port} got what it should not (I2, I3, I4): {header:?}, {bytes} bytes \
             {shown:02x?}"
        );
    }
    lost
}

/// Names that differ, with both values.
pub fn differences<'b>(a: &'b Books, b: &'b Books) -> Vec<(&'b (usize, String), u64, u64)> {
    let mut names: Vec<_> = a.keys().chain(b.keys()).collect();
    names.sort();
    names.dedup();
    let value = |books: &Books, name| books.get(name).copied().unwrap_or(0);
    let all = names.into_iter().map(|name| (name, value(a, name), value(b, name)));
    all.filter(|(_, a, b)| a != b).collect()
}

/// The daemon's counters in the naive switch's words.
pub fn books_of(counters: &Counters) -> Books {
    let mut books = Books::new();
    for (port, side, key, value) in counters.each() {
        let drop = key.starts_with("drop.");
        let what = match side {
            "in" | "announced" if drop || key == "frames" || key == "copies" => {
                format!("{side} {key}")
            }
            // Of floods in later turns, and mirrors.
            "" if key == "copies" => "in copies".to_string(),
            "out" if key == "frames" => "out frames".to_string(),
            "out" | "" if drop => format!("lost {key}"),
            _ => continue,
        };
        let port: usize = port[1..].parse().expect("pN");
        if value > 0 {
            *books.entry((port, what)).or_default() += value;
        }
    }
    books
}
