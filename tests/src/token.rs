//! The token that a server makes at its first start.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Its secret, from the data directory of the server.
#[must_use]
pub fn secret(data: &Path) -> String {
    let path = data.join("token");
    let line = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    line.trim_end().rsplit(':').next().unwrap_or_default().to_owned()
}

/// Lines of the head of a request that shows it and sends JSON.
#[must_use]
pub fn lines(data: &Path) -> String {
    format!("authorization: Bearer {}\r\ncontent-type: application/json\r\n", secret(data))
}

/// Writes a token file that only its owner can read.
pub fn write(path: &Path, text: &str) {
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, text).expect("a writable folder");
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o600)).expect("our own file");
    fs::rename(unfinished, path).expect("the same folder");
}
