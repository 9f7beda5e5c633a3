//! Why a server did not do what it was asked, and what to do about it.

use std::error::Error as _;
use std::io;

use redis::{ErrorKind, RedisError};

use super::Finding;

/// The finding that a server cannot be used.
pub(super) fn unreachable(error: &RedisError) -> Finding {
    Finding::fail("reachable", words(error)).with_advice(way_out(error))
}

/// An error with what to do about it, for a line of a log.
pub(crate) fn in_full(error: &RedisError) -> String {
    format!("{}; {}", words(error).trim_end_matches('.'), way_out(error))
}

/// That sentinels know no primary of a name, and what to do about it.
pub(crate) fn unknown_primary(name: &str) -> (String, &'static str) {
    let way_out = "correct the name at the end of the URL, or the sentinels' `sentinel monitor`";
    (format!("no primary is called `{name}`"), way_out)
}

/// An error in a few words, none of which is a secret.
pub(crate) fn words(error: &RedisError) -> String {
    match error.code() {
        Some(code) => format!("{code} {}", error.detail().unwrap_or_default()).trim_end().to_owned(),
        None if error.kind() == ErrorKind::AuthenticationFailed => {
            "the user or the password is wrong".to_owned()
        }
        None if error.is_timeout() => "no answer in time".to_owned(),
        None if error.is_connection_refusal() => "connection refused".to_owned(),
        None if error.kind() == ErrorKind::Parse => "what answers there is not Redis".to_owned(),
        None => error.to_string(),
    }
}

/// What to do about an error.
pub(crate) fn way_out(error: &RedisError) -> &'static str {
    if let Some(code) = error.code() {
        // A command that the user may not run within a script is an ERR. Redis 7.0 says "can't run this command", later
        // ones and Valkey "ACL failure in script".
        let is_forbidden = |detail: &str| detail.contains("can't run") || detail.contains("ACL failure");
        let forbidden = error.detail().is_some_and(is_forbidden);
        return by_code(if forbidden { "NOPERM" } else { code });
    }
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(_)) => {
            return "the server's certificate is not trusted or not for this name; name the authority that signed it";
        }
        Some(_) => {
            return "use rediss:// only where the port speaks TLS, and show a certificate if it asks for one";
        }
        None => {}
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => "correct user and password: redis://USER:PASSWORD@HOST:PORT",
        ErrorKind::Parse => "correct host and port; use rediss:// where the port speaks TLS",
        _ if error.is_timeout() => {
            "see that host and port are right, that rediss:// meets TLS, that nothing drops packets"
        }
        _ if error.is_connection_refusal() => "start Redis there, or correct host and port",
        _ if error.is_connection_dropped() => "use rediss:// where the port speaks TLS; see the server's log",
        _ => "correct host and port, and see the server's log",
    }
}

/// What to do about what the server said, by the first word of it.
fn by_code(code: &str) -> &'static str {
    match code {
        "NOAUTH" => "give a password: redis://:PASSWORD@HOST:PORT",
        "WRONGPASS" => "correct user and password: redis://USER:PASSWORD@HOST:PORT",
        "NOPERM" => {
            "permit our keys and commands: ~PREFIX:* +@read +@write +@scripting +@connection +time +info"
        }
        "READONLY" => "this is a replica; name the primary",
        "OOM" => "memory is full; raise maxmemory, or remove what others keep there",
        "NOREPLICAS" => "too few replicas are connected; bring them back, or lower min-replicas-to-write",
        "MISCONF" => "snapshots fail and so writes are refused; make room on the disk, see the server's log",
        "LOADING" => "it is reading its data set; wait until it has",
        "BUSY" => "another script has run for too long; end it with SCRIPT KILL",
        "MASTERDOWN" => "this is a replica without its primary; name the primary",
        "CLUSTERDOWN" | "MOVED" | "ASK" | "CROSSSLOT" => {
            "this is a node of a Cluster; name the Cluster: redis-cluster://HOST:PORT"
        }
        _ => "see the server's log",
    }
}

/// The TLS error at the bottom of another.
fn tls_error(error: &RedisError) -> Option<&rustls::Error> {
    let error = error.source()?;
    let error = error.downcast_ref::<io::Error>()?;
    error.get_ref()?.downcast_ref()
}
