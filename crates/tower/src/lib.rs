//! The same flow around any tower service: identify, check, respond.
