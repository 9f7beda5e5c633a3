//! Pseudonyms: user ids and addresses as keyed hashes.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::Violation;
use super::violation::kept;

/// Fewer bytes could be guessed.
const SHORTEST: usize = 16;

/// Puts HMAC-SHA-256 in the place of user ids, addresses and bucket keys, before they are written.
///
/// The same caller has the same hash under the same secret, so a look-up by user or address still finds it; without
/// the secret nobody can tell who it is, nor by trying all addresses. Rule names and endpoints stay as they are.
#[derive(Clone)]
pub struct Pseudonyms(Hmac<Sha256>);

/// The secret is too short to keep one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secret has {length} bytes; take at least {SHORTEST} random ones")]
pub struct SecretError {
    /// How many bytes it has.
    pub length: usize,
}

impl Pseudonyms {
    /// Hashes under a secret, the same on every node.
    ///
    /// # Errors
    ///
    /// It has fewer than 16 bytes.
    pub fn new(secret: &[u8]) -> Result<Self, SecretError> {
        let length = secret.len();
        if length < SHORTEST {
            return Err(SecretError { length });
        }
        Hmac::new_from_slice(secret).map(Pseudonyms).map_err(|_| SecretError { length })
    }

    /// The hash that stands for a text in one column.
    pub(super) fn of(&self, column: &str, text: &str) -> String {
        let mut mac = self.0.clone();
        for part in [column, "\0", &kept(text)] {
            mac.update(part.as_bytes());
        }
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The same violation, by nobody in particular.
    pub(super) fn apply(&self, violation: Violation) -> Violation {
        let hashed = |column, text: Option<String>| text.map(|text| self.of(column, &text));
        Violation {
            bucket_key: self.of("bucket_key", &violation.bucket_key),
            user_id: hashed("user_id", violation.user_id),
            ip_address: hashed("ip_address", violation.ip_address),
            ..violation
        }
    }
}

/// Never the secret.
impl fmt::Debug for Pseudonyms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pseudonyms(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_secret_column_and_text_and_on_nothing_else() {
        let [one, two] =
            [b"0123456789abcdef", b"0123456789abcdeg"].map(|secret| Pseudonyms::new(secret).unwrap());
        assert_eq!(one.of("user_id", "42"), one.of("user_id", "42"));
        assert_ne!(one.of("user_id", "42"), two.of("user_id", "42"));
        assert_ne!(one.of("user_id", "42"), one.of("ip_address", "42"));
        assert_ne!(one.of("user_id", "42"), one.of("user_id", "43"));
        assert_eq!(one.of("user_id", "42").len(), 64);
        assert_eq!(Pseudonyms::new(b"short").unwrap_err(), SecretError { length: 5 });
        assert_eq!(format!("{one:?}"), "Pseudonyms(..)");
    }
}
