//! The thread that follows the interfaces of uplinks: their MTUs, their states (up or down), their
//! bridges, and whether an interface of an XDP uplink was deleted, which no socket reports. The
//! kernel reports each change to the thread, so that no worker has to ask.
//!
//! The thread asks for the state of all interfaces when it begins, and again after the kernel
//! reported a lost message. The thread subscribes before it asks, so that no change falls between
//! the two. If the thread cannot subscribe, it asks again and again.

use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use base::limits::LINK_RETRY_MILLIS;
use datapath::events::What;
use datapath::port::{Port, PortTable, Ports};
use sys::link_events::{Heard, LinkEvents};
use sys::netlink::{LinkNews, NetlinkError};
use sys::poll::{self, Wake};

/// Follows the interface of every uplink among `ports`, also of uplinks that come later, until
/// `stop`.
pub fn run(ports: &Ports, stop: &EventFd) {
    let mut told = None;
    loop {
        match follow(ports, stop) {
            Ok(Heard::Stop) => return,
            Ok(_) => log::debug!("the kernel lost changes of interfaces; asking for all again"),
            Err(error) => {
                // The log gets each reason once, not four times a second.
                let text = error.to_string();
                if told.as_ref() != Some(&text) {
                    log::warn!("cannot watch interfaces of uplinks, so polls their states: {text}");
                    told = Some(text);
                }
            }
        }
        let pause = Instant::now() + Duration::from_millis(LINK_RETRY_MILLIS);
        match poll::pause(stop, pause) {
            Ok(Wake::Stop) => return,
            Ok(_) => {}
            // The wait fails if no memory is left: the thread pauses nevertheless.
            Err(_) => std::thread::sleep(Duration::from_millis(LINK_RETRY_MILLIS)),
        }
    }
}

/// Follows the interfaces until a message is lost, an attempt fails, or `stop` is written.
fn follow(ports: &Ports, stop: &EventFd) -> Result<Heard, NetlinkError> {
    let events = LinkEvents::subscribe();
    let asked = ask(&ports.present());
    let mut events = events?;
    asked?;
    loop {
        let (mut present, mut failed) = (None, Ok(()));
        let heard = events.wait(stop, |news| {
            let table = present.get_or_insert_with(|| ports.present());
            let LinkNews::Is(news) = news else { return look_for_losses(table) };
            for port in uplinks(table) {
                let behind = |port: &Port| port.mtu.bridge().map(|bridge| bridge.index);
                let before = (behind(port), port.mtu.get());
                match port.mtu.hear(&news) {
                    Ok(change) => tell(port, change),
                    Err(error) => failed = Err(error),
                }
                if behind(port) != before.0 {
                    port.begin();
                }
                if port.mtu.get() != before.1 {
                    look_at(port);
                }
            }
        })?;
        failed?;
        if heard != Heard::Changes {
            return Ok(heard);
        }
    }
}

/// Asks the kernel for the state of each uplink's interface.
fn ask(table: &PortTable) -> Result<(), NetlinkError> {
    for port in uplinks(table) {
        let change = port.mtu.ask();
        look_at(port);
        tell(port, change?);
    }
    Ok(())
}

/// Takes interfaces out of service that were deleted, or whose MTU has outgrown their queues.
fn look_for_losses(table: &PortTable) {
    uplinks(table).for_each(look_at);
}

fn look_at(port: &Port) {
    if let Some((uplink, _)) = port.as_uplink() {
        uplink.look(port.mtu.get());
    }
}

/// Reports that the interface behind a port came up, or went down.
fn tell(port: &Port, change: Option<bool>) {
    if change.is_some() {
        // The interface may lead to other hosts now. These hosts have answered no multicast query,
        // so their memberships are unknown.
        port.begin();
    }
    match change {
        Some(true) => port.tell(What::InterfaceUp),
        Some(false) => port.tell(What::InterfaceDown),
        None => {}
    }
}

fn uplinks(table: &PortTable) -> impl Iterator<Item = &Port> {
    let is_uplink = |port: &&Port| port.as_uplink().is_some();
    table.iter().map(|port| &**port).filter(is_uplink)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use base::frame::Offloads;
    use datapath::port::DevicePort;
    use sys::netlink;
    use sys::tap::{self, Missing};
    use sys::testns;

    fn becomes(port: &Port, mtu: u32) {
        let end = Instant::now() + Duration::from_secs(10);
        while port.mtu.get() != Some(mtu) {
            assert!(Instant::now() < end, "{:?}, not {mtu}", port.mtu.get());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn every_tap_is_followed_whenever_it_comes() {
        testns::run(|| {
            let up = |id| Arc::new(Port::device(id, "up", DevicePort::tap("lm0", 1)));
            let open = |name: &str| tap::open(name, 1, Offloads::NONE, Missing::Create).unwrap();
            let (first, second) = (up(0), up(1));
            let ports = Ports::new([Arc::clone(&first)].into_iter().collect());
            let tap = open("lm0");
            first.mtu.follow(tap.link.index).unwrap();
            // The MTU changes before the thread listens.
            netlink::set_mtu(tap.link.index, 1300).unwrap();
            let stop = EventFd::new(libc::EFD_NONBLOCK).unwrap();
            std::thread::scope(|scope| {
                let monitor = scope.spawn(|| run(&ports, &stop));
                becomes(&first, 1300);
                netlink::set_mtu(tap.link.index, 9000).unwrap();
                becomes(&first, 9000);
                ports.add(Arc::clone(&second));
                let other = open("lm1");
                second.mtu.follow(other.link.index).unwrap();
                assert_eq!(second.mtu.get(), Some(1500));
                netlink::set_mtu(other.link.index, 576).unwrap();
                becomes(&second, 576);
                assert_eq!(first.mtu.get(), Some(9000), "another's");
                stop.write(1).unwrap();
                monitor.join().unwrap();
            });
        });
    }
}
