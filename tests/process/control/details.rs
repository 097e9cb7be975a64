//! What the switch reports of one port, and static addresses.

use std::time::Instant;

use testkit::traffic::{self, Stream, To};

use super::*;

fn details(client: &mut Client, name: &str) -> Value {
    let answer = client.call("GetPortDetails", json!({"name": name}));
    assert_eq!(answer.get("error"), None, "{answer}");
    answer["parameters"].clone()
}

/// Names, sizes, addresses and counts are those of the guest that is there.
#[test]
fn a_port_tells_all_of_its_guest() {
    let lab = Lab::new(1, &["--workers=2"]);
    lab.done(&["port", "add", "vm1", "socket-mode=0600", "queues=1"]);
    let path = lab.socket("vm1.sock");
    let mut client = lab.client();
    let before = details(&mut client, "vm1");
    assert_eq!(before.get("session"), None);
    assert_eq!(before["socket"]["path"], path.to_str().unwrap());
    assert_eq!(
        (&before["socket"]["mode"], &before["rings"][0]["size"]),
        (&json!("0600"), &json!(null))
    );

    let config = VmConfig::new(1);
    let mut vm = Vm::connect(&path, config.clone());
    let other = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
    let mut frame = Vec::new();
    let stream = Stream { sender: 1, queue: 0, to: To::Vm(0), flow: 0 };
    for n in 0..7 {
        traffic::build(&stream, n, 200, &mut frame);
        vm.tx[0].send_waiting(&frame, LOST);
    }
    let told = || details(&mut lab.client(), "vm1");
    assert!(wait_for(LOST, || told()["rings"][1]["frames"] == 7), "{}", told());
    let told = told();
    let names = told["session"]["features"].as_array().unwrap();
    let acknowledged = config.features | 1 << 30;
    assert_eq!(names.len(), acknowledged.count_ones() as usize, "{names:?}");
    for name in ["VIRTIO_F_VERSION_1", "VIRTIO_NET_F_MRG_RXBUF", "VHOST_USER_F_PROTOCOL_FEATURES"] {
        assert!(names.contains(&json!(name)), "{names:?}");
    }
    let protocol = told["session"]["protocol_features"].as_array().unwrap();
    assert!(protocol.contains(&json!("VHOST_USER_PROTOCOL_F_REPLY_ACK")), "{protocol:?}");
    let region = |address, bytes: u64| {
        let (backing, page) = ("anonymous", 4096);
        json!({"address": address, "bytes": bytes, "backing": backing, "page": page})
    };
    let memory = json!([region("0x0", 32 << 20), region("0x100000000", 32 << 20)]);
    assert_eq!(told["session"]["memory"], memory);
    let [rx, tx] = [0, 1].map(|index| &told["rings"][index]);
    for (ring, direction, available) in [(rx, "out", 256), (tx, "in", 0)] {
        assert_eq!((&ring["direction"], &ring["size"]), (&json!(direction), &json!(256)));
        assert_eq!((&ring["started"], &ring["enabled"]), (&json!(true), &json!(true)), "{ring}");
        assert_eq!((&ring["broken"], &ring["no_memory"]), (&json!(false), &json!(false)), "{ring}");
        assert_eq!(ring["available"], available, "{ring}");
    }
    assert!(tx["idle"].as_u64().is_some_and(|idle| idle < 60), "{tx}");
    assert_eq!(rx.get("idle"), None, "nothing went there: {rx}");
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(told["command"], own.trim_end());
    drop(other);
    drop(vm);
    lab.d.stop();
}

/// A session that does not answer holds nobody up, and what needs none is told all the same.
#[test]
fn a_silent_session_is_not_waited_for() {
    let lab = Lab::new(1, &[]);
    let mut half = UnixStream::connect(lab.d.socket(0)).expect("connect");
    // Half a header: the session waits for the rest, and is asked meanwhile.
    half.write_all(&[1, 0, 0]).expect("write");
    let mut client = lab.client();
    let attached = || lab.json(&["port", "show", "p0"])["port"]["state"] == "negotiating";
    assert!(wait_for(LOST, attached));
    let began = Instant::now();
    let mut waiting = lab.client();
    waiting.ask(
        &json!({"method": format!("{INTERFACE}.GetPortDetails"), "parameters": {"name": "p0"}}),
    );
    assert_eq!(client.call("GetStatus", json!({}))["parameters"]["ports"], 1);
    let told = waiting.answer().expect("an answer");
    assert_eq!(told["parameters"]["port"]["name"], "p0", "{told}");
    assert!(began.elapsed() < LOST);
    drop(half);
    lab.d.stop();
}

#[test]
fn static_addresses_come_and_go() {
    let lab = Lab::new(2, &[]);
    let mut client = lab.client();
    let mac = "02:00:00:00:00:09";
    let add = |client: &mut Client, mac: &str, port: &str| {
        client.call("AddAddress", json!({"mac": mac, "port": port}))
    };
    let refused = |answer: &Value, words: &str| {
        assert_eq!(answer["error"], format!("{INTERFACE}.Refused"), "{answer}");
        assert!(answer["parameters"]["reason"].as_str().unwrap().contains(words), "{answer}");
    };
    for _ in 0..2 {
        assert_eq!(add(&mut client, mac, "p0"), json!({"parameters": {}}));
    }
    refused(&add(&mut client, mac, "p1"), "02:00:00:00:00:09 is a static address of port 'p0'");
    let table = lab.done(&["fdb", "show"]);
    assert!(table.contains("02:00:00:00:00:09  p0    static"), "{table}");
    for n in 0..63 {
        let answer = add(&mut client, &format!("02:00:00:00:01:{n:02x}"), "p0");
        assert_eq!(answer.get("error"), None, "{answer}");
    }
    refused(&add(&mut client, "02:00:00:00:02:00", "p0"), "has 64 static addresses already");
    assert_eq!(add(&mut client, mac, "p0").get("error"), None, "it has that one");
    let delete = |client: &mut Client| client.call("DeleteAddress", json!({"mac": mac}));
    assert_eq!(delete(&mut client), json!({"parameters": {"port": "p0"}}));
    refused(&delete(&mut client), "is no static address");
    for bad in ["01:00:00:00:00:00", "00:00:00:00:00:00", "x", "02:00:00:00:00"] {
        let answer = add(&mut client, bad, "p0");
        assert_eq!(answer["error"], format!("{INTERFACE}.InvalidParameter"), "{answer}");
        assert_eq!(answer["parameters"]["field"], "mac");
    }
    assert_eq!(add(&mut client, mac, "p7")["error"], format!("{INTERFACE}.NoSuchPort"));
    client.call("Delete", json!({"name": "p0"}));
    assert_eq!(client.call("GetStatus", json!({}))["parameters"]["addresses"], 0);
    lab.d.stop();
}
