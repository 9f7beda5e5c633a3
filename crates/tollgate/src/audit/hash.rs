//! Pseudonyms: user ids and addresses as keyed hashes.

use std::fmt;

use tollgate_core::{PartitionSecret, SecretError};

use super::Violation;
use super::violation::kept;

/// Puts HMAC-SHA-256 in the place of user ids, addresses and bucket keys, before they are written.
///
/// The same caller has the same hash under the same secret, so a look-up by user or address still finds it; without
/// the secret nobody can tell who it is, nor by trying all addresses. Rule names and endpoints stay as they are.
#[derive(Clone)]
pub struct Pseudonyms(PartitionSecret);

impl Pseudonyms {
    /// Hashes under a secret, the same on every node.
    ///
    /// # Errors
    ///
    /// It has fewer than 16 bytes.
    pub fn new(secret: &[u8]) -> Result<Self, SecretError> {
        PartitionSecret::new(secret).map(Pseudonyms)
    }

    /// The hash that replaces a text in one column.
    pub(super) fn of(&self, column: &str, text: &str) -> String {
        hex::encode(self.0.hash([column, "\0", &kept(text)].map(str::as_bytes)))
    }

    /// The violation with its user, address and bucket key hashed.
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
