//! The loop of the thread `control`.
//!
//! A round of the loop takes the events that happened, gives one client its turn, which is one call
//! or one part of an answer, and does the work that is due. Clients that can go on stand in the
//! ready list ([`ready`](super::ready)), and while the list has a client the thread does not wait.
//! So a client costs other clients one turn, however much the client asks for.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::connection::{Closed, Connection, Rank};
use super::message::{Call, reply};
use super::methods::Answer;
use super::ready::ReadyList;
use super::switch::Switch;
use crate::{PortError, Removal};
use api::wire::{self, Deleted};
use base::limits::{
    ACCEPT_RETRY_MIN, CONTROL_ACCEPTS, CONTROL_CONNECTIONS, CONTROL_KEPT_FOR_ADMINS,
    CONTROL_KEPT_FOR_ROOT, CONTROL_STEP,
};
use datapath::guard::disposal;
use datapath::vhost_user::socket::Listener;

/// Tokens of the epoll set; clients have the numbers from `FIRST` on.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const WAKEUP: u64 = 2;
const FIRST: u64 = 3;

/// A port that is being removed, and the place and number of the client that waits for the removal.
struct PendingRemoval {
    name: String,
    removal: Removal,
    asked: Option<(usize, u64)>,
}

/// All clients.
pub struct Server<'a> {
    listener: &'a Listener,
    switch: &'a Switch,
    epoll: Epoll,
    places: [Option<Connection>; CONTROL_CONNECTIONS],
    /// Clients that can go on.
    ready: ReadyList,
    removals: Vec<PendingRemoval>,
    /// The time of the next step of `removals`.
    step_at: Option<Instant>,
    /// The time until which no client is accepted, for want of descriptors or memory.
    closed_until: Option<Instant>,
    /// The number of the last connection.
    last: u64,
}

impl<'a> Server<'a> {
    /// Returns a server without clients.
    pub(crate) fn new(
        listener: &'a Listener,
        stop: &EventFd,
        switch: &'a Switch,
    ) -> io::Result<Server<'a>> {
        let epoll = Epoll::new()?;
        let watch =
            |fd, data| epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, data));
        watch(listener.as_fd().as_raw_fd(), LISTENER)?;
        watch(stop.as_raw_fd(), STOP)?;
        watch(switch.wakeup.as_raw_fd(), WAKEUP)?;
        let places = [const { None }; CONTROL_CONNECTIONS];
        Ok(Server {
            listener,
            switch,
            epoll,
            places,
            ready: ReadyList::default(),
            removals: Vec::new(),
            step_at: None,
            closed_until: None,
            last: 0,
        })
    }

    /// Serves clients until the thread is to end.
    pub(crate) fn run(mut self) -> io::Result<()> {
        while self.poll()? {
            self.serve_next();
            self.keep_time()?;
        }
        Ok(())
    }

    /// Takes the events that happened, and waits for events if no client is ready. False at the
    /// end.
    fn poll(&mut self) -> io::Result<bool> {
        // An event before the waker is armed wakes no thread, so the answers are looked at again.
        if self.clients().any(|client| client.idle.is_some()) && self.switch.wakeup.arm() {
            self.resume(|_| true);
        }
        let mut events = [EpollEvent::default(); FIRST as usize + CONTROL_CONNECTIONS];
        let millis = if self.ready.is_empty() { self.timeout_millis() } else { 0 };
        let count = match self.epoll.wait(millis, &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        for event in &events[..count] {
            match event.data() {
                STOP => return Ok(false),
                LISTENER => self.accept(),
                WAKEUP => {
                    self.switch.wakeup.clear();
                    self.resume(|_| true);
                }
                number => {
                    let hung_up = event.event_set().contains(EventSet::HANG_UP);
                    self.notice((number - FIRST) as usize, hung_up);
                }
            }
        }
        Ok(true)
    }

    /// Notes an event of a client.
    fn notice(&mut self, place: usize, hung_up: bool) {
        let Some(client) = &mut self.places[place] else { return };
        client.hung_up |= hung_up;
        // The viewer would read no answer, and its calls change nothing: other clients need its
        // place.
        if client.hung_up && client.rank == Rank::Viewer {
            return self.close(place, Closed::Left);
        }
        self.ready.push(place, client.rank);
    }

    fn clients(&self) -> impl Iterator<Item = &Connection> {
        self.places.iter().flatten()
    }

    /// Returns for how many milliseconds no work is due; -1 if no work is planned.
    fn timeout_millis(&self) -> i32 {
        let waits = self.clients().filter_map(Connection::deadline);
        let idle = self.clients().filter_map(|client| client.idle.and_then(|idle| idle.until));
        let all = waits.chain(idle).chain(self.closed_until).chain(self.step_at);
        let Some(next) = all.min() else { return -1 };
        let left = next.saturating_duration_since(Instant::now()).as_millis();
        i32::try_from(left + 1).unwrap_or(i32::MAX)
    }

    /// Admits a client that waits in the socket's queue, at most one client in each turn: a client
    /// that connects and leaves again gives its place back in its turn.
    fn accept(&mut self) {
        for _ in 0..CONTROL_ACCEPTS {
            if disposal::is_held_up() {
                return self.pause_accept();
            }
            match self.listener.socket().accept() {
                Ok((socket, _)) => {
                    if self.admit(socket) {
                        return;
                    }
                }
                Err(error) => return self.after(&error),
            }
        }
    }

    /// Handles an error of accept(2). For want of descriptors or memory the listener stays
    /// readable, so no client is accepted for a while.
    fn after(&mut self, error: &io::Error) {
        let gone = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
        if gone || error.raw_os_error() == Some(libc::ECONNABORTED) {
            return;
        }
        if self.switch.log.take() {
            log::warn!("control: a client has to wait: {error}");
        }
        self.pause_accept();
    }

    /// Accepts no client for a moment.
    fn pause_accept(&mut self) {
        if self.watch_listener(EventSet::empty()).is_ok() {
            self.closed_until = Some(Instant::now() + ACCEPT_RETRY_MIN);
        }
    }

    fn watch_listener(&self, events: EventSet) -> io::Result<()> {
        let event = EpollEvent::new(events, LISTENER);
        self.epoll.ctl(ControlOperation::Modify, self.listener.as_fd().as_raw_fd(), event)
    }

    /// Gives a client a place; false if no place is free for the client's rank.
    fn admit(&mut self, socket: UnixStream) -> bool {
        self.last += 1;
        let Ok(mut client) = Connection::new(socket, self.last) else { return false };
        client.rank = self.switch.rank(&client);
        let places = match client.rank {
            Rank::Viewer => CONTROL_CONNECTIONS - CONTROL_KEPT_FOR_ROOT - CONTROL_KEPT_FOR_ADMINS,
            Rank::Admin => CONTROL_CONNECTIONS - CONTROL_KEPT_FOR_ROOT,
            Rank::Root => CONTROL_CONNECTIONS,
        };
        let beside = self.clients().filter(|other| other.rank <= client.rank);
        let full = beside.count() >= places;
        let free = self.places.iter().position(Option::is_none);
        let Some(place) = free.filter(|_| !full) else {
            self.switch.clients.refused.add(1);
            if self.switch.log.take() {
                let uid = client.caller.uid;
                log::warn!("control: refused a client of uid {uid}: too many are connected");
            }
            return false;
        };
        let event = EpollEvent::new(client.watched, FIRST + place as u64);
        if self.epoll.ctl(ControlOperation::Add, client.as_raw_fd(), event).is_err() {
            self.switch.clients.refused.add(1);
            return false;
        }
        self.places[place] = Some(client);
        self.switch.clients.accepted.add(1);
        self.count_connected();
        true
    }

    fn count_connected(&self) {
        let clients = &self.switch.clients;
        let now = self.clients().count() as u64;
        clients.connected.add(now.wrapping_sub(clients.connected.get()));
    }

    /// Gives the next client its turn.
    fn serve_next(&mut self) {
        let Some(place) = self.ready.pop() else { return };
        if let Err(why) = self.advance(place).and_then(|()| self.requeue(place)) {
            self.close(place, why);
        }
    }

    /// Makes the next part of a client's answer, or carries out its next call.
    fn advance(&mut self, place: usize) -> Result<(), Closed> {
        let Some(client) = &mut self.places[place] else { return Ok(()) };
        client.flush()?;
        if client.takes_a_part() {
            self.switch.go_on(client)?;
        } else if let Some(message) = client.message()? {
            self.carry_out(place, &message)?;
        }
        self.places[place].as_ref().map_or(Ok(()), Connection::check)
    }

    fn carry_out(&mut self, place: usize, message: &[u8]) -> Result<(), Closed> {
        let Some(client) = &mut self.places[place] else { return Ok(()) };
        let call = Call::parse(message).ok_or(Closed::Malformed)?;
        let oneway = call.oneway == Some(true);
        // The number includes removals that no client waits for.
        let many = self.removals.len() >= CONTROL_CONNECTIONS;
        let answer = match self.switch.answer(call, client, many) {
            Ok(Answer::Reply(parameters)) => reply(parameters, false),
            Ok(Answer::Stream(stream)) => {
                client.stream = Some(stream).filter(|_| !oneway);
                return Ok(());
            }
            Ok(Answer::Removal(name, removal)) => {
                client.busy = !oneway;
                let asked = client.busy.then_some((place, client.number));
                self.removals.push(PendingRemoval { name, removal, asked });
                self.step_at = Some(Instant::now());
                return Ok(());
            }
            Err(fault) => fault.message(),
        };
        if oneway { Ok(()) } else { client.push(&answer) }
    }

    /// Puts a client that can go on into the ready list; for another client, waits for its events.
    fn requeue(&mut self, place: usize) -> Result<(), Closed> {
        let Some(client) = &mut self.places[place] else { return Ok(()) };
        if client.is_ready() {
            self.ready.push(place, client.rank);
            return Ok(());
        }
        let events = client.interest();
        if events != client.watched {
            let event = EpollEvent::new(events, FIRST + place as u64);
            let changed = self.epoll.ctl(ControlOperation::Modify, client.as_raw_fd(), event);
            changed.map_err(|_| Closed::Left)?;
            client.watched = events;
        }
        Ok(())
    }

    /// Puts waiting clients into the ready list if `when` is true of the end of their wait.
    fn resume(&mut self, when: impl Fn(Option<Instant>) -> bool) {
        for (place, client) in self.places.iter_mut().enumerate() {
            let Some(client) = client else { continue };
            if client.idle.take_if(|idle| when(idle.until)).is_some() {
                self.ready.push(place, client.rank);
            }
        }
    }

    fn close(&mut self, place: usize, why: Closed) {
        let Some(client) = self.places[place].take() else { return };
        self.ready.remove(place);
        // While the epoll set has the socket, epoll_wait(2) takes references to it, and the drop of
        // the last reference would run in this thread the work that `disposal` keeps from it.
        let none = EpollEvent::default();
        let _ = self.epoll.ctl(ControlOperation::Delete, client.as_raw_fd(), none);
        self.count_connected();
        super::count_closed(&self.switch.clients, why);
        if why != Closed::Left && self.switch.log.take() {
            let (pid, uid) = (client.caller.pid, client.caller.uid);
            log::warn!("control: closed the connection of pid {pid} uid {uid}: {why}");
        }
    }

    /// Goes on with ports that are being removed.
    fn go_on_removing(&mut self) {
        let mut at = 0;
        while at < self.removals.len() {
            let done = self.switch.daemon().go_on(&mut self.removals[at].removal);
            let answer = match done {
                Ok(false) => {
                    at += 1;
                    continue;
                }
                Ok(true) => reply(wire::json(&Deleted::default()), false),
                Err(PortError::BeingRemoved(_)) => {
                    reply(wire::json(&Deleted { in_progress: Some(true) }), false)
                }
                Err(error) => self.switch.fault(&self.removals[at].name, &error).message(),
            };
            let PendingRemoval { asked, .. } = self.removals.swap_remove(at);
            let Some((place, number)) = asked else { continue };
            let waits = |client: &&mut Connection| client.number == number;
            let Some(client) = self.places[place].as_mut().filter(waits) else { continue };
            client.busy = false;
            match client.push(&answer) {
                Ok(()) => self.ready.push(place, client.rank),
                Err(why) => self.close(place, why),
            }
        }
        self.step_at = (!self.removals.is_empty()).then(|| Instant::now() + CONTROL_STEP);
    }

    /// Does the work that is due: removals, waiting answers, slow clients, and accepting again.
    fn keep_time(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.step_at.is_some_and(|at| at <= now) {
            self.go_on_removing();
        }
        self.resume(|until| until.is_some_and(|at| at <= now));
        for place in 0..self.places.len() {
            let deadline = self.places[place].as_ref().and_then(Connection::deadline);
            if deadline.is_some_and(|at| at <= now) {
                self.close(place, Closed::TooSlow);
            }
        }
        if self.closed_until.is_some_and(|until| until <= now) {
            self.watch_listener(EventSet::IN)?;
            self.closed_until = None;
        }
        Ok(())
    }
}
