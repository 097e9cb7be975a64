//! `config save`: what was changed while the switch runs goes into the files of the configuration.
//!
//! What was added goes to a file of its own in conf.d. What was set or deleted is changed where it
//! stands, by its place in the text, so that everything else there stays. The switch says what was
//! changed and how its files differ from what runs; where a file says something else by now nothing
//! is written. When the files are written the switch is asked again, and they are put back unless
//! it reads there what it runs.
//!
//! The caller, as a rule root, writes what a switch says that has fewer rights: only to the files
//! that the caller names, and nothing but keys with their values.

mod change;
pub mod edit;
#[cfg(test)]
mod tests;
mod unified;

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use api::wire::{DiffConfig, GetChanges, GetStatus, ReloadConfig, Status, Step};
use base::words::quote;
use serde_json::{Value, json};

use crate::client::Client;
use crate::failure::Failure;
use crate::files::Replacement;
use crate::print;
use crate::show::text;
use change::{Change, Standing};
use edit::{Document, Edit};

/// The directory beside the configuration, and the file there for what was added.
const DIRECTORY: &str = "conf.d";
const ADDED: &str = "saved.toml";
const HEAD: &str = "\
# Ports that were added while the switch ran. Written by vioswitchctl config save, which changes it
# as it does the other files: edit it, or move entries elsewhere.
";
/// Longest file that is changed; the switch reads none that is longer.
const MAX_FILE: u64 = 1 << 20;

/// The options of config save.
#[derive(Debug, clap::Args)]
pub struct Save {
    /// Print the changes as diff -u does, and write nothing
    #[arg(long)]
    diff: bool,
    /// The file of the switch's --config
    #[arg(long, value_name = "FILE", default_value = "/etc/vioswitch/vioswitch.toml")]
    config: PathBuf,
}

/// A file, and what is changed in it.
struct Source {
    path: PathBuf,
    text: String,
    is_new: bool,
    edits: Vec<Edit>,
    /// Subjects of the changes.
    told: Vec<String>,
}

/// Edits of the files.
struct Plan<'c> {
    sources: Vec<Source>,
    saved: Vec<&'c Change>,
    /// Changes that cannot be saved, and why.
    left: Vec<String>,
}

/// A file that was written.
struct Written {
    path: PathBuf,
    /// Copy of the file before the edit, if the file was there.
    before: Option<PathBuf>,
}

impl Save {
    pub fn run(&self, client: &mut Client, as_json: bool) -> Result<(), Failure> {
        let changes = client.list(&GetChanges {}, |part| part.changes)?;
        self.check_file(&client.call(&GetStatus {})?)?;
        let changes = change::read(changes).ok_or_else(|| {
            Failure::refused("the switch returned what no file can have".to_owned())
        })?;
        let steps = client.list(&DiffConfig {}, |part| part.steps)?;
        let plan = Plan::new(&changes, &steps, self.sources()?)?;
        let mut in_force = false;
        if !self.diff {
            plan.carry_out(client)?;
            in_force = take_over(client, &changes)?;
        }
        let text = match as_json {
            true => format!("{:#}\n", plan.json(self.diff)),
            false if self.diff => plan.diff(),
            false => plan.told(in_force),
        };
        print(&text);
        match plan.left.as_slice() {
            [] => Ok(()),
            left => Err(Failure::refused(format!("not saved: {}", left.join("; ")))),
        }
    }

    /// That the switch reads the files that would be written.
    fn check_file(&self, status: &Status) -> Result<(), Failure> {
        let Some(theirs) = &status.config else {
            let text = "there is no file to save to: vioswitchd was started without --config; \
                        vioswitchctl config show > FILE writes one to start it with";
            return Err(Failure::refused(text.to_owned()));
        };
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if real(Path::new(theirs)) == real(&self.config) {
            return Ok(());
        }
        let (theirs, own) = (text(theirs), self.config.display());
        Err(Failure::refused(format!(
            "the switch does not read {own}: vioswitchctl config save --config {}",
            quote(&theirs)
        )))
    }

    /// All files that the switch reads; that for what was added comes last, if it is there or not.
    fn sources(&self) -> Result<Vec<Source>, Failure> {
        let directory = self.config.parent().unwrap_or(Path::new("")).join(DIRECTORY);
        let added = directory.join(ADDED);
        let mut paths = match fs::read_dir(&directory) {
            Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
        .map_err(|error| Failure::file("read", &directory, &error))?;
        paths.retain(|path| {
            let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes()[0] == b'.');
            path.extension() == Some("toml".as_ref()) && !hidden && *path != added
        });
        paths.sort();
        let mut sources = vec![Source::read(&self.config)?];
        for path in paths {
            sources.push(Source::read(&path)?);
        }
        sources.push(match Source::read(&added) {
            Err(_) if matches!(added.try_exists(), Ok(false)) => Source {
                path: added,
                text: String::new(),
                is_new: true,
                edits: Vec::new(),
                told: Vec::new(),
            },
            read => read?,
        });
        Ok(sources)
    }
}

impl Source {
    /// A file, where a link to it leads.
    fn read(path: &Path) -> Result<Source, Failure> {
        let read = || -> io::Result<Source> {
            let path = path.canonicalize()?;
            let mut text = String::new();
            fs::File::open(&path)?.take(MAX_FILE).read_to_string(&mut text)?;
            Ok(Source { path, text, is_new: false, edits: Vec::new(), told: Vec::new() })
        };
        read().map_err(|error| Failure::file("read", path, &error))
    }

    /// Its path as it was.
    fn before(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push("~");
        path.into()
    }

    /// Puts what it is to be in its place, and what it was beside.
    fn write(&self, new: Replacement) -> io::Result<Written> {
        let mut written = Written { path: self.path.clone(), before: None };
        if !self.is_new {
            let before = self.before();
            match fs::remove_file(&before) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => fs::hard_link(&self.path, &before)?,
            }
            written.before = Some(before);
        }
        new.commit()?;
        Ok(written)
    }
}

impl<'c> Plan<'c> {
    fn new(
        changes: &'c [Change],
        steps: &[Step],
        sources: Vec<Source>,
    ) -> Result<Plan<'c>, Failure> {
        let mut plan = Plan { sources, saved: Vec::new(), left: Vec::new() };
        let (mut added, mut skipped) = (Vec::new(), Vec::new());
        for change in changes {
            let about = change.what();
            if change.told.origin == "cli" {
                plan.left.push(format!("{about} is the command line's, and is changed there"));
                skipped.push(&change.told.name);
                continue;
            }
            match change.standing(steps) {
                Standing::Saved => continue,
                Standing::AsBefore => {}
                Standing::Otherwise => {
                    let text = "stands otherwise in the files than when they were read";
                    let next = "config diff shows how, config reload has it in force";
                    return Err(Failure::refused(format!("{about} {text}: {next}")));
                }
            }
            if change.told.sign != "+" {
                if let Err(why) = plan.edit(change) {
                    plan.left.push(format!("{about}: {why}"));
                    skipped.push(&change.told.name);
                }
            } else if !skipped.contains(&&change.told.name) {
                added.push(edit::entry(&change.told));
                plan.saved.push(change);
            }
        }
        if let Some(last) = plan.sources.last_mut().filter(|_| !added.is_empty()) {
            let head = if last.is_new { format!("{HEAD}\n") } else { String::new() };
            last.edits.push(edit::append(&last.text, &(head + &added.join("\n"))));
            let new = plan.saved.iter().filter(|change| change.told.sign == "+");
            last.told.extend(new.map(|change| change.about()));
        }
        Ok(plan)
    }

    /// Changes an entry where it stands; or why that is not done.
    fn edit(&mut self, change: &'c Change) -> Result<(), String> {
        for source in &mut self.sources {
            let path = source.path.display();
            let document = Document::read(&source.text);
            let document = document.map_err(|error| format!("{path}: {error}"))?;
            let Some(table) = document.find(&change.told.kind, &change.told.name) else { continue };
            let edits = match change.told.sign.as_str() {
                "-" => vec![table.remove()],
                _ => table.change(&change.told).map_err(|why| format!("{path}: {why}"))?,
            };
            source.edits.extend(edits);
            source.told.push(change.about());
            self.saved.push(change);
            return Ok(());
        }
        Err(format!("no [[{}]] of this name stands in the files", change.told.kind))
    }

    fn changed(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| !source.edits.is_empty())
    }

    /// Writes all of it, and has the switch read it; or nothing.
    fn carry_out(&self, client: &mut Client) -> Result<(), Failure> {
        let mut written = Vec::new();
        let done = self.write(&mut written).and_then(|()| self.verify(client));
        if done.is_err() {
            for Written { path, before } in written {
                let back = match &before {
                    Some(before) => fs::rename(before, &path),
                    None => fs::remove_file(&path),
                };
                back.map_err(|error| Failure::file("put back", &path, &error))?;
            }
        }
        done
    }

    fn write(&self, written: &mut Vec<Written>) -> Result<(), Failure> {
        let like = self.sources.first().and_then(|main| fs::metadata(&main.path).ok());
        let mut prepared = Vec::new();
        for source in self.changed() {
            let failed = |error: io::Error| Failure::file("write", &source.path, &error);
            let there = fs::metadata(&source.path).ok().or(like.clone());
            make_directory(&source.path).map_err(failed)?;
            let text = edit::apply(&source.text, &source.edits);
            let new = Replacement::prepare(&source.path, &text, there.as_ref()).map_err(failed)?;
            prepared.push((source, new));
        }
        for (source, new) in prepared {
            let done = source.write(new);
            written.push(done.map_err(|error| Failure::file("write", &source.path, &error))?);
        }
        Ok(())
    }

    /// That the switch finds in the files what it runs.
    fn verify(&self, client: &mut Client) -> Result<(), Failure> {
        let steps = client.list(&DiffConfig {}, |part| part.steps);
        let steps = steps.map_err(|failure| failure.told_as(not_saved))?;
        let other = self.saved.iter().find(|change| change.standing(&steps) != Standing::Saved);
        other.map_or(Ok(()), |change| {
            let text = format!("{}, as the switch reads them", change.what());
            Err(Failure::refused(not_saved(&format!("the files do not have {text}"))))
        })
    }

    /// Tells what was saved.
    fn told(&self, in_force: bool) -> String {
        let mut out = String::new();
        for source in self.changed() {
            let before = match source.is_new {
                true => String::new(),
                false => format!("  (as it was: {})", source.before().display()),
            };
            out += &format!("{}{before}\n", source.path.display());
            source.told.iter().for_each(|about| out += &format!("  {about}\n"));
        }
        match (out.is_empty(), self.left.is_empty()) {
            (true, true) => "nothing to save: the files have what runs\n".to_owned(),
            (true, false) => out,
            _ if in_force => out + "saved\n",
            _ => out + "saved; config diff shows how the files differ from what runs\n",
        }
    }

    fn diff(&self) -> String {
        let changed = self.changed();
        let diff = changed.map(|Source { path, text, is_new, edits, .. }| {
            unified::unified(text, edits, &path.to_string_lossy(), *is_new)
        });
        diff.collect()
    }

    fn json(&self, with_diff: bool) -> Value {
        let files: Vec<Value> = self
            .changed()
            .map(|source| json!({"path": source.path.to_string_lossy(), "changes": source.told}))
            .collect();
        let mut told = json!({"files": files, "left": self.left});
        if with_diff {
            told["diff"] = self.diff().into();
        }
        told
    }
}

/// Has the switch read its files again if that changes nothing but who gave a port: then these
/// changes are the files'. False if the files have other changes, which the administrator reloads.
fn take_over(client: &mut Client, changes: &[Change]) -> Result<bool, Failure> {
    let steps = client.list(&DiffConfig {}, |part| part.steps)?;
    let saved: Vec<&Change> =
        changes.iter().filter(|change| change.standing(&steps) == Standing::Saved).collect();
    let is_ours = |step: &Step| {
        let has_effect = step.sign != "~" || !step.changes.is_empty();
        !has_effect || saved.iter().any(|change| step.name.as_ref() == Some(&change.told.name))
    };
    let is_all = steps.iter().all(is_ours);
    if is_all && !saved.is_empty() {
        client.call(&ReloadConfig { confirm_seconds: None })?;
    }
    Ok(is_all)
}

fn not_saved(why: &str) -> String {
    format!("nothing is saved, the files are as they were: {why}")
}

/// Makes the directory of a file, if only that is missing. The switch has to look into it.
fn make_directory(file: &Path) -> io::Result<()> {
    let Some(directory) = file.parent() else { return Ok(()) };
    match fs::create_dir(directory) {
        Ok(()) => fs::set_permissions(directory, fs::Permissions::from_mode(0o755)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}
