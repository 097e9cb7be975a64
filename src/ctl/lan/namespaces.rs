//! Why the kernel does not make a namespace for a user, and what to do.

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
    let said: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let said = said.last().copied().unwrap_or("the program ended");
    let set = |(name, value, _): &&(&str, &str, &str)| {
        fs::read_to_string(sysctls.join(name)).is_ok_and(|found| found.trim() == *value)
    };
    if let Some((name, value, remedy)) = SETTINGS.iter().find(set) {
        let name = name.replace('/', ".");
        return format!(
            "the kernel allows no user namespaces ({name} is {value}); as root: {remedy}"
        );
    }
    if !Path::new("/dev/net/tun").exists() {
        return "there is no /dev/net/tun: as root modprobe tun; a container needs \
                --device /dev/net/tun"
            .to_owned();
    }
    format!(
        "no network namespace can be made: {said}; a container may forbid namespaces by seccomp"
    )
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
}
