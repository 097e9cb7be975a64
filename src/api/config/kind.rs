//! Kinds of entries: one table of their names, limits and options.
//!
//! A new kind is a row here, its keys in `keys`, and the code that uses the entries.

use base::limits;

macro_rules! kinds {
    (
        ports { $($(#[$port_about:meta])* $port:ident $port_row:tt)* }
        others { $($(#[$about:meta])* $other:ident $row:tt)* }
    ) => {
        kinds! {
            @all
            $($(#[$port_about])* $port $port_row)*
            $($(#[$about])* $other $row)*
        }

        impl Kind {
            /// Kinds of ports.
            pub const PORTS: [Kind; [$(Kind::$port),*].len()] = [$(Kind::$port),*];
            /// Kinds that may have several entries.
            pub const NAMED: [Kind; Kind::ALL.len() - 1] =
                [$(Kind::$port,)* $(Kind::$other,)*];
        }
    };
    (@all $($(#[$about:meta])* $kind:ident {
        $name:literal, $most:expr, $noun:literal, $form:literal, $help:literal $(,)?
    })*) => {
        base::words! {
            /// Kind of an entry, with the name of the tables in a file and of the option.
            Kind {
                $($(#[$about])* $kind $name,)*
                /// Template, which is no port: settings that all ports by plug share.
                Template "template",
            }
        }

        impl Kind {
            /// Returns the largest number of entries of the kind.
            pub fn most(self) -> usize {
                match self {
                    $(Kind::$kind => $most,)*
                    Kind::Template => 1,
                }
            }

            /// Returns the noun for an entry of the kind.
            pub const fn noun(self) -> &'static str {
                match self {
                    $(Kind::$kind => $noun,)*
                    Kind::Template => "template",
                }
            }

            /// Returns the name of the count of entries of the kind on the control socket.
            pub const fn count_name(self) -> &'static str {
                match self {
                    $(Kind::$kind => concat!($name, "s"),)*
                    Kind::Template => "templates",
                }
            }

            /// Returns the form of the value of the option that adds an entry, and the option's
            /// help, in which `{keys}` stands for the keys.
            pub(super) fn option(self) -> (&'static str, &'static str) {
                match self {
                    $(Kind::$kind => ($form, $help),)*
                    Kind::Template => ("", ""),
                }
            }
        }
    };
}

// Name, largest number of entries, noun of an entry, form and help of the option.
kinds! {
    ports {
        /// Port of a virtual machine.
        Port {
            "port", limits::MAX_PORTS, "port", "NAME,socket=PATH[,KEY=VALUE]...",
            "Add a port for a virtual machine; repeatable\n\n{keys}\n\nWrite a comma inside a \
             value twice. The option replaces the whole entry of the same kind\nand name in the \
             file.",
        }
        /// TAP: a network interface that the host makes for the switch.
        Tap {
            "tap", limits::MAX_TAPS, "tap", "NAME,ifname=IFNAME[,KEY=VALUE]...",
            "Add a TAP interface as an uplink; repeatable\n\n{keys}",
        }
        /// XDP uplink: a network interface that bypasses the host's network stack.
        Xdp {
            "xdp", limits::MAX_XDPS, "xdp uplink", "NAME,ifname=IFNAME[,KEY=VALUE]...",
            "Add an interface of the host as an uplink that bypasses the host's network stack \
             (AF_XDP);\nrepeatable\n\n{keys}",
        }
        /// Stream: a process that speaks QEMU's `-netdev stream`.
        Stream {
            "stream", limits::MAX_STREAMS, "stream", "NAME,socket=PATH[,KEY=VALUE]...",
            "Add a port for a process that speaks QEMU's -netdev stream over a Unix socket, such \
             as\npasst; repeatable\n\n{keys}",
        }
        /// VDUSE device: an interface of the host or a container.
        Vduse {
            "vduse", limits::MAX_VDUSES, "vduse device", "NAME,ifname=IFNAME[,KEY=VALUE]...",
            "Add an interface of the host or a container, whose rings the switch serves like a \
             virtual\nmachine's (VDUSE); repeatable\n\n{keys}",
        }
    }
    others {
        /// Mirror: frames of one port are copied to another port.
        Mirror {
            "mirror", limits::MAX_MIRRORS, "mirror", "NAME,from=PORT,to=PORT[,KEY=VALUE]...",
            "Add a mirror, which copies frames of one port to another; repeatable\n\n{keys}",
        }
        /// Filter: rules about packets.
        Filter {
            "filter", limits::MAX_FILTERS, "filter", "NAME[,KEY=VALUE]...",
            "Add a filter: rules about the packets of ports that name the filter in filter=; \
             repeatable\n\n{keys}",
        }
        /// Group: addresses that rules name.
        Group {
            "group", limits::MAX_FILTERS, "group", "NAME[,KEY=VALUE]...",
            "Add a group: addresses that rules of filters name as group:NAME; \
             repeatable\n\n{keys}",
        }
    }
}

impl Kind {
    /// True if entries of the kind are ports.
    pub fn is_port(self) -> bool {
        Kind::PORTS.contains(&self)
    }

    /// Returns the kind of entries with this name.
    pub fn named(name: &str) -> Option<Kind> {
        Kind::NAMED.into_iter().find(|kind| kind.name() == name)
    }
}
