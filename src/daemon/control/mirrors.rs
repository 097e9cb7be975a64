//! Lists mirrors for clients.

use super::switch::Switch;
use api::config::Settings;
use api::wire::{Mirror, Mirrors};

impl Switch {
    /// Answers `ListMirrors`.
    pub(super) fn mirrors(&self) -> Mirrors {
        let (daemon, ports) = (self.daemon(), self.view.ports.present());
        let word = |settings: &Settings, name: &str| {
            let words = settings.words().into_iter().find(|(key, _)| *key == name);
            words.map(|(_, words)| words.concat()).unwrap_or_default()
        };
        let entries = daemon.desired().entries().values();
        let counted = ports.mirrors().iter().zip(ports.mirror_stats());
        let mirrors = entries.filter_map(|entry| {
            let mirror = entry.settings.mirror()?;
            let counts = counted.clone().find(|(other, _)| other.name == mirror.name);
            let (copies, lost) =
                counts.map_or((0, 0), |(_, stats)| (stats.copies.get(), stats.lost.get()));
            Some(Mirror {
                copies,
                lost,
                active: ports.watches().any(|watch| watch.name == mirror.name),
                name: mirror.name,
                from: mirror.from,
                to: mirror.to,
                dir: word(&entry.settings, "dir"),
                vlan: mirror.frames.vlan,
                snaplen: mirror.frames.snaplen,
                origin: entry.origin.name().to_owned(),
            })
        });
        Mirrors { mirrors: mirrors.collect() }
    }
}
