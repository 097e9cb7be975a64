//! I7: what a hostile guest or front-end costs two honest guests beside it. They lose no frame,
//! their median latency at most doubles, no gap is longer than 100 ms, and they keep nine tenths of
//! their rate.
//!
//! `rings` has guests whose rings are costly to serve, `receivers` those that take nothing or
//! little, `shares` those that send what is costly to forward, `limited` the same with a rate,
//! `floods` those that send from everywhere, `frontends` front-ends that storm, block and loop,
//! `notifications` those whose call descriptors are expensive to write to, `memory` and `punches`
//! guests whose memory faults, `workers` those that another worker serves, `groups` one that
//! reports groups, `devices` TAPs and streams, `clients` those of the control socket, `captures`
//! those of them that capture, `connections` guests that begin connections without end, `forgeries`
//! guests that forge packets of other guests' connections, `rules` an operator who changes a
//! filter.
//!
//! One test at a time: they measure.

mod captures;
mod clients;
mod connections;
mod devices;
mod floods;
mod forgeries;
mod frontends;
mod groups;
mod limited;
mod memory;
mod notifications;
mod punches;
mod receivers;
mod rings;
mod rules;
mod shares;
mod workers;
