//! `pk`: which bucket a header is about, without saying whose it is.

use std::fmt;

use base64::prelude::{BASE64_STANDARD as STANDARD, Engine as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::descriptor::Descriptor;
use crate::rule::Rule;

/// Fewer bytes could be guessed.
const MIN_BYTES: usize = 16;
/// How much of the hash is shown: 120 bits, which base64 writes in 20 characters without padding.
const SHOWN_BYTES: usize = 15;

/// Turns the key of a bucket into a name that means nothing to others: an HMAC-SHA-256.
///
/// The same bucket has the same name on every node with the same secret, so a client may tell its limits apart;
/// without the secret nobody can tell who it is, nor by trying all addresses.
#[derive(Clone)]
pub struct PartitionSecret(Hmac<Sha256>);

/// The secret is too short to keep one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secret has {length} bytes; take at least {MIN_BYTES} random ones")]
pub struct SecretError {
    /// How many bytes it has.
    pub length: usize,
}

impl PartitionSecret {
    /// Names under a secret.
    ///
    /// # Errors
    ///
    /// It has fewer than 16 bytes.
    pub fn new(secret: &[u8]) -> Result<Self, SecretError> {
        let length = secret.len();
        if length < MIN_BYTES {
            return Err(SecretError { length });
        }
        Hmac::new_from_slice(secret).map(PartitionSecret).map_err(|_| SecretError { length })
    }

    /// Adds `;pk=:…:`, a Byte Sequence.
    pub(super) fn push(&self, out: &mut String, rule: &Rule, request: &Descriptor<'_>) {
        let mut key = Vec::new();
        rule.key(request).encode("", &mut key);
        out.push_str(";pk=:");
        STANDARD.encode_string(&self.hash([&key[..]])[..SHOWN_BYTES], out);
        out.push(':');
    }

    /// The HMAC-SHA-256 of some bytes.
    pub fn hash<'b>(&self, parts: impl IntoIterator<Item = &'b [u8]>) -> [u8; 32] {
        let mut mac = self.0.clone();
        parts.into_iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    }
}

/// Two are the same if they name everything the same.
impl PartialEq for PartitionSecret {
    fn eq(&self, other: &Self) -> bool {
        self.hash([]) == other.hash([])
    }
}

impl Eq for PartitionSecret {}

impl fmt::Debug for PartitionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PartitionSecret")
    }
}
