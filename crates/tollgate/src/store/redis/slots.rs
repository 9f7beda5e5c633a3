//! The slots of a Cluster: which one a key lies in, and who has it.

use redis::Value;

/// How many there are.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of a key: of what stands in its first braces, where something does.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let inside = &key[open + 1..];
        let close = inside.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &inside[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, a bit at a time: what is hashed has four letters.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// Some slots, the address of the primary that has them, and those of its replicas.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) replicas: Vec<(String, u16)>,
}

/// Reads the answer to `CLUSTER SLOTS`, given at a host; none when it is not one.
pub(crate) fn read(answer: &Value, asked: &str) -> Option<Vec<Range>> {
    let Value::Array(ranges) = answer else { return None };
    ranges.iter().map(|range| read_range(range, asked)).collect()
}

fn read_range(range: &Value, asked: &str) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = &parts[..] else { return None };
    let (host, port) = read_node(primary, asked)?;
    let replicas = replicas.iter().filter_map(|replica| read_node(replica, asked)).collect();
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
    Some(Range { first: slot(first)?, last: slot(last)?, host, port, replicas })
}

fn read_node(node: &Value, asked: &str) -> Option<(String, u16)> {
    let Value::Array(facts) = node else { return None };
    let [host, Value::Int(port), ..] = &facts[..] else { return None };
    // A node that does not know its own name is where it was asked.
    let host = match host {
        Value::BulkString(host) if !host.is_empty() && host != b"?" => {
            String::from_utf8(host.clone()).ok()?
        }
        Value::BulkString(_) | Value::Nil => asked.to_owned(),
        _ => return None,
    };
    Some((host, u16::try_from(*port).ok()?))
}

/// The address in a redirection, `host:port`, given by a node at a host.
pub(crate) fn address<'a>(text: &'a str, asked: &'a str) -> Option<(&'a str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((if host.is_empty() { asked } else { host }, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_redis_computes() {
        // As `CLUSTER KEYSLOT` answers.
        assert_eq!(slot(b"123456789"), 12_739);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"tg:{foo}bar"), slot(b"foo"));
        assert_eq!(slot(b"{}foo"), crc16(b"{}foo") % SLOTS);
        assert_eq!(slot(b"a{b"), crc16(b"a{b") % SLOTS);
    }

    #[test]
    fn a_node_without_a_name_is_where_it_was_asked() {
        let text = |text: &str| Value::BulkString(text.into());
        let range = |host| {
            let primary = Value::Array(vec![host, Value::Int(7), text("id")]);
            Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(5), primary])])
        };
        let read_host = |host| read(&range(host), "asked").map(|mut ranges| ranges.remove(0).host);
        assert_eq!(read_host(text("10.0.0.1")).as_deref(), Some("10.0.0.1"));
        assert_eq!(read_host(text("")).as_deref(), Some("asked"));
        assert_eq!(read_host(Value::Nil).as_deref(), Some("asked"));
        assert_eq!(read(&Value::Int(1), "asked"), None);
        let beyond = Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(16_384)])]);
        assert_eq!(read(&beyond, "asked"), None);
        assert_eq!(address("h:7", "asked"), Some(("h", 7)));
        assert_eq!(address(":7", "asked"), Some(("asked", 7)));
        assert_eq!(address("::1:7", "asked"), Some(("::1", 7)));
        assert_eq!(address("h", "asked"), None);
    }
}
