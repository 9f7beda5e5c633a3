//! `console` blocks: commands behind `$ `, and what they print.

use std::ops::Range;
use std::process::Command;
use std::{env, fs};

use tollgate_tests::postgres::Postgres;
use tollgate_tests::token;

use crate::markdown::{Block, Page};
use crate::program::{Scratch, Server, built, root};

/// Waits are pasted to the millisecond, and a busy machine may lose one between two commands.
const TRIES: usize = 10;
/// Printed between the output of two commands.
const MARK: &str = "--- the next command ---";
/// Numbers and names that are different every time.
const VARYING: [&str; 6] = [
    "\"decision_id\":",
    "\"retry_after_ms\":",
    "\"reset_after_ms\":",
    "x-ratelimit-reset:",
    "content-length:",
    "date:",
];

/// The PostgreSQL that the docs talk to.
const DATABASE: &str = "postgres://tollgate@db.example/limits";

/// A command and what it should print.
struct Exchange {
    command: String,
    output: Vec<String>,
    /// The lines of the output within the page.
    place: Range<usize>,
}

/// Runs the commands of a page, one after the other; answers how many there are.
pub(crate) async fn try_out(mut page: Page) -> usize {
    let blocks: Vec<Vec<Exchange>> = page.blocks("console").iter().map(exchanges).collect();
    let count = blocks.iter().map(Vec::len).sum();
    if count == 0 {
        return 0;
    }
    let bless = env::var_os("TOLLGATE_BLESS").is_some();
    for left in (0..TRIES).rev() {
        let printed = run(&blocks).await;
        let pairs: Vec<(&Exchange, &Vec<String>)> = blocks.iter().flatten().zip(&printed).collect();
        if bless {
            for (exchange, printed) in pairs.iter().rev().filter(|(exchange, _)| !exchange.has_gaps()) {
                page.lines.splice(exchange.place.clone(), printed.iter().cloned());
            }
            fs::write(&page.path, page.lines.join("\n") + "\n").expect("the page is writable");
            break;
        }
        match pairs.into_iter().find(|(exchange, printed)| !fits(&exchange.output, printed)) {
            None => break,
            Some(_) if left > 0 => {}
            Some((exchange, printed)) => panic!(
                "{}: `{}` prints\n{}\n\nand not\n{}",
                page.place(exchange.place.start),
                exchange.command,
                printed.join("\n"),
                exchange.output.join("\n")
            ),
        }
    }
    count
}

/// The commands of a block; a line that begins with `> ` goes on with the command above it.
fn exchanges(block: &Block) -> Vec<Exchange> {
    let mut exchanges: Vec<Exchange> = Vec::new();
    for (at, line) in (block.first..).zip(&block.lines) {
        if let Some(command) = line.strip_prefix("$ ") {
            exchanges.push(Exchange { command: command.into(), output: Vec::new(), place: at + 1..at + 1 });
            continue;
        }
        let exchange = exchanges.last_mut().expect("a console block begins with `$ `");
        match line.strip_prefix("> ").filter(|_| exchange.output.is_empty()) {
            Some(more) => {
                exchange.command = format!("{}\n{more}", exchange.command);
                exchange.place = at + 1..at + 1;
            }
            None => {
                exchange.output.push(line.trim_end().to_owned());
                exchange.place.end = at + 1;
            }
        }
    }
    exchanges
}

impl Exchange {
    fn has_gaps(&self) -> bool {
        self.output.iter().any(|line| line.contains('…'))
    }
}

/// Runs every command in a folder of its own that has the project's examples; a server that is started serves the
/// rest of the page.
async fn run(blocks: &[Vec<Exchange>]) -> Vec<Vec<String>> {
    let scratch = Scratch::new();
    std::os::unix::fs::symlink(root().join("examples"), scratch.0.join("examples")).expect("a link");
    let mut commands = blocks.iter().flatten().map(|exchange| &exchange.command);
    let database = commands.any(|command| command.contains(DATABASE)).then(Postgres::start);
    let url = database.as_ref().map_or_else(|| DATABASE.to_owned(), Postgres::url);
    let mut server = None;
    let mut printed = Vec::new();
    for block in blocks {
        let mut script = String::from(PRELUDE);
        for Exchange { command, .. } in block {
            let command = &command.replace(DATABASE, &url);
            let serve = command.strip_prefix("tollgate serve").and_then(|rest| rest.strip_suffix('&'));
            if let Some(args) = serve {
                let args: Vec<&str> = args.split_whitespace().collect();
                let started = Server::start(&args, &scratch.0).await;
                // The page makes this file once; each of its servers has a token of its own.
                let lines = token::lines(&started.data()).replace('\r', "");
                fs::write(scratch.0.join("admin"), lines).expect("a writable folder");
                server = Some(started);
            }
            let command = match &server {
                _ if serve.is_some() => ":".to_owned(),
                Some(server) => server.here(command),
                None => command.clone(),
            };
            script += &format!("{command}\nstatus=$?; echo '{MARK}'; (exit $status)\n");
        }
        let output = Command::new("bash")
            .args(["-c", &script])
            .env("BUILT", built())
            .env("XDG_DATA_HOME", server.as_ref().map_or_else(|| scratch.0.join("share"), Server::share))
            .current_dir(&scratch.0)
            .output()
            .expect("bash starts; the Debian package is `bash`");
        let text = String::from_utf8_lossy(&output.stdout).replace('\r', "").replace(&url, DATABASE);
        let mut parts = text.split(&format!("{MARK}\n")).map(str::to_owned).collect::<Vec<_>>();
        parts.truncate(block.len());
        assert_eq!(parts.len(), block.len(), "the shell gave up: {text}");
        printed.extend(parts.iter().map(|part| {
            let lines = part.trim_end().lines().map(|line| line.trim_end().to_owned());
            lines.filter(|line| !names_the_source(line)).collect::<Vec<_>>()
        }));
    }
    printed
}

/// Whether a line says where rules or answers come from, which the pages leave out.
fn names_the_source(line: &str) -> bool {
    line.starts_with("asking the server at ") || line.starts_with("no server is running")
}

/// Errors are printed too, everybody is ann, the built programs are found, and an example is run without building it again.
const PRELUDE: &str = r#"
exec 2>&1
unset $(compgen -v TOLLGATE_)
export USER=ann
PATH="$BUILT:$PATH"
cargo() { "$BUILT/examples/${!#}"; }
"#;

/// Whether output is as pasted: gaps aside, and what is different every time.
fn fits(pasted: &[String], printed: &[String]) -> bool {
    match pasted.split_first() {
        None => printed.is_empty(),
        Some((gap, rest)) if gap.trim() == "…" => {
            (0..=printed.len()).any(|from| fits(rest, &printed[from..]))
        }
        Some((line, rest)) => printed
            .split_first()
            .is_some_and(|(first, printed)| line_fits(&steady(line), &steady(first)) && fits(rest, printed)),
    }
}

fn line_fits(pasted: &str, printed: &str) -> bool {
    match pasted.split_once('…') {
        None => pasted == printed,
        Some((before, after)) => printed.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| line_fits(after, &rest[at..]))
        }),
    }
}

/// A line without the values that vary.
fn steady(line: &str) -> String {
    let mut line = line.to_owned();
    for name in VARYING {
        let mut from = 0;
        while let Some(found) = line[from..].find(name) {
            let start = from + found + name.len();
            let end = line[start..].find([',', '}', ']']).filter(|_| name.starts_with('"'));
            let end = end.map_or(line.len(), |end| start + end);
            // Zero and null are no waits and stay what they are.
            if !matches!(&line[start..end], "0" | "null") {
                line.replace_range(start..end, "~");
            }
            from = start;
        }
    }
    line
}
