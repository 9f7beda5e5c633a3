//! tollgate as a service.
//!
//! ```text
//! accept -> http (bytes to a Descriptor) -> Limiter -> http (a Decision to status, headers and body)
//! ```
//!
//! [`Server::bind`] opens the listeners, [`Server::run`] serves until it is told to stop and then finishes what is
//! in flight. What was decided is remembered for a while in `record`. What arrives on the wire has its own types in `http`; they become core types there and nowhere else.

mod explain;
mod http;
mod record;
mod server;

pub use explain::{Level, Line, Report};
pub use http::{App, DecisionBody, RulesHome};
pub use server::{Config, Server, ServerError};
