//! Formats `port show`, all that the switch tells of one port, for people.

use api::config::KEYS;
use api::wire::{ConfigKey, Mirror, Ring, Socket};

use crate::look::{Details, Rate};
use crate::output::text;
use crate::show::{bits, human, listing, maybe, memory, pairs, port, words};
use crate::span::span;

/// Returns the answer of `GetPortDetails` as text, with rates if rates were measured.
pub fn show(Details { details, rates }: &Details) -> String {
    let mut told = port(&details.port);
    told.extend(details.socket.as_ref().map(|one| ("socket", text(&one.path) + &who(one))));
    told.extend(details.command.as_ref().map(|command| ("command", text(command))));
    let name = |key: &ConfigKey| KEYS.iter().find(|known| known.name == key.key);
    told.extend(
        details
            .settings
            .iter()
            .chain(&details.lists)
            .filter_map(|key| Some((name(key)?.name, words(&key.values)))),
    );
    if !details.violations.is_empty() {
        let each = details.violations.iter().map(|(rule, count)| format!("{rule} {count}"));
        told.push(("guard broken", text(each.collect::<Vec<_>>().join(", "))));
    }
    for (what, mirrors) in [("watched by", &details.watched_by), ("observes", &details.observes)] {
        if !mirrors.is_empty() {
            told.push((what, text(format!("mirror {}", mirrors.join(", ")))));
        }
    }
    told.push(("learn_static", details.learn_static.to_string()));
    told.push(("learn_held", details.learn_held.to_string()));
    told.push(("rate_waits", details.rate_waits.to_string()));
    told.push(("log_suppressed", details.log_suppressed.to_string()));
    if let Some(rates) = rates {
        told.extend([("rate in", rate(rates.r#in)), ("rate out", rate(rates.out))]);
    }
    let session = details.session.as_ref();
    if let Some(session) = session {
        told.push(("features", words(&session.features)));
        told.push(("protocol", words(&session.protocol_features)));
    }
    let mut told = pairs(told);
    let regions = session.map_or(&[][..], |session| &session.memory);
    if !regions.is_empty() {
        told += "\n";
        told += &listing(
            regions,
            &[
                ("MEMORY", &|region| text(&region.address)),
                ("SIZE", &|region| memory(region.bytes)),
                ("BACKING", &|region| text(&region.backing)),
                ("PAGE", &|region| memory(region.page)),
            ],
        );
    }
    told + "\n" + &rings(&details.rings)
}

/// Returns who may connect to a socket, or why the switch does not know.
fn who(socket: &Socket) -> String {
    match (&socket.mode, socket.answers, socket.looked_at) {
        (Some(mode), ..) => {
            format!(" mode {} uid {} gid {}", text(mode), maybe(socket.uid), maybe(socket.gid))
        }
        (None, Some(false), _) => " (its file system does not answer)".to_owned(),
        (None, _, Some(false)) => {
            " (not examined: the switch waits for other file systems)".to_owned()
        }
        _ => " (missing)".to_owned(),
    }
}

fn rate(rate: Rate) -> String {
    let of = |number: f64| human(number).trim_end().to_owned();
    format!("{} frames/s, {}bit/s, {} drops/s", of(rate.frames), bits(rate.bytes), of(rate.drops))
}

/// Returns a table of the rings that run or have carried frames.
fn rings(all: &[Ring]) -> String {
    let used = |ring: &&Ring| ring.started == Some(true) || ring.frames != 0;
    listing(
        &all.iter().filter(used).collect::<Vec<_>>(),
        &[
            ("RING", &|ring| ring.index.to_string()),
            ("DIR", &|ring| text(ring.direction.name())),
            ("SIZE", &|ring| maybe(ring.size)),
            ("STATE", &|ring| state(ring)),
            ("WORKER", &|ring| maybe(ring.worker)),
            ("AVAILABLE", &|ring| maybe(ring.available)),
            ("IDLE", &|ring| maybe(ring.idle.map(span))),
            ("FRAMES", &|ring| ring.frames.to_string()),
            ("BYTES", &|ring| ring.bytes.to_string()),
            ("KICKS", &|ring| ring.kicks.to_string()),
            ("SIGNALS", &|ring| ring.signals.to_string()),
            ("CHECKSUMMED", &|ring| ring.checksummed.to_string()),
            ("SEGMENTED", &|ring| ring.segmented.to_string()),
        ],
    )
}

fn state(ring: &Ring) -> String {
    let is = |flag: Option<bool>| flag == Some(true);
    let words = match ring.started {
        None => "-",
        Some(false) => "stopped",
        Some(true) if is(ring.broken) => "broken",
        Some(true) if is(ring.no_memory) => "no memory",
        Some(true) if !is(ring.enabled) => "disabled",
        Some(true) => "running",
    };
    if is(ring.polled) { format!("{words}, polled") } else { words.to_owned() }
}

/// Returns the answer of `ListMirrors` as a table.
pub fn mirrors(all: &[Mirror]) -> String {
    listing(
        all,
        &[
            ("NAME", &|one| text(&one.name)),
            ("FROM", &|one| text(&one.from)),
            ("DIR", &|one| text(&one.dir)),
            ("VLAN", &|one| maybe(one.vlan)),
            ("TO", &|one| text(&one.to)),
            ("SNAPLEN", &|one| maybe(one.snaplen)),
            ("COPIES", &|one| one.copies.to_string()),
            ("LOST", &|one| one.lost.to_string()),
            ("STATE", &|one| if one.active { "active" } else { "a port is missing" }.to_owned()),
            ("ORIGIN", &|one| text(&one.origin)),
        ],
    )
}
