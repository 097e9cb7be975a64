//! Settings that a client gives, by the rules of the command line and the files.

use std::path::Path;

use super::entries::conflicts;
use super::kept::Keys;
use super::keys::Settings;
use super::kind::Kind;
use super::raw::{Complaint, Location, Section, Setting, Value};
use super::settings::InvalidSetting;
use super::validate::{Validated, entry};

impl From<Complaint> for InvalidSetting {
    fn from(Complaint { at, text }: Complaint) -> InvalidSetting {
        let key = match at {
            Location::Parameter(key) => key,
            // A complaint about all settings begins with the missing key.
            _ => text.split(' ').next().unwrap_or_default().to_owned(),
        };
        InvalidSetting { key, text }
    }
}

impl Settings {
    /// Reads settings of a program, with the name among them, by the rules of the command line and
    /// the files.
    pub fn parse(kind: Kind, given: Vec<(String, Value)>) -> Result<Settings, InvalidSetting> {
        let setting = |(key, value): (String, Value)| {
            let at = Location::Parameter(key.clone());
            Setting { key, value, at }
        };
        let settings = given.into_iter().map(setting).collect();
        let (checked, complaints) = entry(&Section { kind, settings, at: Location::Command });
        let settings = checked.settings.clone();
        let all = Validated { entries: vec![checked], complaints, ..Validated::default() };
        // A single entry has one socket, so the path can be compared as written.
        let twice = conflicts(&all, &Path::to_path_buf);
        match all.complaints.into_iter().chain(twice).next() {
            Some(complaint) => Err(complaint.into()),
            None => Ok(settings),
        }
    }

    /// Returns these settings with other words for some keys; no words for a key that is not set.
    pub fn with(&self, keys: &Keys) -> Result<Settings, InvalidSetting> {
        let mut given = vec![("name".to_owned(), Value::Word(self.name.clone()))];
        let own = self.words().into_iter().map(|(key, words)| (key.to_owned(), words));
        let own = own.filter(|(key, _)| !keys.contains_key(key));
        let others = keys.iter().map(|(key, words)| (key.clone(), words.clone()));
        for (key, words) in own.chain(others) {
            given.extend(words.into_iter().map(|word| (key.clone(), Value::Word(word))));
        }
        Settings::parse(self.kind, given)
    }

    /// Returns the keys whose words are other ones in `changed`, with those words.
    pub fn changed_keys(&self, changed: &Settings) -> Keys {
        let before = self.words();
        let differ = changed.words().into_iter().filter(|word| !before.contains(word));
        differ.map(|(key, words)| (key.to_owned(), words)).collect()
    }
}
