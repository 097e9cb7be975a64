//! A small client of varlink, which waits.

use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::wire::{self, Method, SWITCH};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sys::unix_socket;

use crate::failure::Failure;
use crate::foreign;

/// Longest the switch takes, but for what is waited for longer: deleting a port waits 4 s for a
/// front-end that does not let go.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest message of a switch, with room for those of later versions.
const MAX_MESSAGE: u64 = 16 << 20;

/// How often one who waits for something to happen looks whether to end.
const STEP: Duration = Duration::from_millis(100);

/// How long something that listens may be silent before it is doubted that it is a switch.
const DOUBT: Duration = Duration::from_secs(1);

/// A connection to the switch.
pub struct Client {
    socket: BufReader<UnixStream>,
    /// Bytes of a message so far.
    message: Vec<u8>,
    /// How long an answer is waited for.
    patience: Option<Duration>,
    /// The socket's path until a switch has answered, if what listens there is to be found out.
    unproven: Option<PathBuf>,
}

/// Next part of an answer that goes on as long as something happens.
pub enum Next<A> {
    /// A part; true if another one follows.
    Part(A, bool),
    /// It was not waited for any longer.
    Nothing,
}

impl Client {
    pub fn connect(path: &Path) -> Result<Client, Failure> {
        let socket = UnixStream::connect(path).map_err(|error| Failure::connect(path, &error))?;
        let mut client = Client::with(socket, PATIENCE);
        client.unproven = Some(path.to_owned());
        client.wait_for(Duration::ZERO)?;
        Ok(client)
    }

    /// Connects to a socket that may be a switch's, for a question, and does not wait for it.
    pub fn to_ask(path: &Path) -> Result<Client, Failure> {
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

    /// Has the next answers waited for so much longer.
    pub fn wait_for(&mut self, longer: Duration) -> Result<(), Failure> {
        self.set_patience(Some(PATIENCE + longer))
    }

    fn set_patience(&mut self, patience: Option<Duration>) -> Result<(), Failure> {
        self.patience = patience;
        let socket = self.socket.get_ref();
        let set = socket.set_read_timeout(patience);
        let set = set.and_then(|()| socket.set_write_timeout(Some(PATIENCE)));
        set.map_err(|error| Failure::silence(Some(&error)))
    }

    /// Calls a method; its answer.
    pub fn call<M: Method>(&mut self, request: &M) -> Result<M::Answer, Failure> {
        self.send(request, false)?;
        Ok(self.answer()?.0)
    }

    /// Calls a method that answers in several parts, until no more of it is wanted.
    pub fn parts<M: Method>(
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

    /// The list that a method answers in several parts.
    pub fn list<M: Method, T>(
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

    /// Waits for answers however long they take, or not.
    pub fn be_patient(&mut self, patient: bool) -> Result<(), Failure> {
        self.set_patience((!patient).then_some(PATIENCE))
    }

    /// Calls a method that answers as long as something happens.
    pub fn begin<M: Method>(&mut self, request: &M) -> Result<(), Failure> {
        self.send(request, true)?;
        self.set_patience(Some(STEP))
    }

    /// The next part, waited for until `stop`, and then for a moment: what happened before that
    /// may be on its way.
    pub fn next<A: DeserializeOwned>(&mut self, stop: &AtomicBool) -> Result<Next<A>, Failure> {
        loop {
            let stopped = stop.load(Ordering::Relaxed);
            match self.read() {
                Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => {
                    if stopped {
                        return Ok(Next::Nothing);
                    }
                }
                read => return self.parse(read).map(|(part, more)| Next::Part(part, more)),
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

    /// The parameters of the next answer, and whether another one follows.
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

    /// The first message, waited for until there is reason to doubt that a switch listens.
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

    /// Names the program that listens in the place of a switch, if that can be found out.
    fn stranger(&mut self) -> Option<Failure> {
        let path = self.unproven.clone()?;
        let what = foreign::recognise(&path, self.socket.get_ref(), &self.message)?;
        Some(Failure::no_switch(what))
    }

    /// Goes on with the message that is coming.
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

/// True if nothing came in time.
fn is_timeout(read: &io::Result<()>) -> bool {
    read.as_ref().is_err_and(|error| matches!(error.kind(), WouldBlock | TimedOut))
}
