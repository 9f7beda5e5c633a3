//! `GET /openapi.json`: the API, described by the code that answers it.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use utoipa::OpenApi;

use super::documented;

/// The document is the same for as long as the program runs.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let (_, document) = documented().split_for_parts();
    document.to_json().expect("a document of text and numbers is JSON").into()
});

/// What is said about the whole; every route adds itself.
#[derive(OpenApi)]
#[openapi(
    info(title = "tollgate", description = "Rate limit decisions over HTTP."),
    tags(
        (name = "decisions", description = "May this request pass, and if not, when?"),
        (name = "rules", description = "The rules, to look at and to change. For this machine only."),
        (name = "operating", description = "What was decided, and how the server is. For this machine only, but for \
            `/livez` and `/openapi.json`."),
    )
)]
struct Whole;

/// What the document begins with.
pub(super) fn document() -> utoipa::openapi::OpenApi {
    Whole::openapi()
}

/// Read this document.
#[utoipa::path(get, path = "/openapi.json", tag = "operating",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(super) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}
