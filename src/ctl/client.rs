//! A blocking client of the switch's control socket, which speaks varlink.

use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::wire::{self, ConfigEntry, GetConfig, Method, SWITCH};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sys::unix_socket;

use crate::failure::Failure;
use crate::foreign;

/// Time that the client waits for an answer, without the time that a call asks the switch to wait.
/// The switch takes longest to delete a port: 4 s for a front-end that does not let go.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest message of a switch, with room for longer messages of later versions.
const MAX_MESSAGE: u64 = 16 << 20;

/// Interval at which `Client::next` checks its stop flag.
const STEP: Duration = Duration::from_millis(100);

/// Time that a listener may be silent before the client checks whether the listener is a switch.
const DOUBT: Duration = Duration::from_secs(1);

/// A connection to the switch.
pub struct Client {
    socket: BufReader<UnixStream>,
    /// Bytes of the message that is being received.
    message: Vec<u8>,
    /// Time that the client waits for an answer; none if the client waits without a limit.
    patience: Option<Duration>,
    /// Path of the socket until a switch has answered; none if the client does not check who
    /// listens.
    unproven: Option<PathBuf>,
}

/// Next part of an answer that continues for as long as events occur.
pub enum NextPart<A> {
    /// A part of the answer; true if another part follows.
    Part(A, bool),
    /// No part came before the stop flag ended the wait.
    Nothing,
}

impl Client {
    pub(crate) fn connect(path: &Path) -> Result<Client, Failure> {
        let socket = UnixStream::connect(path).map_err(|error| Failure::connect(path, &error))?;
        let mut client = Client::with(socket, PATIENCE);
        client.unproven = Some(path.to_owned());
        client.wait_for(Duration::ZERO)?;
        Ok(client)
    }

    /// Connects, without waiting, to a socket that may belong to a switch. Limits each wait for an
    /// answer to `DOUBT`.
    pub(crate) fn to_ask(path: &Path) -> Result<Client, Failure> {
        let socket = unix_socket::connect(path).map(UnixStream::from);
        let socket = socket.and_then(|socket| socket.set_nonblocking(false).map(|()| socket));
        let socket = socket.map_err(|error| Failure::connect(path, &error))?;
        let mut client = Client::with(socket, DOUBT);
        client.set_patience(Some(DOUBT))?;
        Ok(client)
    }

    fn with(socket: UnixStream, patience: Duration) -> Client {
        let (socket, patience) = (BufReader::new(socket), Some(patience));
        Client { socket, message: Vec::new(), patience, unproven: None }
    }

    /// Sets the wait for the next answers to the default wait plus `longer`.
    pub(crate) fn wait_for(&mut self, longer: Duration) -> Result<(), Failure> {
        self.set_patience(Some(PATIENCE + longer))
    }

    fn set_patience(&mut self, patience: Option<Duration>) -> Result<(), Failure> {
        self.patience = patience;
        let socket = self.socket.get_ref();
        let set = socket.set_read_timeout(patience);
        let set = set.and_then(|()| socket.set_write_timeout(Some(PATIENCE)));
        set.map_err(|error| Failure::silence(Some(&error)))
    }

    /// Calls a method and returns the answer.
    pub(crate) fn call<M: Method>(&mut self, request: &M) -> Result<M::Answer, Failure> {
        self.send(request, false)?;
        Ok(self.answer()?.0)
    }

    /// Calls a method that answers in several parts, until `each` returns false or the answer ends.
    pub(crate) fn parts<M: Method>(
        &mut self,
        request: &M,
        mut each: impl FnMut(M::Answer) -> bool,
    ) -> Result<(), Failure> {
        self.send(request, true)?;
        loop {
            let (part, continues) = self.answer()?;
            if !each(part) || !continues {
                return Ok(());
            }
        }
    }

    /// Returns the list that a method answers in several parts.
    pub(crate) fn list<M: Method, T>(
        &mut self,
        request: &M,
        of: impl Fn(M::Answer) -> Vec<T>,
    ) -> Result<Vec<T>, Failure> {
        let mut all = Vec::new();
        self.parts(request, |part| {
            all.append(&mut of(part));
            true
        })?;
        Ok(all)
    }

    /// Removes the limit on the wait for answers if `patient` is true; otherwise sets the default
    /// limit.
    pub(crate) fn be_patient(&mut self, patient: bool) -> Result<(), Failure> {
        self.set_patience((!patient).then_some(PATIENCE))
    }

    /// Calls a method whose answer continues for as long as events occur; `next` reads the parts.
    pub(crate) fn begin<M: Method>(&mut self, request: &M) -> Result<(), Failure> {
        self.send(request, true)?;
        self.set_patience(Some(STEP))
    }

    /// Returns the next part. Waits until `stop` is set, and then for one more `STEP`, because a
    /// part that the switch has sent before may be on its way.
    pub(crate) fn next<A: DeserializeOwned>(
        &mut self,
        stop: &AtomicBool,
    ) -> Result<NextPart<A>, Failure> {
        loop {
            let stopped = stop.load(Ordering::Relaxed);
            match self.read() {
                Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => {
                    if stopped {
                        return Ok(NextPart::Nothing);
                    }
                }
                read => return self.parse(read).map(|(part, more)| NextPart::Part(part, more)),
            }
        }
    }

    fn send<M: Method>(&mut self, request: &M, more: bool) -> Result<(), Failure> {
        let method = format!("{SWITCH}.{}", request.name());
        let mut call = json!({"method": method, "parameters": wire::json(request)});
        if more {
            call["more"] = true.into();
        }
        let mut message = call.to_string().into_bytes();
        message.push(0);
        let sent = self.socket.get_mut().write_all(&message);
        sent.map_err(|error| Failure::silence(Some(&error)))
    }

    /// Returns the parameters of the next answer, and true if another answer follows.
    fn answer<A: DeserializeOwned>(&mut self) -> Result<(A, bool), Failure> {
        let mut read = match self.unproven {
            Some(_) => self.first()?,
            None => self.read(),
        };
        if self.unproven.is_some() && is_timeout(&read) {
            read = self.read();
        }
        self.parse(read)
    }

    /// Reads the first message for at most `DOUBT`. Fails if a program other than a switch is found
    /// to listen.
    fn first(&mut self) -> Result<io::Result<()>, Failure> {
        let patience = self.patience;
        self.set_patience(Some(DOUBT))?;
        let read = self.read();
        self.set_patience(patience)?;
        if is_timeout(&read)
            && let Some(failure) = self.stranger()
        {
            return Err(failure);
        }
        Ok(read)
    }

    /// Returns a failure that names the program that listens in the place of a switch; `None` if
    /// the program is not recognised.
    fn stranger(&mut self) -> Option<Failure> {
        let path = self.unproven.clone()?;
        let what = foreign::recognise(&path, (self.socket.get_ref(), &self.message), entries)?;
        Some(Failure::no_switch(what))
    }

    /// Reads more of the message that is arriving.
    fn read(&mut self) -> io::Result<()> {
        let most = MAX_MESSAGE.saturating_sub(self.message.len() as u64);
        (&mut self.socket).take(most).read_until(0, &mut self.message).map(|_| ())
    }

    fn parse<A: DeserializeOwned>(&mut self, read: io::Result<()>) -> Result<(A, bool), Failure> {
        if self.message.last() != Some(&0)
            && !is_timeout(&read)
            && let Some(failure) = self.stranger()
        {
            return Err(failure);
        }
        read.map_err(|error| Failure::silence(Some(&error)))?;
        let mut message = std::mem::take(&mut self.message);
        if message.pop() != Some(0) {
            return Err(Failure::silence(None));
        }
        let Ok(mut answer) = serde_json::from_slice::<Value>(&message) else {
            return Err(Failure::silence(None));
        };
        self.unproven = None;
        if answer["error"].is_string() {
            return Err(Failure::answered(answer));
        }
        let continues = answer["continues"] == true;
        let parameters = answer.get_mut("parameters").map_or_else(|| json!({}), Value::take);
        match serde_json::from_value(parameters) {
            Ok(parameters) => Ok((parameters, continues)),
            Err(_) => Err(Failure::other_version()),
        }
    }
}

/// True if the read timed out.
fn is_timeout(read: &io::Result<()>) -> bool {
    read.as_ref().is_err_and(|error| matches!(error.kind(), WouldBlock | TimedOut))
}

/// Asks the switch at a control socket for its entries; see [`foreign::AskEntries`].
fn entries(control: &Path, each: &mut dyn FnMut(&[ConfigEntry]) -> bool) -> Result<(), Failure> {
    Client::to_ask(control)?.parts(&GetConfig {}, |part| each(&part.entries))
}
