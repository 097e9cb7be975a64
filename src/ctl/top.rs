//! `vioswitchctl top`: shows ports, workers and drops on a screen that renews itself.
//!
//! * [`model`] computes rates from two readings of the switch;
//! * [`view`] draws the model.

mod model;
mod view;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::wire::GetStatus;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::client::Client;
use crate::failure::Failure;
use crate::{details, look};
use model::{Model, Sort};

/// Longest time until a signal is noticed.
const STEP: Duration = Duration::from_millis(200);
/// Longest time that `top` waits for a restarting switch.
const RESTART: Duration = Duration::from_secs(10);

/// Runs until the user ends the program, or the switch has ended and no switch takes its place.
pub fn run(path: &Path, every: Duration) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let text = "top needs a terminal; use vioswitchctl stats --watch instead";
        return Err(Failure::usage(text.to_owned()));
    }
    // The connection comes before the screen, so that a failure to connect is a line.
    let mut client = Some(Client::connect(path)?);
    let mut model = Model::default();
    look_again(&mut client, path, &mut model);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in signal_hook::consts::TERM_SIGNALS {
        let registered = signal_hook::flag::register(*signal, Arc::clone(&stop));
        registered.map_err(|error| cannot(&error))?;
    }
    // `try_init` also has the screen restored if the program panics.
    let mut terminal = ratatui::try_init().map_err(|error| cannot(&error))?;
    let ended = (|| {
        let mut next = Instant::now() + every;
        let mut seen = Instant::now();
        while !stop.load(Ordering::Relaxed) && !has_hung_up() {
            terminal.draw(|frame| view::draw(frame, &mut model))?;
            let wait = next.saturating_duration_since(Instant::now()).min(STEP);
            if event::poll(wait)? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        if press(&mut model, key) {
                            return Ok(true);
                        }
                        if model.detail.is_some() {
                            look_closely(&mut client, &mut model);
                        }
                    }
                    _ => {}
                }
            }
            if Instant::now() >= next {
                next = Instant::now() + every;
                look_again(&mut client, path, &mut model);
            }
            match &client {
                Some(_) => seen = Instant::now(),
                None if seen.elapsed() >= RESTART => return Ok(false),
                None => {}
            }
        }
        Ok(true)
    })();
    ratatui::restore();
    match ended.map_err(|error: io::Error| cannot(&error))? {
        true => Ok(()),
        false => Err(Failure::ended(path, RESTART)),
    }
}

/// True if the terminal is gone. With SIGHUP ignored, as after nohup(1), no signal ends the
/// program.
fn has_hung_up() -> bool {
    let stdin = io::stdin();
    let mut waits = [PollFd::new(&stdin, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = rustix::event::poll(&mut waits, Some(&now)).is_ok();
    ready && waits[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn cannot(error: &io::Error) -> Failure {
    Failure::refused(format!("the terminal cannot be used: {error}"))
}

/// Asks the switch for all data of the screen. Connects again if the switch has gone.
fn look_again(client: &mut Option<Client>, path: &Path, model: &mut Model) {
    if client.is_none() {
        *client = Client::connect(path).ok();
    }
    let Some(there) = client.as_mut() else { return };
    let looked = look::stats(there).and_then(|all| Ok((all, there.call(&GetStatus {})?)));
    match looked {
        Ok((all, status)) => {
            (model.failure, model.status) = (None, status);
            model.update(all, Instant::now());
            look_closely(client, model);
        }
        Err(failure) => {
            model.failure = Some(failure.text);
            *client = None;
        }
    }
}

/// Asks for the details of the port that is shown alone.
fn look_closely(client: &mut Option<Client>, model: &mut Model) {
    let (Some(client), Some(detail)) = (client.as_mut(), model.detail.as_mut()) else { return };
    let answer = look::port(client, &detail.name, false);
    detail.text = answer.map_or_else(|failure| failure.text, |answer| details::show(&answer));
}

/// Carries out the meaning of a key. Returns true if the key ends the program.
fn press(model: &mut Model, key: KeyEvent) -> bool {
    if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
        return true;
    }
    if model.typing {
        match key.code {
            KeyCode::Enter => model.typing = false,
            KeyCode::Esc => model.clear_filter(),
            KeyCode::Backspace => model.erase(),
            KeyCode::Char(c) => model.type_in(c),
            _ => {}
        }
        return false;
    }
    match key.code {
        KeyCode::Char('q') => return true,
        KeyCode::Esc if model.detail.take().is_none() => model.clear_filter(),
        KeyCode::Enter if model.detail.is_none() => model.open(),
        KeyCode::Enter => model.detail = None,
        KeyCode::Up | KeyCode::Char('k') => model.step(-1),
        KeyCode::Down | KeyCode::Char('j') => model.step(1),
        KeyCode::PageUp => model.step(-10),
        KeyCode::PageDown => model.step(10),
        KeyCode::Char('/') => (model.typing, model.detail) = (true, None),
        KeyCode::Char(key) => {
            if let Some(sort) = Sort::by_key(key) {
                model.sort = sort;
                model.arrange();
            }
        }
        _ => {}
    }
    false
}
