//! `docs/filters.md` is typed by a shell: its file and its commands, in their order, make a switch
//! whose frames and traces are those that the page promises.

use std::fs;

use super::filters::passes;
use super::*;

/// The blocks of the page in this language.
fn blocks(language: &str) -> Vec<String> {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/filters.md"));
    let page = page.expect("the page");
    let begin = format!("\n```{language}\n");
    let blocks = page.split(&begin).skip(1);
    blocks.map(|rest| rest.split("\n```").next().expect("an end").to_owned()).collect()
}

/// What one types, each command after the one before; what the commands print.
fn typed(lab: &Lab, commands: &str) -> String {
    let program = env!("CARGO_BIN_EXE_vioswitchctl");
    let client = format!("vioswitchctl() {{ {program} --control {} \"$@\"; }}", lab.path.display());
    let output = Command::new("sh").args(["-exc", &format!("{client}\n{commands}")]).output();
    let output = output.expect("sh");
    assert!(output.status.success(), "{commands}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A SYN from 10.0.0.FROM to 10.0.0.5.
fn syn(from: &Vm, to: &Vm, end: u8, port: u8) -> Vec<u8> {
    let ip = [0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, end, 10, 0, 0, 5];
    let tcp = [0x9c, 0x40, 0, port, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];
    [&to.mac()[..], &from.mac(), &[8, 0], &ip, &tcp, &[0; 6]].concat()
}

/// Both VMs are as the page says, and so is the last command, a trace.
fn holds(lab: &Lab, trace: &str) {
    let connect = |id| Vm::connect(&lab.socket(&format!("vm{id}.sock")), VmConfig::new(id));
    let mut vms: Vec<Vm> = [1, 2].map(connect).into();
    let passes = |vms: &mut Vec<Vm>, end, port| {
        let frame = syn(&vms[1], &vms[0], end, port);
        passes(vms, 1, 0, &frame)
    };
    assert!(passes(&mut vms, 9, 80) && passes(&mut vms, 9, 22), "the web, and an admin");
    assert!(!passes(&mut vms, 99, 22) && !passes(&mut vms, 9, 23), "what no rule permits");
    let shown = lab.done(&["connections", "show", "vm1"]);
    assert_eq!(shown.matches("10.0.0.5:").count(), 2, "{shown}");
    let counted = lab.json(&["filter", "show", "web", "--counters"]);
    assert_eq!(counted["ports"], json!(["vm1"]), "{counted}");
    assert_eq!(counted["rules"][1]["connections"], 1, "{counted}");
    let told = typed(lab, trace);
    assert!(told.contains("rule 2 of filter web accepts the packet at 'vm1'"), "{told}");
}

/// The page's file and commands: about the file, without a file, and the trace at their end.
fn page() -> [String; 4] {
    let [file] = &blocks("toml")[..] else { panic!("not one file") };
    let [reload, commands] = &blocks("sh")[..] else { panic!("not two blocks of commands") };
    let (commands, trace) = commands.rsplit_once('\n').expect("several commands");
    assert!(trace.starts_with("vioswitchctl trace "), "{trace}");
    [file, reload, commands, trace].map(str::to_owned)
}

#[test]
fn the_file_of_the_page() {
    let etc = Dir::new();
    let config = etc.path().join("vioswitch.toml");
    fs::write(&config, "").expect("a file");
    let lab = Lab::new(1, &[&format!("--config={}", config.display())]);
    let [file, reload, _, trace] = page();
    let run = lab.dir.path().display().to_string();
    fs::write(&config, file.replace("/run/vioswitch", &run)).expect("a file");
    typed(&lab, &reload.replace("/etc/vioswitch", &etc.path().display().to_string()));
    holds(&lab, &trace);
    lab.d.stop();
}

#[test]
fn the_commands_of_the_page() {
    let lab = Lab::new(1, &[]);
    let [_, _, commands, trace] = page();
    let told = typed(&lab, &commands);
    assert!(told.contains("in accept tcp from group:admins to port 22"), "{told}");
    holds(&lab, &trace);
    lab.d.stop();
}
