//! The client's address, behind proxies that are trusted to say it.

use std::net::{IpAddr, SocketAddr};

use http::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use serde::Deserialize;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The most proxies that are followed: a client may fill the rest of the header with their addresses.
const MAX_HOPS: usize = 32;

/// The header in which proxies say for whom they speak.
///
/// There is one, not whichever is found: a proxy that writes one hands the other on as the client sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardingHeader {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`
    #[default]
    XForwardedFor,
    /// `Forwarded: for="[2001:db8::7]:4711";proto=https, for=10.0.0.2` (RFC 7239)
    Forwarded,
}

/// Who is trusted, and what they write.
#[derive(Debug, Clone, Default)]
pub(super) struct Proxies {
    networks: Vec<IpNet>,
    header: ForwardingHeader,
    /// Whether proxies on this machine are trusted, where no others are.
    or_local: bool,
}

impl Proxies {
    pub(super) fn trust(&mut self, networks: impl IntoIterator<Item = IpNet>) {
        self.networks.extend(networks);
    }

    pub(super) const fn read(&mut self, header: ForwardingHeader) {
        self.header = header;
    }

    pub(super) const fn or_trust_local(&mut self) {
        self.or_local = true;
    }

    /// Whether a peer's forwarding headers are believed.
    pub(super) fn trust_peer(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusts(peer) || self.only_local() && peer.is_loopback()
    }

    const fn only_local(&self) -> bool {
        self.or_local && self.networks.is_empty()
    }

    /// Whom a peer speaks for: from the right for as long as the one who speaks is trusted and can be read.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        if !self.trust_peer(client) {
            return client;
        }
        if self.only_local() {
            // One hop: clients on this machine are no proxies.
            return self.entries(headers).next().flatten().unwrap_or(client);
        }
        for said in self.entries(headers).take(MAX_HOPS) {
            match said {
                Some(address) => client = address,
                None => break,
            }
            if !self.trusts(client) {
                break;
            }
        }
        client
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// The addresses of the header from the right; `None` stands for what is none.
    fn entries(&self, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let (name, read): (_, fn(&str) -> Option<IpAddr>) = match self.header {
            ForwardingHeader::XForwardedFor => (X_FORWARDED_FOR, address),
            ForwardingHeader::Forwarded => (FORWARDED, forwarded_for),
        };
        let lines: Vec<&HeaderValue> = headers.get_all(name).iter().collect();
        let entries = lines.into_iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
        entries.map(move |entry| read(std::str::from_utf8(entry).ok()?))
    }
}

/// `203.0.113.7`, `203.0.113.7:80`, `2001:db8::7`, `[2001:db8::7]`, `[2001:db8::7]:80`
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().or_else(|_| text.parse().map(|address: SocketAddr| address.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

/// The `for` of one element. A quoted comma cuts it in two, and neither half is one: that ends the reading.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, node) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
    let node = node.trim();
    address(node.strip_prefix('"').and_then(|node| node.strip_suffix('"')).unwrap_or(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whom a peer speaks for, behind proxies in 10/8 and 2001:db8:ff::/48.
    fn client(peer: &str, header: ForwardingHeader, lines: &[&str]) -> String {
        let mut proxies = Proxies::default();
        proxies.trust(["10.0.0.0/8", "2001:db8:ff::/48"].map(|network| network.parse().unwrap()));
        proxies.read(header);
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(X_FORWARDED_FOR, HeaderValue::from_bytes(line.as_bytes()).unwrap());
            headers.append(FORWARDED, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        proxies.client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn the_header_counts_only_from_trusted_proxies_and_from_the_right() {
        for (peer, lines, expected) in [
            ("203.0.113.9", &["1.1.1.1"][..], "203.0.113.9"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", &["9.9.9.9, 1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", &["9.9.9.9, 1.1.1.1, 10.0.0.2"], "1.1.1.1"),
            ("10.0.0.1", &["9.9.9.9", "1.1.1.1, 10.0.0.2", "10.0.0.3"], "1.1.1.1"),
            ("::ffff:10.0.0.1", &["::ffff:1.1.1.1"], "1.1.1.1"),
            ("2001:db8:ff::1", &["2001:db8::7"], "2001:db8::7"),
            ("10.0.0.1", &["10.0.0.4,10.0.0.3,10.0.0.2"], "10.0.0.4"),
        ] {
            assert_eq!(client(peer, ForwardingHeader::XForwardedFor, lines), expected, "{peer} {lines:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_ends_it_there() {
        for line in [
            "1.1.1.1, unknown, 10.0.0.2",
            "1.1.1.1, , 10.0.0.2",
            "1.1.1.1, 010.0.0.3, 10.0.0.2",
            "1.1.1.1, 10.0.0.256, 10.0.0.2",
            "1.1.1.1, [10.0.0.3, 10.0.0.2",
            "1.1.1.1, 10.0.0.3:99999, 10.0.0.2",
            "1.1.1.1, ä, 10.0.0.2",
        ] {
            assert_eq!(client("10.0.0.1", ForwardingHeader::XForwardedFor, &[line]), "10.0.0.2", "{line}");
        }
    }

    #[test]
    fn an_address_may_have_a_port_and_brackets() {
        for text in ["2001:db8::7", "[2001:db8::7]", "[2001:db8::7]:80", " 2001:DB8:0::7 "] {
            assert_eq!(address(text), "2001:db8::7".parse().ok(), "{text}");
        }
        assert_eq!(address("203.0.113.7:80"), "203.0.113.7".parse().ok());
    }

    #[test]
    fn forwarded_is_read_as_rfc_7239_writes_it_and_only_where_it_is_chosen() {
        for (line, expected) in [
            ("for=1.1.1.1", "1.1.1.1"),
            ("For=\"[2001:db8::7]:4711\";proto=https", "2001:db8::7"),
            ("for=9.9.9.9, by=10.0.0.1; FOR=\"1.1.1.1:80\" ;host=x", "1.1.1.1"),
            ("for=1.1.1.1, for=unknown, for=10.0.0.2", "10.0.0.2"),
            ("for=1.1.1.1, for=_hidden", "10.0.0.1"),
            ("for=\"1.1.1.1, for=10.0.0.2", "10.0.0.2"),
            ("1.1.1.1", "10.0.0.1"),
        ] {
            assert_eq!(client("10.0.0.1", ForwardingHeader::Forwarded, &[line]), expected, "{line}");
        }
        assert_eq!(client("10.0.0.1", ForwardingHeader::XForwardedFor, &["for=1.1.1.1"]), "10.0.0.1");
    }

    #[test]
    fn a_proxy_on_this_machine_is_believed_for_one_hop_where_nobody_else_is_named() {
        let mut proxies = Proxies::default();
        proxies.or_trust_local();
        let mut headers = HeaderMap::new();
        headers.append(X_FORWARDED_FOR, HeaderValue::from_static("9.9.9.9, 127.0.0.1"));
        let client =
            |proxies: &Proxies, peer: &str| proxies.client(peer.parse().unwrap(), &headers).to_string();
        assert_eq!(client(&proxies, "::1"), "127.0.0.1", "a local client cannot be somebody else");
        assert_eq!(client(&proxies, "203.0.113.9"), "203.0.113.9");
        assert!(proxies.trust_peer("::ffff:127.0.0.1".parse().unwrap()));
        proxies.trust(["10.0.0.0/8".parse().unwrap()]);
        assert!(!proxies.trust_peer("127.0.0.1".parse().unwrap()), "named ones are all there are");
        assert_eq!(client(&proxies, "127.0.0.1"), "127.0.0.1");
    }

    #[test]
    fn a_header_full_of_proxies_is_not_followed_for_ever() {
        let line = format!("1.1.1.1{}", ", 10.0.0.2".repeat(1_000));
        assert_eq!(client("10.0.0.1", ForwardingHeader::XForwardedFor, &[&line]), "10.0.0.2");
    }
}
