//! `vioswitchctl attach` and `run`: as far as no machine is started; what is printed for a port,
//! and what is refused. `tests/guests/attach.rs` starts machines with it.

use testkit::skip;

use super::*;

/// A switch whose port `p2` is one that a front-end listens for.
fn lab() -> Lab {
    let keys = [",queues=2,mac=52:54:00:00:00:07,mtu=9000", ",memory=prealloc,platform=on"];
    let lab = Lab::with_ports(&keys, &[]);
    lab.done(&["port", "add", "p2", "mode=client"]);
    lab
}

/// What cannot be had is refused with a status.
#[test]
fn each_form_fits_its_port() {
    let lab = lab();
    let paths = [lab.d.socket(0), lab.d.socket(1), lab.socket("p2.sock")];
    let path = |n: usize| paths[n].display().to_string();
    let told = |args: &[&str]| {
        let answer = lab.json(&[&["attach"], args].concat());
        answer["text"].as_str().expect("a text").to_owned()
    };
    for (args, words) in [
        (&["p0", "--qemu", "--qemu-version=9.2"][..], ",reconnect-ms=200\n"),
        (&["p0", "--qemu", "--qemu-version=9.1"], ",reconnect=1\n"),
        (&["p0", "--qemu", "--qemu-version=10"], "host_mtu=9000\n"),
        (&["p0", "--qemu", "--qemu-version=10"], ",mac=52:54:00:00:00:07,mq=on,vectors=6"),
        (&["p0", "--qemu", "--qemu-version=7.2", "--emulated"], ",mq=on,vectors=0"),
        (&["p0", "--qemu", "--queues=1", "--mem=512"], "size=512M,share=on\n"),
        (&["p2", "--qemu"], ",server=on,wait=off\n"),
        (&["p1", "--qemu"], "size=1G,share=on,prealloc=on\n"),
        (&["p1", "--qemu"], ",iommu_platform=on\n"),
        (&["p0", "--cloud-hypervisor"], "vhost_mode=client,num_queues=4,mac=52:54:00:00:00:07"),
        (&["p2", "--dpdk"], ",queue_size=256,server=1\n"),
        (&["p0", "--dpdk"], ",queues=2,queue_size=256,mac=52:54:00:00:00:07\n"),
        (&["p1", "--qemu", "--mac=52:54:00:AA:00:09"], ",mac=52:54:00:aa:00:09"),
        (&["p1", "--cloud-hypervisor", "--mac=52:54:00:aa:00:09"], ",mac=52:54:00:aa:00:09\n"),
        (&["p1", "--dpdk", "--mac=52:54:00:aa:00:09"], ",mac=52:54:00:aa:00:09\n"),
        (&["p0", "--libvirt", "--mac=52:54:00:00:00:07"], "<mac address='52:54:00:00:00:07'/>"),
    ] {
        let text = told(args);
        assert!(text.contains(words), "{args:?}: {text}");
        assert!(text.contains(&path(usize::from(args[0].as_bytes()[1] - b'0'))), "{text}");
    }
    // Where the port has no address its card has one all the same, and each time.
    let card = |name: &str| {
        let text = told(&[name, "--qemu", "--qemu-version=10"]);
        let (_, address) = text.split_once(",mac=").expect("an address");
        address.split([',', '\n']).next().expect("an end").to_owned()
    };
    assert!(card("p1") == card("p1") && card("p1") != card("p2"), "{}", card("p1"));
    for (name, address) in [("p0", "52:54:00:00:00:07".to_owned()), ("p1", card("p1"))] {
        let text = told(&[name, "--libvirt"]);
        assert!(text.contains(&format!("\n  <mac address='{address}'/>\n")), "{text}");
    }
    // Without a guard another address passes, and is not the one that is configured.
    let noted = lab.json(&["attach", "p0", "--qemu", "--mac=52:54:00:00:00:09"]);
    let notes = noted["notes"].to_string();
    assert!(notes.contains("the port has mac=52:54:00:00:00:07, and 52:54:00:00:00:09"), "{notes}");
    lab.done(&["port", "add", "p3", "guard=on", "mac=52:54:00:00:00:08"]);
    for (args, status, words) in [
        (&["attach", "p0", "--qemu", "--queues=3"][..], 1, "port set p0 queues=3"),
        (&["attach", "p1", "--qemu", "--mac=52:54:00:00:00:07"], 1, "static address of port 'p0'"),
        (&["attach", "p3", "--qemu", "--mac=52:54:00:00:00:09"], 1, "port set p3 mac=52:54:00"),
        (&["attach", "p1", "--qemu", "--mac=01:00:5e:00:00:01"], 2, "one station can have"),
        (&["attach", "p0"], 2, "--libvirt"),
        (&["attach", "p0", "--qemu", "--dpdk"], 2, "cannot be used with"),
        (&["attach", "p0", "--qemu", "--mem=1K"], 2, "512M"),
        (&["attach", "p0", "--qemu", "--qemu-version=x"], 2, "7.2"),
        (&["attach", "p9", "--qemu"], 1, "there is no port 'p9'"),
        (&["run", "p0"], 2, "QEMU"),
        (&["run", "p0", "--", "true"], 2, "does not answer as QEMU"),
        (&["run", "p0", "--", "/no/such/qemu"], 2, "does not answer as QEMU"),
    ] {
        let (found, line) = lab.fails(args);
        assert!(found == status && line.contains(words), "{args:?}: {found} {line}");
    }
    let nowhere = lab.socket("nowhere").display().to_string();
    let mut alone = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
    alone.args(["--control", &nowhere, "attach", "p0", "--qemu"]);
    assert_eq!(failure(alone.output().expect("vioswitchctl")).0, 3);
    lab.d.stop();
}

/// The guests of docs/tenants.md get the address that the page gives them.
#[test]
fn the_guests_of_the_tenants_page_are_attached_as_it_says() {
    let page = include_str!("../../../docs/tenants.md");
    let lab = Lab::new(0, &[]);
    let mut guests = 0;
    for line in page.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["#", "vioswitchctl", "port", "add", rest @ ..] = &words[..] {
            lab.done(&[&["port", "add"], rest].concat());
        }
        let Some((_, command)) = line.split_once("$(vioswitchctl ") else { continue };
        let (command, _) = command.split_once(')').expect("its end");
        let words: Vec<&str> = command.split(' ').collect();
        let told = lab.json(&words)["text"].as_str().expect("a text").to_owned();
        let mac = words.last().and_then(|word| word.strip_prefix("--mac=")).expect("an address");
        let socket = lab.socket(&format!("{}.sock", words[1]));
        for part in [mac, socket.to_str().expect("UTF-8")] {
            assert!(told.contains(part), "{line}: {told}");
        }
        guests += 1;
    }
    assert_eq!(guests, 4);
    lab.d.stop();
}

/// libvirt's own grammar of domains.
#[test]
#[ignore = "full"]
fn libvirt_takes_what_is_for_it() {
    if Command::new("virt-xml-validate").arg("--version").output().is_err() {
        return skip("virt-xml-validate is missing (libvirt-clients)");
    }
    let lab = lab();
    for name in ["p0", "p2", "p1"] {
        let parts = lab.json(&["attach", name, "--libvirt"]);
        let parts = parts["text"].as_str().expect("a text");
        let (memory, devices) = parts.split_once("<!-- below <devices> -->").expect("two parts");
        let domain = format!(
            "<domain type='kvm'><name>x</name><memory unit='MiB'>1024</memory>{memory}<os><type \
             arch='x86_64' machine='q35'>hvm</type></os><devices>{devices}</devices></domain>"
        );
        let file = lab.socket("domain.xml");
        let validate = |text: &str| {
            std::fs::write(&file, text).expect("write");
            Command::new("virt-xml-validate").arg(&file).arg("domain").output().expect("validate")
        };
        let output = validate(&domain);
        assert!(output.status.success(), "{domain}\n{output:?}");
        let wrong = validate(&domain.replace("vhostuser", "vhostusr"));
        assert!(!wrong.status.success(), "anything is valid");
    }
    lab.d.stop();
}
