//! Replaces files of the host, whole or not at all, and keeps a file's mode and owner.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// New content in a temporary file beside the file to replace. Dropping an uncommitted replacement
/// removes the temporary file.
#[must_use = "it is not in its place before it is committed"]
pub(crate) struct Replacement {
    beside: PathBuf,
    to: PathBuf,
}

impl Replacement {
    /// Writes a text to a temporary file beside `to`, which is no symbolic link. Mode and owner are
    /// those of `like`, or 0644 and the caller's.
    pub(crate) fn prepare(
        to: &Path,
        text: &str,
        like: Option<&Metadata>,
    ) -> io::Result<Replacement> {
        let (Some(directory), Some(name)) = (to.parent(), to.file_name()) else {
            return Err(ErrorKind::InvalidInput.into());
        };
        // Programs that read these directories skip names that begin with a dot.
        let beside = format!(".{}.{}", name.to_string_lossy(), std::process::id());
        let beside = directory.join(beside);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        let prepared = Replacement { beside, to: to.to_owned() };
        file.write_all(text.as_bytes())?;
        if let Some(like) = like {
            fchown(&file, Some(like.uid()), Some(like.gid()))?;
        }
        let mode = like.map_or(0o644, |like| like.mode() & 0o7777);
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        Ok(prepared)
    }

    /// Renames the temporary file to its place.
    pub(crate) fn commit(self) -> io::Result<()> {
        fs::rename(&self.beside, &self.to)?;
        let directory = self.to.parent().unwrap_or(Path::new("/"));
        File::open(directory)?.sync_all()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // A committed temporary file is gone already.
        let _ = fs::remove_file(&self.beside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_mode_and_what_is_not_committed_leaves_nothing() {
        let root = std::env::temp_dir().join(format!("vioswitchctl-files-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        let path = root.join("a.toml");
        Replacement::prepare(&path, "one\n", None).unwrap().commit().unwrap();
        let there = fs::metadata(&path).unwrap();
        assert_eq!(there.mode() & 0o7777, 0o644);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let there = fs::metadata(&path).unwrap();
        drop(Replacement::prepare(&path, "two\n", Some(&there)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        Replacement::prepare(&path, "three\n", Some(&there)).unwrap().commit().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
        fs::remove_dir_all(&root).unwrap();
    }
}
