//! What the suites share: an independent model of the semantics, and traces to compare stores with it.

pub mod model;
pub mod trace;
