//! The files of a configuration: the named file, then the files of `conf.d` beside the named file.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::raw::quote;
use base::limits::{MAX_CONFIG_BYTES, MAX_CONFIG_FILES, MAX_CONFIG_TOTAL_BYTES};

/// The directory beside the named file.
const DIRECTORY: &str = "conf.d";

/// A file as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Path of the file.
    pub name: String,
    /// Content of the file.
    pub bytes: Vec<u8>,
}

/// All files, in the order in which their settings count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    /// The files.
    pub files: Vec<Text>,
}

/// Reads `path` and the files of `conf.d` beside `path`. An error is a line that names the file.
pub(super) fn read(path: &Path) -> Result<Texts, String> {
    let shown = |path: &Path| quote(&path.to_string_lossy());
    let mut files = vec![file(path).map_err(|error| format!("{}: {error}", shown(path)))?];
    let directory = path.parent().unwrap_or(Path::new("")).join(DIRECTORY);
    let more = names(&directory).map_err(|error| format!("{}: {error}", shown(&directory)))?;
    let mut total = files[0].bytes.len() as u64;
    for path in more {
        let text = file(&path).map_err(|error| format!("{}: {error}", shown(&path)))?;
        total += text.bytes.len() as u64;
        if total > MAX_CONFIG_TOTAL_BYTES {
            let rule = format!("all files together are longer than {MAX_CONFIG_TOTAL_BYTES} bytes");
            return Err(format!("{}: {rule}", shown(&path)));
        }
        files.push(text);
    }
    Ok(Texts { files })
}

/// Returns the configuration files of a directory, by name; none if the directory does not exist.
fn names(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        // Editors and package managers keep other files there: a.toml~, .a.toml.swp,
        // a.toml.dpkg-new.
        let counts = Path::new(&name).extension() == Some(OsStr::new("toml"))
            && !name.as_encoded_bytes().starts_with(b".");
        if counts {
            found.push(directory.join(name));
        }
        if found.len() > MAX_CONFIG_FILES {
            return Err(io::Error::other(format!("more than {MAX_CONFIG_FILES} files")));
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a whole regular file of at most [`MAX_CONFIG_BYTES`].
fn file(path: &Path) -> io::Result<Text> {
    // O_NONBLOCK: opening a FIFO without a writer would wait for ever.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        return Err(io::Error::other(format!("longer than {MAX_CONFIG_BYTES} bytes")));
    }
    Ok(Text { name: path.to_string_lossy().into_owned(), bytes })
}
