//! Reads the host's firewall, which may drop frames that pass a bridge. If `br_netfilter` shows the
//! firewall these frames, a policy of DROP for forwarded packets, as Docker sets the policy,
//! applies to these frames too.

use super::facts::{Facts, Forward};
use crate::tool;

const BRIDGE_FILTER: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";
/// Name for all interfaces of bridges.
const ALL: &str = "*";

/// Reads the firewall. `namespace` runs a program in the switch's network; `namespace` is empty if
/// this program is in the switch's network.
pub fn look(namespace: &[String], facts: &mut Facts) {
    let ask = |words: &[&str]| {
        let words: Vec<&str> =
            namespace.iter().map(String::as_str).chain(words.iter().copied()).collect();
        tool::output(&words)
    };
    // The file exists only if the kernel has loaded `br_netfilter`.
    let filtered = match namespace {
        [] => std::fs::read_to_string(BRIDGE_FILTER).ok(),
        _ => ask(&["cat", BRIDGE_FILTER]),
    };
    facts.host.bridge_filtered = filtered.is_some_and(|text| text.trim() == "1");
    if !facts.host.bridge_filtered {
        return;
    }
    facts.host.forward = ask(&["iptables", "-S"])
        .map(|rules| of_iptables(&rules))
        .or_else(|| ask(&["nft", "list", "ruleset"]).map(|rules| of_nft(&rules)));
    if facts.host.forward.is_none() {
        facts.skipped.push("the firewall: neither iptables(8) nor nft(8) answers".to_owned());
    }
}

/// Reads the output of `iptables -S`: the policies and rules of the filter table.
pub(crate) fn of_iptables(rules: &str) -> Forward {
    let mut forward = Forward::default();
    for line in rules.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["-P", "FORWARD", policy] => forward.drops = policy != "ACCEPT",
            ["-N", "DOCKER-USER"] => forward.docker = true,
            ["-A", "FORWARD" | "DOCKER-USER", ..] if words.ends_with(&["-j", "ACCEPT"]) => {
                let input = words.windows(2).find(|pair| pair[0] == "-i").map(|pair| pair[1]);
                let bridged = words.contains(&"--physdev-is-bridged");
                // A rule with other conditions accepts some frames, not all.
                let plain = words.iter().all(|word| !["-s", "-d", "-p", "!"].contains(word));
                let any = words.len() == 4 || bridged;
                let accepts = input.or_else(|| any.then_some(ALL)).filter(|_| plain);
                forward.accepts.extend(accepts.map(str::to_owned));
            }
            _ => {}
        }
    }
    forward
}

/// Reads the output of `nft list ruleset`.
pub(crate) fn of_nft(rules: &str) -> Forward {
    let mut forward = Forward::default();
    let mut inside = false;
    for line in rules.lines().map(str::trim) {
        if line.starts_with("type filter hook forward") {
            inside = true;
            forward.drops |= line.contains("policy drop");
        } else if line == "}" {
            inside = false;
        } else if line.starts_with("chain DOCKER-USER") {
            forward.docker = true;
            inside = true;
        } else if inside && line.ends_with("accept") {
            let name = line.strip_prefix("iifname \"").and_then(|rest| rest.split('"').next());
            forward.accepts.extend(name.map(str::to_owned));
        }
    }
    forward
}

impl Forward {
    /// True if no frame gets through the bridge.
    pub(crate) fn stops(&self, bridge: &str) -> bool {
        self.drops && !self.accepts.iter().any(|name| name == ALL || name == bridge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCKER: &str = "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n-N DOCKER\n\
                          -N DOCKER-USER\n-A FORWARD -j DOCKER-USER\n\
                          -A FORWARD -o docker0 -j DOCKER\n-A FORWARD -i docker0 ! -o docker0 -j \
                          ACCEPT\n-A DOCKER -d 172.17.0.2/32 -j ACCEPT\n-A DOCKER-USER -j RETURN\n";

    #[test]
    fn docker_stops_other_bridges() {
        let forward = of_iptables(DOCKER);
        assert!(forward.docker && forward.stops("br0"));
        for rule in [
            "-A DOCKER-USER -i br0 -o br0 -j ACCEPT",
            "-A FORWARD -m physdev --physdev-is-bridged -j ACCEPT",
            "-A FORWARD -j ACCEPT",
        ] {
            assert!(!of_iptables(&format!("{DOCKER}{rule}\n")).stops("br0"), "{rule}");
        }
        let half = "-A FORWARD -i br0 -p tcp -j ACCEPT";
        assert!(of_iptables(&format!("{DOCKER}{half}\n")).stops("br0"));
        assert!(!of_iptables(&DOCKER.replace("FORWARD DROP", "FORWARD ACCEPT")).stops("br0"));
    }

    #[test]
    fn nftables_are_read_too() {
        let rules = "table ip filter {\n\tchain DOCKER-USER {\n\t\tcounter return\n\t}\n\
                     \tchain FORWARD {\n\t\ttype filter hook forward priority 0; policy drop;\n\
                     \t\tiifname \"docker0\" accept\n\t}\n\tchain x {\n\t\tiifname \"br0\" accept\n\
                     \t}\n}\n";
        let forward = of_nft(rules);
        assert!(forward.docker && forward.stops("br0") && !forward.stops("docker0"));
        assert!(!of_nft(&rules.replace("policy drop", "policy accept")).stops("br0"));
        assert!(!of_nft(&rules.replace("docker0", "br0")).stops("br0"));
    }
}
