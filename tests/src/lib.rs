//! What the tests of several crates share: the [`model`] that says what every answer should have been.

pub mod model;
