//! The places of a listener: how many connections it serves, in all and from one address.
//!
//! When all places are taken, a few connections more are accepted to answer `GET /livez`, so that a full server is not
//! mistaken for a dead one and restarted. Every other request on them is answered 503.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::ListenerLimits;

/// Connections that are accepted while all places are taken.
const OVERFLOW_PLACES: usize = 16;

/// The free places of a listener.
#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    overflow: Arc<Semaphore>,
    addresses: Option<Arc<Addresses>>,
}

/// What becomes of a new connection.
#[derive(Debug)]
pub(super) enum Admission {
    /// It is served.
    Place(Place),
    /// It is told that the listener is full.
    Overflow(OwnedSemaphorePermit),
    /// It is closed.
    Rejected,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _all: OwnedSemaphorePermit,
    _address: Option<AddressPlace>,
}

impl Places {
    pub(super) fn new(limits: &ListenerLimits) -> Self {
        let addresses = |max| Arc::new(Addresses { max, open: Mutex::default() });
        Places {
            all: Arc::new(Semaphore::new(limits.connections)),
            overflow: Arc::new(Semaphore::new(OVERFLOW_PLACES)),
            addresses: limits.connections_per_address.map(addresses),
        }
    }

    /// Admits a connection; `is_exempt` tells whether its address may have any number of them.
    pub(super) fn admit(&self, address: IpAddr, is_exempt: impl FnOnce(IpAddr) -> bool) -> Admission {
        let address = address.to_canonical();
        let limited = self.addresses.as_ref().filter(|_| !address.is_loopback() && !is_exempt(address));
        let address = match limited.map(|addresses| addresses.place(address)) {
            Some(None) => return Admission::Rejected,
            place => place.flatten(),
        };
        match Arc::clone(&self.all).try_acquire_owned() {
            Ok(all) => Admission::Place(Place { _all: all, _address: address }),
            Err(_) => match Arc::clone(&self.overflow).try_acquire_owned() {
                Ok(overflow) => Admission::Overflow(overflow),
                Err(_) => Admission::Rejected,
            },
        }
    }
}

/// Open connections by client address.
#[derive(Debug)]
struct Addresses {
    max: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

impl Addresses {
    fn place(self: &Arc<Self>, address: IpAddr) -> Option<AddressPlace> {
        let client = client(address);
        let mut open = self.open.lock();
        let count = open.entry(client).or_default();
        // An entry is removed with its last connection, so a new one is never over the bound.
        let is_free = *count < self.max;
        *count += usize::from(is_free);
        is_free.then(|| AddressPlace { client, addresses: Arc::clone(self) })
    }
}

/// A client has a whole /64 of IPv6.
fn client(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[derive(Debug)]
struct AddressPlace {
    client: IpAddr,
    addresses: Arc<Addresses>,
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut open = self.addresses.open.lock();
        if let Some(count) = open.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(connections: usize, per_address: Option<usize>) -> Places {
        let limits =
            ListenerLimits { connections, connections_per_address: per_address, ..Default::default() };
        Places::new(&limits)
    }

    fn is_served(admission: &Admission) -> bool {
        matches!(admission, Admission::Place(_))
    }

    #[test]
    fn an_address_gets_its_number_of_places_and_others_are_not_affected() {
        let places = places(100, Some(2));
        let admit = |address: &str| places.admit(address.parse().unwrap(), |_| false);
        let mut held = vec![admit("192.0.2.1"), admit("::ffff:192.0.2.1")];
        assert!(held.iter().all(is_served));
        assert!(!is_served(&admit("192.0.2.1")), "mapped addresses are the same client");
        assert!(is_served(&admit("192.0.2.2")));
        held.pop();
        assert!(is_served(&admit("192.0.2.1")), "the place of a closed connection is free");
        let network = [admit("2001:db8::1"), admit("2001:db8::ffff:0:0:1")];
        assert!(network.iter().all(is_served));
        assert!(!is_served(&admit("2001:db8::2")), "a /64 is one client");
        assert!(is_served(&admit("2001:db8:0:1::1")));
        drop((held, network));
        assert!(places.addresses.unwrap().open.lock().is_empty(), "no entry outlives its connections");
    }

    #[test]
    fn loopback_and_exempt_addresses_are_not_counted() {
        let places = places(100, Some(1));
        for address in ["127.0.0.1", "::1", "192.0.2.1"] {
            let admitted: Vec<_> = (0..3).map(|_| places.admit(address.parse().unwrap(), |_| true)).collect();
            assert!(admitted.iter().all(is_served), "{address}");
        }
    }

    #[test]
    fn a_full_listener_keeps_a_few_places_to_say_so() {
        let places = places(1, None);
        let admit = || places.admit("192.0.2.1".parse().unwrap(), |_| false);
        let _served = admit();
        let overflow: Vec<_> = (0..OVERFLOW_PLACES).map(|_| admit()).collect();
        assert!(overflow.iter().all(|admission| matches!(admission, Admission::Overflow(_))));
        assert!(matches!(admit(), Admission::Rejected));
    }
}
