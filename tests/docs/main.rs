//! The documentation, tried out: rules parse, commands print what is pasted, links lead somewhere.
//!
//! The Rust snippets of the README and the guide are doctests of the crates they are about. Everything else is here:
//!
//! ```text
//! yaml       a rules file
//! jsonl      lines of a trace
//! console    commands behind `$ ` and what they print; `…` stands for anything, on a line of its own for any lines
//! sh         a block to paste; the README's is pasted
//! sql        statements, run in order on a fresh database of the page's own
//! ```
//!
//! `TOLLGATE_BLESS=1` writes what the commands print into the pages, where no `…` stands; read the diff.

mod console;
mod markdown;
mod program;

use std::fs;
use std::path::Path;
use std::process::Command;

use sqlx::AssertSqlSafe;
use tollgate::replay::Event;
use tollgate::rules;
use tollgate::sql::{Database, Pool};

use markdown::Page;
use program::{Server, root};

/// Pages whose Rust snippets are doctests, in the `lib.rs` of `crates/tollgate` and `crates/tower`.
const WITH_DOCTESTS: [&str; 8] = [
    "README.md",
    "docs/guide/axum.md",
    "docs/guide/library.md",
    "docs/guide/login.md",
    "docs/guide/plans.md",
    "docs/guide/rules-in-a-database.md",
    "docs/guide/tokens.md",
    "docs/guide/violations.md",
];

#[test]
fn every_rules_file_in_the_docs_is_one() {
    let mut seen = 0;
    for page in Page::all() {
        for block in page.blocks("yaml") {
            let place = page.place(block.first);
            seen += 1;
            if let Err(error) = rules::parse(&place, &block.text()) {
                panic!("{place}: {error}");
            }
        }
    }
    assert!(seen > 5, "only {seen} snippets were found");
}

/// A row of the page is a promise; the test that it names keeps it.
#[test]
fn every_test_that_the_page_of_faults_names_is_there() {
    let page = fs::read_to_string(root().join("docs/operating/faults.md")).expect("the page is there");
    let mut code = String::new();
    for folder in ["crates", "tests"] {
        gather(&root().join(folder), &mut code);
    }
    let words = page.split('`').skip(1).step_by(2);
    let named: Vec<&str> = words.filter(|word| word.split('_').count() > 3 && !word.contains(' ')).collect();
    assert!(named.len() > 20, "only {} tests are named", named.len());
    for name in named {
        assert!(code.contains(&format!("fn {name}(")), "docs/operating/faults.md: there is no test `{name}`");
    }
}

/// All Rust below a folder.
fn gather(folder: &Path, code: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") && !path.ends_with("node_modules") {
            gather(&path, code);
        } else if path.extension().is_some_and(|end| end == "rs") {
            code.push_str(&fs::read_to_string(&path).expect("a file of ours is text"));
        }
    }
}

#[test]
fn every_trace_in_the_docs_is_one() {
    let mut seen = 0;
    for page in Page::all() {
        for block in page.blocks("jsonl") {
            for (at, line) in (block.first..).zip(&block.lines) {
                seen += 1;
                if let Err(error) = Event::parse(line.as_bytes()) {
                    panic!("{}: {error}", page.place(at));
                }
            }
        }
    }
    assert!(seen > 0, "no trace was found");
}

#[tokio::test]
async fn every_statement_in_the_docs_runs_on_a_fresh_database() {
    for page in Page::all() {
        let scratch = program::Scratch::new();
        let database = scratch.0.join("docs.db");
        let database = Database::open(&format!("sqlite://{}", database.display())).await.expect("a new file");
        let Pool::Sqlite(pool) = database.pool() else { unreachable!("opened as SQLite") };
        for block in page.blocks("sql") {
            let sql = sqlx::raw_sql(AssertSqlSafe(block.lines.join("\n")));
            sql.execute(pool).await.unwrap_or_else(|error| panic!("{}: {error}", page.place(block.first)));
        }
        database.close().await;
    }
}

#[test]
fn every_rust_snippet_is_compiled() {
    for page in Page::all() {
        for block in page.blocks("rust") {
            assert!(
                WITH_DOCTESTS.contains(&&*page.name()),
                "{}: nobody compiles this; include the page in a crate's `Snippets`",
                page.place(block.first)
            );
        }
    }
}

#[test]
fn every_block_says_what_it_is() {
    let known = [
        "",
        "caddyfile",
        "console",
        "haproxy",
        "json",
        "jsonl",
        "lua",
        "nginx",
        "rust",
        "sh",
        "sql",
        "text",
        "toml",
        "yaml",
    ];
    for page in Page::all() {
        for block in page.all_blocks() {
            let place = page.place(block.first);
            assert!(known.contains(&&*block.language), "{place}: what is `{}`?", block.language);
            let compiled = WITH_DOCTESTS.contains(&&*page.name()) && block.language.is_empty();
            assert!(!compiled, "{place}: a doctest takes this for Rust; write ```text");
        }
    }
}

#[test]
fn every_link_leads_somewhere() {
    let pages = Page::all();
    for page in &pages {
        for (at, link) in page.links() {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.path.clone(),
                file => page.path.parent().unwrap_or(Path::new("")).join(file),
            };
            let place = page.place(at);
            let found = target.canonicalize().unwrap_or_else(|_| panic!("{place}: nothing is at `{file}`"));
            if !heading.is_empty() {
                let other = Page::read(&found);
                assert!(other.anchors().any(|anchor| anchor == heading), "{place}: no heading `#{heading}`");
            }
        }
    }
}

#[tokio::test]
async fn every_command_prints_what_is_pasted() {
    let mut seen = 0;
    for page in Page::all() {
        seen += console::try_out(page).await;
    }
    assert!(seen > 10, "only {seen} commands were found");
}

#[tokio::test]
async fn the_block_to_paste_ends_in_a_429_with_every_header() {
    let readme = Page::read(&root().join("README.md"));
    let blocks = readme.blocks("sh");
    let block = blocks.first().expect("the README has a block to paste").text();
    let (start, requests) = block.split_once("\n\n").expect("the server, an empty line, the requests");
    assert!(start.starts_with("cargo run --release"), "the block starts the server: {start}");

    let server = Server::start(&[], &root()).await;
    let output = Command::new("bash")
        .args(["-c", &server.here(requests)])
        .output()
        .expect("bash starts; the Debian package is `bash`");
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let statuses: Vec<&str> = text.lines().filter(|line| line.starts_with("HTTP/1.1 ")).collect();
    assert_eq!(statuses.last(), Some(&"HTTP/1.1 429 Too Many Requests"), "{text}\nis `curl` installed?");
    assert_eq!(statuses.first(), Some(&"HTTP/1.1 200 OK"), "{text}");
    let last = text.rsplit("HTTP/1.1 ").next().unwrap_or_default();
    for name in [
        "x-ratelimit-limit: 50",
        "x-ratelimit-remaining: ",
        "x-ratelimit-reset: ",
        "ratelimit-policy: ",
        "ratelimit: ",
        "retry-after: ",
    ] {
        assert!(last.contains(&format!("\n{name}")), "no `{name}` in {last}");
    }
    assert!(last.contains("\"violated_rule\":\"per-user-free\""), "{last}");
}
