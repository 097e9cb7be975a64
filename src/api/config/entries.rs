//! Relations of entries: values that two entries may not share, and the command line laid over the
//! file.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use log::LevelFilter;

use super::claims::{Claim, Places, Segment, Shared};
use super::configuration::{Config, Control, Entry, Origin};
use super::keys::Settings;
use super::kind::Kind;
use super::raw::{Complaint, Location, quote};
use super::rulebook::Rulebook;
use super::scalars::Scalars;
use super::validate::{Checked, Validated};
use base::limits;
use base::words::counted;
use switch::mirror::{Mirror, conflict as conflict_of_mirrors};

/// Returns a complaint for each value that is claimed twice, and for each number of entries above a
/// limit.
pub(super) fn conflicts(checked: &Validated, places: Places<'_>) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut owners: HashMap<(Shared, &Segment, PathBuf), &Claim> = HashMap::new();
    let claims = checked.entries.iter().flat_map(|entry| &entry.claims);
    for claim in claims.chain(&checked.scalars.control) {
        let value = Path::new(&claim.value);
        let value = match claim.what {
            Shared::Socket => places(value),
            _ => value.to_owned(),
        };
        match owners.entry((claim.what, &claim.segment, value)) {
            Occupied(owner) => complaints.push(conflict(owner.get(), claim)),
            Vacant(free) => {
                free.insert(claim);
            }
        }
    }
    let is_port = |entry: &&Checked| entry.settings.kind.is_port();
    if let Some(entry) = checked.entries.iter().filter(is_port).nth(limits::MAX_PORTS) {
        let text = format!("more than {} ports, taps and streams", limits::MAX_PORTS);
        complaints.push(Complaint::new(&entry.at, text));
    }
    complaints.append(&mut mirrored_mirrors(&checked.entries));
    for kind in Kind::NAMED.into_iter().filter(|kind| *kind != Kind::Port) {
        let most = kind.most();
        let mut all = checked.entries.iter().filter(|entry| entry.settings.kind == kind);
        if let Some(entry) = all.nth(most) {
            let text = format!("more than {}", counted(most, kind.noun()));
            complaints.push(Complaint::new(&entry.at, text));
        }
    }
    complaints
}

/// Returns a complaint for each mirror that conflicts with an earlier mirror.
fn mirrored_mirrors(entries: &[Checked]) -> Vec<Complaint> {
    let mut before: Vec<Mirror> = Vec::new();
    let mut complaints = Vec::new();
    for Checked { settings, at, .. } in entries {
        let Some(mirror) = settings.mirror() else { continue };
        complaints
            .extend(conflict_of_mirrors(&mirror, &before).map(|text| Complaint::new(at, text)));
        before.push(mirror);
    }
    complaints
}

/// Returns the complaint about two claims to one value. If an argument and the file conflict, the
/// complaint is about the argument.
fn conflict(earlier: &Claim, later: &Claim) -> Complaint {
    let (at, other) = match (&earlier.at, &later.at) {
        (Location::Argument(_), Location::Line(..)) => (&earlier.at, &later.at),
        _ => (&later.at, &earlier.at),
    };
    let place = match other {
        other if other == at => "given twice".to_owned(),
        other => format!("already used {}", whereabouts(other, at)),
    };
    Complaint::new(at, format!("{} {} is {place}", later.what, quote(&later.value)))
}

/// Describes the place `other` in a complaint about a setting at the place `at`.
pub(super) fn whereabouts(other: &Location, at: &Location) -> String {
    match (other, at) {
        (Location::Line(file, line), Location::Line(here, _)) if file == here => {
            format!("in line {line} of the file")
        }
        (Location::Line(file, line), _) => format!("in {file}:{line}"),
        (Location::Argument(argument), _) => format!("by {argument}"),
        (Location::Parameter(_) | Location::Command, _) => "elsewhere".to_owned(),
    }
}

/// Lays the command line (`over`) over the file (`under`), both without errors of their own.
/// Returns the final configuration, or the errors of the configuration as a whole.
pub(super) fn overlay(
    under: Validated,
    over: Validated,
    places: Places<'_>,
) -> (Config, Vec<Complaint>) {
    let mut all = Validated { scalars: over.scalars.or(under.scalars), ..Validated::default() };
    all.entries = under.entries;
    // Each place is found once, by name: a thousand ports over a thousand must not take a million
    // looks.
    let id = |entry: &Checked| (entry.settings.kind, entry.settings.name.clone());
    let ids: HashMap<(Kind, String), usize> =
        all.entries.iter().enumerate().map(|(place, entry)| (id(entry), place)).collect();
    for entry in over.entries {
        let place = ids.get(&id(&entry)).copied();
        match place.and_then(|place| all.entries.get_mut(place)) {
            // A second entry on the command line is an error and no replacement.
            Some(old) if matches!(old.at, Location::Line(..)) => *old = entry,
            _ => all.entries.push(entry),
        }
    }
    let mut complaints = conflicts(&all, places);
    complaints.append(&mut unfit_filters(&all));
    // With a control socket, ports may be added later.
    if all.entries.is_empty() && all.scalars.control.is_none() && all.scalars.plug.is_none() {
        let text = "nothing to switch: give --port, --tap or another entry, or --config FILE, or \
                    --control PATH to add ports later; see --help";
        complaints.push(Complaint::new(&Location::Command, text));
    }
    complaints.extend(missing_workers(&all));
    (config(all.scalars, all.entries, places), complaints)
}

/// Returns a complaint for each name of a filter or group that does not exist, and for each list of
/// filters that has too many rules.
fn unfit_filters(Validated { entries, scalars, .. }: &Validated) -> Vec<Complaint> {
    let all = entries.iter().map(|entry| &entry.settings);
    let book = Rulebook::new(all, &Rulebook::default());
    let (mut complaints, mut examined) = (Vec::new(), HashSet::new());
    let template = scalars.template.iter().map(|(at, settings)| (settings, at));
    let entries = entries.iter().map(|entry| (&entry.settings, &entry.at));
    let (filters, others): (Vec<_>, Vec<_>) =
        entries.chain(template).partition(|(settings, _)| settings.kind == Kind::Filter);
    for (settings, at) in filters.into_iter().chain(others) {
        let missing = book.missing(settings).into_iter();
        complaints.extend(missing.map(|(kind, name)| {
            Complaint::new(at, format!("there is no {kind} {}", quote(&name)))
        }));
        let names = settings.filters();
        if examined.insert(names)
            && let Some(Err(error)) = book.rules_in(settings).map(|rules| rules.check_size())
        {
            let text = format!("filter {}: {error}", quote(&names.join(",")));
            complaints.push(Complaint::new(at, text));
        }
    }
    complaints
}

/// Returns a complaint for each entry with a `worker` that will not exist.
fn missing_workers(all: &Validated) -> impl Iterator<Item = Complaint> {
    let workers = all.scalars.workers.unwrap_or(limits::DEFAULT_WORKERS);
    let ports = all.entries.iter().map(|entry| (&entry.at, &entry.settings));
    let template = all.scalars.template.iter().map(|(at, settings)| (at, settings));
    ports.chain(template).filter_map(move |(at, settings)| {
        let wrong = settings.check_worker(workers).err()?;
        Some(Complaint::new(at, wrong.text))
    })
}

/// Returns the configuration, with defaults for missing values.
fn config(scalars: Scalars, entries: Vec<Checked>, places: Places<'_>) -> Config {
    let entry = |Checked { settings, .. }: Checked| {
        let place = settings.socket.as_deref().map(places);
        Entry { settings, origin: Origin::Config, place }
    };
    let scalars = scalars.complete();
    let mut config = Config {
        words: scalars.words(),
        ports: entries.into_iter().map(entry).collect(),
        workers: scalars.workers.unwrap_or_default(),
        cpus: scalars.cpus.unwrap_or_default(),
        poll: scalars.poll.unwrap_or_default(),
        latency: scalars.latency.unwrap_or_default(),
        age_seconds: scalars.age.unwrap_or_default(),
        control: scalars.control.map(|claim| Control {
            path: claim.value.into(),
            group: scalars.control_group,
            admins: scalars.control_admin_group,
            capture: scalars.capture_group,
        }),
        metrics: scalars.metrics,
        log_level: scalars.log_level.unwrap_or(LevelFilter::Info),
        uplink_to_uplink: scalars.uplink_to_uplink.unwrap_or_default(),
        mac_flap_damping: scalars.mac_flap_damping.unwrap_or(true),
        sandbox: scalars.sandbox.unwrap_or(true),
        multicast_snooping: scalars.multicast_snooping.unwrap_or_default(),
        plug: scalars.plug,
        template: scalars.template.map_or_else(|| Settings::new(Kind::Template), |(_, it)| it),
        warnings: Vec::new(),
    };
    config.sort();
    config
}
