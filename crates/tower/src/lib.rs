//! The same flow around any tower service: identify, check, respond.
//!
//! ```text
//! request -> Identify (facts) -> Limiter -> allowed: the inner service, and headers on its answer
//!                                        -> refused: 429, 403 or 503, and the inner service hears nothing
//! ```
//!
//! [`TollgateLayer`] goes around services of axum, hyper and tonic. It needs no server: the limiter is in the
//! process, and its buckets are wherever its store keeps them.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::{Limiter, MemoryStore, rules};
//! use tollgate_tower::{Identify, TollgateLayer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = rules::parse("rules.yaml", r#"
//! rules:
//!   - { name: per-user, key: "user:{user_id}", limit: 10/s burst 50 }
//!   - { name: per-address, key: "ip:{ip}", limit: 100/s burst 200 }
//! "#)?;
//! let limiter = Limiter::new(rules, MemoryStore::new());
//! let identify = Identify::new().header("x-user-id", "user_id")?;
//! let app: Router = Router::new()
//!     .route("/search", get(async || "found"))
//!     .layer(TollgateLayer::new(limiter).identify(identify));
//! # drop(app); Ok(()) }
//! ```
//!
//! What surfaces beside the middleware need for the same answers is here too: [`Refusal`] turns a decision into a
//! response, [`Problem`] is the body of errors, [`write_headers`] puts a decision's numbers on any answer.

mod body;
mod counted;
mod future;
mod grpc;
mod headers;
pub mod identify;
mod ids;
mod layer;
mod patience;
mod problem;
mod refusal;
mod reservation;
mod service;

pub use body::ResponseBody;
pub use counted::Counted;
pub use future::ResponseFuture;
pub use headers::write_headers;
pub use identify::{Identify, IdentifyConfig, IdentifyError};
pub use ids::DecisionIds;
pub use layer::TollgateLayer;
pub use patience::MaxWait;
pub use problem::Problem;
pub use refusal::{Protocol, Refusal};
pub use reservation::Reservation;
pub use service::Tollgate;

/// The snippets of the guide, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/axum.md")]
#[doc = include_str!("../../../docs/guide/login.md")]
#[doc = include_str!("../../../docs/guide/tokens.md")]
struct Snippets;
