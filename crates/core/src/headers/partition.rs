//! `pk`: which bucket a header is about, without saying whose it is.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::descriptor::Descriptor;
use crate::rule::Rule;

/// Fewer bytes could be guessed.
const SHORTEST: usize = 16;
/// How much of the hash is told: 120 bits, which base64 writes in 20 characters without padding.
const TOLD: usize = 15;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Turns the key of a bucket into a name that means nothing to others: an HMAC-SHA-256.
///
/// The same bucket has the same name on every node with the same secret, so a client may tell its limits apart;
/// without the secret nobody can tell who it is, nor by trying all addresses.
#[derive(Clone)]
pub struct PartitionSecret(Hmac<Sha256>);

/// The secret is too short to keep one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secret has {length} bytes; take at least {SHORTEST} random ones")]
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
        if length < SHORTEST {
            return Err(SecretError { length });
        }
        Hmac::new_from_slice(secret).map(PartitionSecret).map_err(|_| SecretError { length })
    }

    /// Adds `;pk=:…:`, a Byte Sequence.
    pub(super) fn push(&self, out: &mut String, rule: &Rule, request: &Descriptor<'_>) {
        let mut key = Vec::new();
        rule.key(request).encode("", &mut key);
        let mut mac = self.0.clone();
        mac.update(&key);
        let hash = mac.finalize().into_bytes();
        out.push_str(";pk=:");
        for three in hash[..TOLD].chunks_exact(3) {
            let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
            out.extend([18, 12, 6, 0].map(|shift| char::from(BASE64[(bits >> shift & 63) as usize])));
        }
        out.push(':');
    }
}

/// Two are the same if they name everything the same.
impl PartialEq for PartitionSecret {
    fn eq(&self, other: &Self) -> bool {
        let name = |secret: &Self| secret.0.clone().finalize().into_bytes();
        name(self) == name(other)
    }
}

impl Eq for PartitionSecret {}

impl fmt::Debug for PartitionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PartitionSecret")
    }
}
