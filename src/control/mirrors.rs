//! Mirrors that are added, listed and deleted.

use serde_json::Value;

use super::connection::Caller;
use super::methods::Switch;
use super::parameters::{Values, settings};
use crate::config::{Kind, Settings};
use crate::daemon::PortError;
use crate::wire::{
    self, AddMirror, DeleteMirror, Fault, Mirror, MirrorAdded, MirrorDeleted, Mirrors,
};

impl Switch {
    /// `AddMirror`.
    pub(super) fn add_mirror(
        &self,
        given: AddMirror,
        caller: Caller,
    ) -> Result<MirrorAdded, Fault> {
        self.named(&given.from)?;
        self.named(&given.to)?;
        let Value::Object(parameters) = wire::json(&given) else {
            return Err(Fault::parameter("name", None));
        };
        let (_, given, values): (_, _, Values) = settings(parameters)?;
        let wanted = Settings::parse(Kind::Mirror, given).map_err(|wrong| values.fault(wrong))?;
        self.tell("adds mirror", &wanted.name, caller);
        let added = self.daemon().add_mirror(&wanted);
        added.map_err(|error| self.fault(&wanted.name, &error))?;
        Ok(MirrorAdded {})
    }

    /// `ListMirrors`.
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
                active: ports.watches().iter().any(|watch| watch.name == mirror.name),
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

    /// `DeleteMirror`.
    pub(super) fn delete_mirror(
        &self,
        DeleteMirror { name }: DeleteMirror,
        caller: Caller,
    ) -> Result<MirrorDeleted, Fault> {
        let deleted = {
            let mut daemon = self.daemon();
            if daemon.desired().mirrors().all(|mirror| mirror.name != name) {
                return Err(Fault::refused("there is no mirror of this name"));
            }
            self.tell("removes mirror", &name, caller);
            daemon.remove_port(&name)
        };
        deleted.map_err(|error: PortError| self.fault(&name, &error))?;
        Ok(MirrorDeleted {})
    }
}
