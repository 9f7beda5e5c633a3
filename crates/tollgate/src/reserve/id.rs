//! Names of reservations.

use std::fmt;
use std::str::FromStr;

use crate::store::{About, NoteName};

/// Names a reservation: 128 random bits, written as 32 hexadecimal digits. Whoever knows it may settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(u128);

/// Not the name of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a reservation's id has 32 hexadecimal digits, in lower case")]
pub struct ReservationIdError;

impl ReservationId {
    /// A name that nobody guesses.
    pub(super) fn random() -> Result<Self, getrandom::Error> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits)?;
        Ok(ReservationId(u128::from_le_bytes(bits)))
    }

    /// The name with these bits; they should be random.
    pub const fn from_bits(bits: u128) -> Self {
        ReservationId(bits)
    }

    pub(super) const fn note(self, about: About) -> NoteName {
        NoteName { reservation: self, about }
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for ReservationId {
    type Err = ReservationIdError;

    fn from_str(text: &str) -> Result<Self, ReservationIdError> {
        let plain = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let bits = plain.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        bits.map(ReservationId).ok_or(ReservationIdError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written_and_in_no_other_way() {
        let id = ReservationId::random().unwrap();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(ReservationId(7).to_string(), "00000000000000000000000000000007");
        for other in ["", "7", "+0000000000000000000000000000007", "0000000000000000000000000000000G"] {
            assert_eq!(other.parse::<ReservationId>(), Err(ReservationIdError));
        }
        assert!(
            id.to_string().to_uppercase() == id.to_string()
                || id.to_string().to_uppercase().parse::<ReservationId>().is_err()
        );
    }
}
