//! `tollgate top`: a running server, live.
//!
//! Each frame is printed over the last one. Lines are cut or wrapped at the width of the terminal.

mod view;

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::builder::FalseyValueParser;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{self, MissedTickBehavior};
use tollgate_server::api::Stats;

use crate::client::{Client, Plane, ServerArgs};
use crate::terminal::Terminal;
use view::{Line, lines};

/// The width of a frame that is printed once.
const PRINTED_WIDTH: usize = 100;
/// What Ctrl-C and Esc send.
const CTRL_C: u8 = 0x03;
const ESC: u8 = 0x1b;
/// The alternate screen, without a cursor and without wrapping of long lines; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

#[derive(Debug, clap::Args)]
#[command(after_help = "q, Esc or Ctrl-C quits.")]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// How many seconds to wait before the next frame
    #[arg(long, value_name = "SECONDS", env = "TOLLGATE_INTERVAL", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print one frame as text
    #[arg(long, env = "TOLLGATE_ONCE", value_parser = FalseyValueParser::new())]
    once: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = args.server.client(Plane::Admin)?;
    // On this thread alone: it holds standard output.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut watched = Watched::new(&client).await?;
        if args.once {
            for line in lines(&watched, PRINTED_WIDTH, usize::MAX) {
                writeln!(terminal.out(), "{}", line.text)?;
            }
            return anyhow::Ok(());
        }
        watch(&mut watched, &client, args.interval, terminal).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A server as it was last seen.
#[derive(Debug)]
struct Watched {
    server: String,
    stats: Stats,
    /// Why the last request for its statistics failed.
    error: Option<String>,
}

impl Watched {
    async fn new(client: &Client) -> anyhow::Result<Self> {
        Ok(Watched { server: client.shown().to_owned(), stats: client.get("/v1/stats").await?, error: None })
    }

    fn update(&mut self, stats: anyhow::Result<Stats>) {
        match stats {
            Ok(stats) => (self.stats, self.error) = (stats, None),
            Err(error) => self.error = Some(format!("{error:#}")),
        }
    }
}

/// Redraws the screen at every interval, until a key or a signal ends it.
async fn watch(
    watched: &mut Watched,
    client: &Client,
    interval: Duration,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let mut signals = Signals::new().context("cannot handle signals")?;
    let screen = Screen::enter()?;
    let mut quit = quit_key();
    let mut ticks = time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await; // the first is immediate, and that frame is there already
    loop {
        screen.draw(watched, terminal)?;
        let stats = async {
            ticks.tick().await;
            client.get("/v1/stats").await
        };
        tokio::select! {
            stats = stats => watched.update(stats),
            _ = &mut quit => return Ok(()),
            event = signals.next() => if event == Event::Quit { return Ok(()) },
        }
    }
}

/// The terminal in use. Dropping this restores it.
struct Screen {
    modes: Termios,
}

impl Screen {
    /// Switches to the alternate screen, and to keys that are read one by one and not echoed.
    fn enter() -> anyhow::Result<Self> {
        let not_a_terminal = "this is not a terminal; --once prints one frame as text";
        ensure!(io::stdout().is_terminal(), not_a_terminal);
        let modes = tcgetattr(io::stdin()).context(not_a_terminal)?;
        let mut keys = modes.clone();
        keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        keys.special_codes[SpecialCodeIndex::VMIN] = 1;
        let screen = Screen { modes };
        tcsetattr(io::stdin(), OptionalActions::Now, &keys)?;
        io::stdout().write_all(ENTER.as_bytes())?;
        Ok(screen)
    }

    fn draw(&self, watched: &Watched, terminal: &mut Terminal) -> anyhow::Result<()> {
        let size = tcgetwinsize(io::stdin())?;
        let (width, height) = (usize::from(size.ws_col).max(1), usize::from(size.ws_row).max(1));
        let lines = lines(watched, width, height);
        let mut frame = String::from("\x1b[H");
        for row in 0..height {
            // Each row is erased before it is written: after a full one, the cursor is on its last character.
            frame.push_str(if row == 0 { "\x1b[K" } else { "\r\n\x1b[K" });
            match lines.get(row) {
                Some(Line { tone: Some(tone), text }) => frame.push_str(&terminal.paint(*tone, text)),
                Some(Line { tone: None, text }) => frame.push_str(text),
                None => {}
            }
        }
        terminal.out().write_all(frame.as_bytes())?;
        Ok(terminal.out().flush()?)
    }
}

/// Completes when a key that quits is pressed, or the keyboard is gone. Reading keys blocks, so a thread does it; it ends
/// with the process.
fn quit_key() -> oneshot::Receiver<()> {
    let (quit, pressed) = oneshot::channel();
    thread::spawn(move || {
        let mut keys = [0; 64];
        loop {
            let count = io::stdin().read(&mut keys).unwrap_or(0);
            // Other special keys send Esc and more.
            let keys = &keys[..count];
            if keys.is_empty() || keys == [ESC] || keys.iter().any(|key| [b'q', CTRL_C].contains(key)) {
                return quit.send(());
            }
        }
    });
    pressed
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that is gone.
        let _ = io::stdout().write_all(LEAVE.as_bytes()).and_then(|()| io::stdout().flush());
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.modes);
    }
}

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Quit,
    Redraw,
}

/// The signals that end the program, and the one for a resized terminal.
struct Signals([Signal; 4]);

impl Signals {
    fn new() -> io::Result<Self> {
        let [terminate, hangup, interrupt, resize] = [
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::window_change(),
        ]
        .map(signal);
        Ok(Signals([terminate?, hangup?, interrupt?, resize?]))
    }

    async fn next(&mut self) -> Event {
        let [terminate, hangup, interrupt, resize] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => Event::Quit,
            _ = hangup.recv() => Event::Quit,
            _ = interrupt.recv() => Event::Quit,
            _ = resize.recv() => Event::Redraw,
        }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or_else(|| "expected a number of seconds from 0.1 to 3600".to_owned())?;
    Ok(Duration::from_secs_f64(seconds))
}
