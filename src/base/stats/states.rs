//! The states of a port: one table of names and sentences, for the control socket, traces,
//! findings, events, the drop reasons of a state, and `docs/control.md`.
//!
//! The sentence about a state is about one port, as a trace shows the sentence, and about all ports
//! in the state: places such as `{port:the port}` have the words of the trace, or their default.

use serde::{Deserialize, Serialize};

use crate::words::fill;

macro_rules! states {
    ($($state:ident $name:literal $sentence:literal;)*) => {
        crate::words! {
            /// State of a port.
            #[derive(Serialize, Deserialize)]
            #[serde(rename_all = "snake_case")]
            PortState { $(#[doc = concat!("State `", $name, "`.")] $state $name,)* }
        }

        impl PortState {
            /// Returns the sentence about the state, with places for facts.
            pub const fn sentence(self) -> &'static str {
                match self { $(PortState::$state => $sentence,)* }
            }
        }
    };
}

states! {
    Listening "listening" "no {peer:front-end or process} is connected to {port:the port}";
    Negotiating "negotiating" "{who:a front-end} is connected to {port:the port}, and the guest's \
                               driver takes no frames yet";
    Attached "attached" "frames pass";
    Down "down" "{its:the uplink's} interface{name:} is down";
    Gone "gone" "{its:the uplink's} interface{name:} was deleted, and the switch waits for a new \
                 interface";
    LeftOut "left_out" "{port:the port} has no {lack:socket or interface} yet";
    Disabled "disabled" "{port:the port} is administratively down (admin=down)";
    Removing "removing" "{port:the port} was deleted, and the removal has not ended yet";
}

impl PortState {
    /// Returns the sentence about any port in the state.
    pub fn meaning(self) -> String {
        fill(self.sentence(), |_| None)
    }

    /// Returns the sentence about a port that the reader knows, as "its interface tap0 is down".
    pub fn of_it(self, interface: Option<&str>) -> String {
        fill(self.sentence(), |place| match place {
            "port" => Some("it".to_owned()),
            "its" => Some("its".to_owned()),
            "name" => interface.map(|interface| format!(" {interface}")),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use testkit::manual::hold_table;

    use super::*;

    const FROM: &str = "<!-- UPDATE_DOCS: src/base/stats/states.rs -->";

    #[test]
    fn the_page_of_the_control_socket_has_the_table() {
        let row = |state: PortState| format!("`{}` | {}\n", state.name(), state.meaning());
        let rows = PortState::ALL.map(row).concat();
        hold_table("docs/control.md", FROM, &format!("state | meaning\n---|---\n{rows}"));
    }

    #[test]
    fn a_state_is_worded_of_a_port() {
        let down = PortState::Down;
        assert_eq!(down.meaning(), "the uplink's interface is down");
        assert_eq!(down.of_it(Some("tap0")), "its interface tap0 is down");
        assert_eq!(PortState::LeftOut.of_it(None), "it has no socket or interface yet");
    }
}
