//! Why the kernel does not make a namespace, or a network there, for a user, and what to do.

use std::fs;
use std::path::Path;

/// Settings of the kernel that forbid user namespaces, each with the forbidding value and the
/// remedy.
const SETTINGS: [(&str, &str, &str); 3] = [
    ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
];

/// Returns why the namespace could not be made, of which a program said `said`. `sysctls` is
/// /proc/sys.
pub(super) fn why(sysctls: &Path, said: &str) -> String {
    let set = |(name, value, _): &&(&str, &str, &str)| {
        fs::read_to_string(sysctls.join(name)).is_ok_and(|found| found.trim() == *value)
    };
    if let Some((name, value, remedy)) = SETTINGS.iter().find(set) {
        let name = name.replace('/', ".");
        return format!(
            "the kernel allows no user namespaces ({name} is {value}); as root: {remedy}"
        );
    }
    let said = reason(said);
    format!(
        "no network namespace can be made: {said}; a container may forbid namespaces by seccomp"
    )
}

/// Returns why a namespace has no network, of which a program said `said`. `tun` is /dev/net/tun.
pub(super) fn why_bare(tun: &Path, said: &str) -> String {
    match tun.exists() {
        true => format!("the namespace's network cannot be made: {}", reason(said)),
        false => "there is no /dev/net/tun: as root modprobe tun; a container needs \
                  --device /dev/net/tun"
            .to_owned(),
    }
}

/// Returns the first line of a program's errors: later lines are consequences.
fn reason(said: &str) -> &str {
    said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("the program ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_that_forbids_is_named() {
        let root = std::env::temp_dir().join(format!("vioswitchctl-lan-{}", std::process::id()));
        for (name, value, remedy) in SETTINGS {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, format!("{value}\n")).unwrap();
            let told = why(&root, "unshare: no");
            assert!(told.contains(remedy) && told.contains(&name.replace('/', ".")), "{told}");
            fs::remove_dir_all(&root).unwrap();
        }
        let told = why(&root, "\nunshare: unshare failed: Operation not permitted\n");
        assert!(told.contains("unshare failed"), "{told}");
    }

    /// A setting that forbids namespaces is not the reason when there is a namespace.
    #[test]
    fn the_first_complaint_about_the_network_is_named() {
        let (there, missing) = (Path::new("/"), Path::new("/nowhere"));
        let said = "\nnft: no such table\n^^^^\n";
        assert!(why_bare(there, said).ends_with("made: nft: no such table"));
        assert!(why_bare(missing, said).contains("modprobe tun"));
    }
}
