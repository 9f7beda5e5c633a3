//! The API without a listener.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use crate::http::{App, unguarded};

/// Both planes for a caller in this process, who needs no credential.
#[derive(Debug, Clone)]
pub struct InProcess(Router);

impl InProcess {
    /// The routes of an application.
    /// The history says that changes are made by `who`.
    pub fn new(app: App, who: &str) -> Self {
        InProcess(unguarded(app, who))
    }

    /// Answers a request as a server would.
    ///
    /// # Errors
    ///
    /// The body of the answer ended early.
    pub async fn send(&self, request: Request<String>) -> Result<Response<Bytes>, axum::Error> {
        let (parts, body) = match self.0.clone().oneshot(request.map(Body::from)).await {
            Ok(response) => response.into_parts(),
            Err(never) => match never {},
        };
        Ok(Response::from_parts(parts, body.collect().await?.to_bytes()))
    }
}
