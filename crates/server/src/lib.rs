//! tollgate as a service.
//!
//! ```text
//! accept -> http (bytes to a Descriptor) -> Limiter -> http (a Decision to status, headers and body)
//! ```
//!
//! [`Server::bind`] opens the listeners, [`Server::run`] serves until it is told to stop and then finishes what is
//! in flight. What was decided is remembered for a while in `record`. What arrives on the wire has its own types in
//! `http`; they become core types there and nowhere else.

pub mod api;

mod http;
mod in_process;
mod listen;
mod record;
mod reload;
mod server;
mod telemetry;

pub use http::{Access, App, RulesHome, TokenError, Tokens};
pub use in_process::InProcess;
pub use listen::{Endpoint, ListenerLimits, TlsError, TlsFiles};
pub use server::{Config, Server, ServerError};
pub use telemetry::{Adopt, Observe};
