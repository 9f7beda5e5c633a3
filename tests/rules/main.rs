//! Rules in files and databases: tables, conversion, live changes, history.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod book;
mod drafts;
mod follow;
mod numbers;
mod odd_rows;
mod outages;
mod server;
mod tables;
