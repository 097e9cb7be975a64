//! Writes the files of networks whole or not at all, and never over another author's file.
//!
//! A text belongs to a network if its first line has the network's mark. A link belongs to a
//! network if the link has the target that vioswitchctl writes.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::plan::{self, Content, File};
use crate::failure::Failure;
use crate::files::Replacement;

/// Most bytes that are read of a network's file.
const MAX_TEXT: u64 = 64 << 10;

/// Files below a root: `/`, except for tests and for makers of images.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) root: PathBuf,
}

/// State of the place of a file.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// The file belongs to the network, with this content; a link has an empty content.
    Ours(Content),
    Others,
}

/// Paths that belong to the network, and paths of others.
type Both = (Vec<PathBuf>, Vec<PathBuf>);

impl Store {
    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn found(&self, name: &str, file: &File) -> io::Result<Found> {
        let path = self.at(&file.path);
        let kind = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
            found => found?.file_type(),
        };
        if kind.is_symlink() {
            let target = fs::read_link(&path)?.to_string_lossy().into_owned();
            let ours = file.content == Content::Link(target);
            let content = ours.then(|| Content::Link(String::new()));
            return Ok(content.map_or(Found::Others, Found::Ours));
        }
        if !kind.is_file() || matches!(file.content, Content::Link(_)) {
            return Ok(Found::Others);
        }
        let mut text = Vec::new();
        fs::File::open(&path)?.take(MAX_TEXT).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let ours = text.starts_with(&plan::mark(name));
        Ok(if ours { Found::Ours(Content::Text(text)) } else { Found::Others })
    }

    /// Fails if one of the files exists and does not belong to the network.
    pub(crate) fn check(&self, name: &str, files: &[File]) -> Result<(), Failure> {
        match self.ours(name, files)?.1.first() {
            None => Ok(()),
            Some(other) => Err(Failure::refused(format!(
                "{} exists and is not of network {name}: move the file away, or choose another \
                 name",
                other.display()
            ))),
        }
    }

    /// Writes the files that differ, and returns their paths. If a file cannot be written, the new
    /// files are removed again.
    pub(crate) fn write(&self, name: &str, files: &[File]) -> Result<Vec<PathBuf>, Failure> {
        self.check(name, files)?;
        let (mut written, mut new) = (Vec::new(), Vec::new());
        for file in files {
            let outcome = self.found(name, file).and_then(|found| match (&found, &file.content) {
                (Found::Ours(Content::Link(_)), _) => Ok(false),
                (Found::Ours(there), wanted) if there == wanted => Ok(false),
                _ => self.put(file).map(|()| {
                    new.extend((found == Found::Nothing).then(|| self.at(&file.path)));
                    true
                }),
            });
            match outcome {
                Ok(true) => written.push(self.at(&file.path)),
                Ok(false) => {}
                Err(error) => {
                    for path in new {
                        // `--remove` takes away a file that stays.
                        let _ = fs::remove_file(path);
                    }
                    return Err(self.failed("write", file, &error));
                }
            }
        }
        Ok(written)
    }

    fn put(&self, file: &File) -> io::Result<()> {
        let path = self.at(&file.path);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        match &file.content {
            Content::Link(target) => symlink(target, &path),
            Content::Text(text) => {
                Replacement::prepare(&path, text, None).and_then(Replacement::commit)
            }
        }
    }

    /// Returns the existing files that belong to the network, and the existing files of others.
    pub(crate) fn ours(&self, name: &str, files: &[File]) -> Result<Both, Failure> {
        let (mut ours, mut others) = (Vec::new(), Vec::new());
        for file in files {
            let found =
                self.found(name, file).map_err(|error| self.failed("read", file, &error))?;
            match found {
                Found::Nothing => {}
                Found::Others => others.push(self.at(&file.path)),
                Found::Ours(_) => ours.push(self.at(&file.path)),
            }
        }
        Ok((ours, others))
    }

    /// Removes the files that belong to the network. Returns the removed paths, and the paths of
    /// others.
    pub(crate) fn remove(&self, name: &str, files: &[File]) -> Result<Both, Failure> {
        let (ours, left) = self.ours(name, files)?;
        for path in &ours {
            fs::remove_file(path).map_err(|error| Failure::file("remove", path, &error))?;
            // The directory belongs to the unit alone; a directory with other files stays.
            if let Some(parent) = path.parent().filter(|at| at.extension() == Some("d".as_ref())) {
                let _ = (!parent.ends_with("conf.d")).then(|| fs::remove_dir(parent));
            }
        }
        Ok((ours, left))
    }

    /// Returns the existing networks: the name and the requested settings of each.
    pub(crate) fn networks(&self) -> Vec<(String, String)> {
        let directory = self.at(Path::new(&plan::of_switch("x")));
        let entries = directory.parent().and_then(|path| fs::read_dir(path).ok());
        let names = entries.into_iter().flatten().flatten().filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().strip_suffix(".toml")?.to_owned();
            plan::name(&name).ok()
        });
        let mut all: Vec<(String, String)> =
            names.filter_map(|name| self.wanted(&name).map(|words| (name, words))).collect();
        all.sort();
        all
    }

    /// Returns the requested settings of the network of this name, if the network exists.
    pub(crate) fn wanted(&self, name: &str) -> Option<String> {
        let path = plan::of_switch(name).into();
        let file = File { path, content: Content::Text(String::new()) };
        match self.found(name, &file) {
            Ok(Found::Ours(Content::Text(text))) => {
                let words = text.lines().find_map(|line| line.strip_prefix(plan::WANTED));
                Some(words.unwrap_or_default().to_owned())
            }
            _ => None,
        }
    }

    fn failed(&self, what: &str, file: &File, error: &io::Error) -> Failure {
        Failure::file(what, &self.at(&file.path), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Store in a directory of its own, which is removed with the value.
    struct Root(Store);

    impl Root {
        fn new(name: &str) -> Root {
            let name = format!("vioswitchctl-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&root);
            Root(Store { root })
        }

        fn list(&self) -> Vec<PathBuf> {
            let (mut dirs, mut files) = (vec![self.0.root.clone()], Vec::new());
            while let Some(dir) = dirs.pop() {
                for entry in fs::read_dir(dir).into_iter().flatten() {
                    let entry = entry.expect("entry");
                    let is_dir = entry.file_type().expect("type").is_dir();
                    if is_dir { dirs.push(entry.path()) } else { files.push(entry.path()) }
                }
            }
            files
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.root);
        }
    }

    fn text(path: &str, name: &str, text: &str) -> File {
        let content = Content::Text(plan::mark(name) + text);
        File { path: path.into(), content }
    }

    fn link(path: &str, to: &str) -> File {
        File { path: path.into(), content: Content::Link(to.to_owned()) }
    }

    #[test]
    fn what_is_written_is_taken_away_again() {
        let root = Root::new("store");
        let files = [
            text("/etc/a/b.toml", "lan", "x\n"),
            text("/etc/u.service.d/n.conf", "lan", "y\n"),
            link("/etc/wants/u", "/usr/lib/u"),
        ];
        assert_eq!(root.0.write("lan", &files).expect("written").len(), 3);
        assert_eq!(root.list().len(), 3, "no file beside them: {:?}", root.list());
        // No file differs; then one file differs.
        assert!(root.0.write("lan", &files).expect("written").is_empty());
        let changed = [text("/etc/a/b.toml", "lan", "z\n")];
        assert_eq!(root.0.write("lan", &changed).expect("written").len(), 1);
        let (gone, left) = root.0.remove("lan", &files).expect("removed");
        assert_eq!((gone.len(), left.len()), (3, 0));
        assert!(root.list().is_empty());
        assert!(!root.0.root.join("etc/u.service.d").exists());
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let root = Root::new("others");
        let files =
            [text("/etc/a", "lan", "x\n"), text("/etc/b", "lan", "x\n"), link("/etc/c", "/d")];
        for (path, others) in
            [("etc/b", "mine\n"), ("etc/b", "# Written by vioswitchctl network lan2; ")]
        {
            fs::create_dir_all(root.0.root.join("etc")).expect("directory");
            fs::write(root.0.root.join(path), others).expect("write");
            let refused = root.0.write("lan", &files).expect_err("others'");
            assert!(refused.text.contains("etc/b exists"), "{}", refused.text);
            assert_eq!(root.list().len(), 1, "{:?}", root.list());
        }
        let (gone, left) = root.0.remove("lan", &files).expect("removed");
        assert_eq!((gone.len(), left.len()), (0, 1));
        fs::remove_file(root.0.root.join("etc/b")).expect("remove");
        symlink("/elsewhere", root.0.root.join("etc/c")).expect("link");
        assert!(root.0.write("lan", &files).is_err());
    }

    #[test]
    fn a_directory_that_cannot_be_made_leaves_nothing_behind() {
        let root = Root::new("failed");
        fs::create_dir_all(&root.0.root).expect("directory");
        symlink("nowhere", root.0.root.join("file")).expect("link");
        let files = [text("/a", "lan", "x\n"), text("/file/b", "lan", "x\n")];
        let refused = root.0.write("lan", &files).expect_err("a directory");
        assert!(refused.text.starts_with("cannot write"), "{}", refused.text);
        assert_eq!(root.list(), [root.0.root.join("file")]);
    }
}
