use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use tollgate::{AnyStore, Limiter, MemoryStore, rules};
use tower::ServiceExt as _;

use super::super::{RulesHome, both_planes as whole};
use super::*;

/// The promise of the page: everything together is smaller than this.
const MOST_BYTES: usize = 150_000;

fn app() -> App {
    let limiter =
        Limiter::new(rules::parse("rules.yaml", "rules: []").unwrap(), AnyStore::from(MemoryStore::new()));
    App::new(Arc::new(limiter), RulesHome::Fixed("code".to_owned()))
}

async fn get_from(app: App, path: &str, tag: Option<&HeaderValue>) -> (StatusCode, HeaderMap, Vec<u8>) {
    let mut request = Request::get(path).body(Body::empty()).unwrap();
    request.headers_mut().extend(tag.map(|tag| (IF_NONE_MATCH, tag.clone())));
    let response = whole(app).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status, parts.headers, to_bytes(body, 1 << 20).await.unwrap().to_vec())
}

#[tokio::test]
async fn every_file_is_served_as_what_it_is_and_guarded() {
    for path in Embedded::iter() {
        let (status, headers, body) = get_from(app(), &format!("/assets/{path}"), None).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        assert_ne!(
            headers[CONTENT_TYPE], "application/octet-stream",
            "{path} is of a kind that nobody knows"
        );
        assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(headers[CONTENT_SECURITY_POLICY], POLICY);
        assert_eq!(body, *Embedded::get(&path).unwrap().data);
    }
    let (status, headers, body) = get_from(app(), "/", None).await;
    assert_eq!((status, &headers[CONTENT_TYPE]), (StatusCode::OK, &content_type(INDEX)));
    assert_eq!(body, *Embedded::get(INDEX).unwrap().data);
}

#[tokio::test]
async fn a_file_that_did_not_change_is_not_sent_again() {
    let (_, headers, _) = get_from(app(), "/", None).await;
    let (status, again, body) = get_from(app(), "/", Some(&headers[ETAG])).await;
    assert_eq!((status, &again[ETAG], body.len()), (StatusCode::NOT_MODIFIED, &headers[ETAG], 0));
    assert_eq!(again[CONTENT_SECURITY_POLICY], POLICY);
    let old = HeaderValue::from_static("\"another\"");
    assert_eq!(get_from(app(), "/", Some(&old)).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_folder_is_read_anew_each_time_and_nothing_outside_it_has_a_name() {
    let above = tempfile("web-dir");
    let folder = above.join("web");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(above.join("secret.js"), "no").unwrap();
    for text in ["one", "two"] {
        std::fs::write(folder.join(INDEX), text).unwrap();
        let (status, headers, body) = get_from(app().with_web_dir(folder.clone()), "/", None).await;
        assert_eq!((status, body), (StatusCode::OK, text.into()));
        assert!(!headers.contains_key(ETAG));
    }
    for path in [
        "/assets/../secret.js",
        "/assets/%2e%2e/secret.js",
        "/assets//etc/passwd",
        "/assets/none.js",
        "/assets/views",
    ] {
        let (status, _, _) = get_from(app().with_web_dir(folder.clone()), path, None).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
    std::fs::remove_dir_all(above).unwrap();
}

/// A place of this test's own.
fn tempfile(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tollgate-{name}-{}", std::process::id()))
}

#[test]
fn the_whole_page_is_small_and_asks_nobody_else() {
    let files: Vec<_> =
        Embedded::iter().map(|path| (path.clone(), Embedded::get(&path).unwrap().data)).collect();
    let bytes: usize = files.iter().map(|(_, data)| data.len()).sum();
    assert!(bytes < MOST_BYTES, "{bytes} bytes");
    for (path, data) in files {
        let text = std::str::from_utf8(&data).expect("text");
        let ours = text.replace("http://www.w3.org/2000/svg", ""); // a name, not a place
        assert!(!ours.contains("http://") && !ours.contains("https://"), "{path} names another host");
        assert!(!text.contains("style=\"") && !text.contains(" onclick="), "{path} has something inline");
    }
}
