//! `GET /` and `GET /assets/…`: the dashboard, out of the binary or from a folder.
//!
//! The files are for everybody; what they show comes over the API, which asks who wants to know.

use std::borrow::Cow;
use std::io;
use std::path::{Component, Path, PathBuf};

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rust_embed::{EmbeddedFile, RustEmbed};

use super::App;
use super::problem::Problem;

const INDEX: &str = "index.html";

/// Nothing but our own files, nothing inline, and no page may frame ours.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// With every file, found or not changed.
const GUARDS: [(HeaderName, HeaderValue); 5] = [
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    // Asked for again each time and usually answered 304: no tab mixes the files of two versions.
    (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
];

#[derive(RustEmbed)]
#[folder = "web"]
struct Embedded;

/// Where the files of the dashboard are.
#[derive(Debug, Clone, Default)]
pub(super) enum Pages {
    /// In the binary, as they were when it was built.
    #[default]
    Embedded,
    /// In a folder, as they are now.
    Folder(PathBuf),
}

/// A file, and what tells it from what it was before.
struct File {
    bytes: Cow<'static, [u8]>,
    tag: Option<HeaderValue>,
}

pub(super) fn router() -> Router<App> {
    Router::new().route("/", get(index)).route("/assets/{*path}", get(asset))
}

async fn index(State(app): State<App>, headers: HeaderMap) -> Result<Response, Problem> {
    serve(&app, INDEX.to_owned(), &headers).await
}

async fn asset(
    State(app): State<App>,
    UrlPath(path): UrlPath<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    serve(&app, path, &headers).await
}

async fn serve(app: &App, path: String, headers: &HeaderMap) -> Result<Response, Problem> {
    let kind = content_type(&path);
    let Some(file) = app.pages.read(path.clone()).await else {
        return Err(Problem::missing(format!("the dashboard has no file {path}; it begins at /")));
    };
    let known = headers.get(IF_NONE_MATCH);
    if let Some(tag) = file.tag.as_ref().filter(|tag| known == Some(tag)) {
        return Ok((StatusCode::NOT_MODIFIED, GUARDS, [(ETAG, tag.clone())]).into_response());
    }
    let mut response = (GUARDS, [(CONTENT_TYPE, kind)], file.bytes).into_response();
    response.headers_mut().extend(file.tag.map(|tag| (ETAG, tag)));
    Ok(response)
}

impl Pages {
    async fn read(&self, path: String) -> Option<File> {
        let Pages::Folder(folder) = self else { return Embedded::get(&path).map(File::from) };
        let place = within(folder, &path)?;
        let read = tokio::task::spawn_blocking(move || std::fs::read(place)).await.ok()?;
        match read {
            Ok(bytes) => Some(File { bytes: bytes.into(), tag: None }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path, %error, "a file of the dashboard cannot be read");
                None
            }
        }
    }
}

/// The file in the folder; nothing outside has a name.
fn within(folder: &Path, path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    plain.then(|| folder.join(path))
}

impl From<EmbeddedFile> for File {
    fn from(file: EmbeddedFile) -> Self {
        // Half of the hash tells versions apart well enough.
        let tag = hex::encode(&file.metadata.sha256_hash()[..16]);
        File { bytes: file.data, tag: HeaderValue::try_from(format!("\"{tag}\"")).ok() }
    }
}

fn content_type(path: &str) -> HeaderValue {
    HeaderValue::from_static(match path.rsplit_once('.') {
        Some((_, "html")) => "text/html; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "js")) => "text/javascript; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        _ => "application/octet-stream",
    })
}

#[cfg(test)]
mod tests;
