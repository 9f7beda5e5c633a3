//! `GET /openapi.json`: the API, described by the code that answers it.

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use utoipa::OpenApi;

use super::App;

/// What is said about the whole; every route adds itself.
#[derive(OpenApi)]
#[openapi(
    info(title = "tollgate", description = "Rate limit decisions over HTTP."),
    tags(
        (name = "decisions", description = "May this request pass, and if not, when?"),
        (name = "rules", description = "The rules, to look at and to change. For this machine only."),
        (name = "operating", description = "What was decided, and how the server is. For this machine only, but for `/livez`."),
    )
)]
struct Whole;

pub(super) fn document() -> utoipa::openapi::OpenApi {
    Whole::openapi()
}

/// The routes with one more, which describes them.
pub(super) fn serve(router: Router<App>, document: &utoipa::openapi::OpenApi) -> Router<App> {
    let json = Bytes::from(document.to_json().expect("a document of text and numbers is JSON"));
    let kind = HeaderValue::from_static("application/json");
    router.route("/openapi.json", get(async move || ([(CONTENT_TYPE, kind)], json)))
}
