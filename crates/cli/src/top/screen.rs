//! The terminal while somebody watches: taken over at the start, given back whatever happens.

use std::io;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{self, MissedTickBehavior};

use super::view::View;
use super::{Client, Watched};

/// How often the thread that reads keys looks whether anybody still wants them.
const GLANCE: Duration = Duration::from_millis(250);

/// What somebody at the keyboard wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Quit,
    Redraw,
}

/// Shows the server until somebody quits or a signal comes. A server that goes away is said, and asked again.
///
/// # Errors
///
/// The server cannot be asked to begin with, or the terminal is none.
pub(super) async fn watch(client: &Client, interval: Duration) -> anyhow::Result<()> {
    let mut watched = Watched::begin(client).await?;
    let signals = Signals::catch().context("cannot catch signals")?;
    let mut screen = Screen::take()?;
    let mut wishes = Wishes { keys: keys(), signals };
    let mut ticks = time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await; // the first is at once, and that look has been had
    loop {
        screen.show(&watched)?;
        let look = async {
            ticks.tick().await;
            client.stats().await
        };
        tokio::select! {
            seen = look => watched.update(seen),
            wish = wishes.next() => if wish == Wish::Quit { return Ok(()) },
        }
    }
}

/// What is wished at the keyboard or by a signal.
struct Wishes {
    keys: Receiver<Wish>,
    signals: Signals,
}

impl Wishes {
    /// The next one. A keyboard that is gone wants to quit.
    async fn next(&mut self) -> Wish {
        tokio::select! {
            wish = self.keys.recv() => wish.unwrap_or(Wish::Quit),
            () = self.signals.any() => Wish::Quit,
        }
    }
}

/// Whatever would end the program with the terminal as it is.
struct Signals([Signal; 3]);

impl Signals {
    fn catch() -> io::Result<Self> {
        let [terminate, hangup, interrupt] =
            [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()].map(signal);
        Ok(Signals([terminate?, hangup?, interrupt?]))
    }

    async fn any(&mut self) {
        let [terminate, hangup, interrupt] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

/// The terminal, which is given back when this is dropped, and before a panic is told.
struct Screen(DefaultTerminal);

impl Screen {
    fn take() -> anyhow::Result<Self> {
        let taken = ratatui::try_init();
        if taken.is_err() {
            ratatui::restore(); // it may have been taken half-way
        }
        taken.map(Screen).context("this is no terminal to draw on; --once prints what there is to see")
    }

    fn show(&mut self, watched: &Watched) -> io::Result<()> {
        self.0.draw(|frame| frame.render_widget(&View::of(watched), frame.area()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Reads keys on a thread of its own: reading them waits.
fn keys() -> Receiver<Wish> {
    let (sender, receiver) = mpsc::channel(8);
    thread::spawn(move || while !sender.is_closed() && read(&sender).is_ok() {});
    receiver
}

fn read(sender: &Sender<Wish>) -> io::Result<()> {
    if !event::poll(GLANCE)? {
        return Ok(());
    }
    let wish = match event::read()? {
        Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
            KeyCode::Char('q') | KeyCode::Esc => Wish::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Wish::Quit,
            _ => return Ok(()),
        },
        Event::Resize(..) => Wish::Redraw,
        _ => return Ok(()),
    };
    sender.blocking_send(wish).map_err(io::Error::other)
}
