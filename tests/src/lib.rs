//! What the suites share: an independent model of the semantics, traces to compare stores with it, and servers to
//! break.

pub mod certificates;
pub mod fault_proxy;
pub mod model;
pub mod poll;
pub mod ports;
pub mod postgres;
pub mod random;
pub mod redis_cluster;
pub mod redis_server;
pub mod rows;
pub mod scratch;
pub mod sentinels;
pub mod signals;
pub mod token;
pub mod trace;
