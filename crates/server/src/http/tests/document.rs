//! The API keeps the word that `/openapi.json` gives.

use std::sync::LazyLock;

use super::*;

/// The document of a plane.
fn of(plane: Plane) -> Value {
    let (_, document) = documented(plane, &Access::default()).split_for_parts();
    serde_json::from_str(&document.to_json().unwrap()).unwrap()
}

/// The routes and types of both planes.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let (mut both, data) = (of(Plane::Admin), of(Plane::Data));
    for part in ["/paths", "/components/schemas"] {
        let Some(Value::Object(into)) = both.pointer_mut(part) else { panic!("{part} is an object") };
        into.extend(data.pointer(part).unwrap().as_object().unwrap().clone());
    }
    both
});

/// What the document says about the route of a request.
fn operation(line: &str) -> Option<&'static Value> {
    let (method, path) = line.split_once(' ').unwrap();
    let path = path.split('?').next().unwrap();
    let fits = |template: &str| {
        let (template, path) = (template.split('/'), path.split('/'));
        template.clone().count() == path.clone().count()
            && template.zip(path).all(|(template, part)| template.starts_with('{') || template == part)
    };
    let paths = DOCUMENT["paths"].as_object().unwrap();
    // A template without a place for anything is the better fit.
    let mut known: Vec<&String> = paths.keys().filter(|template| fits(template)).collect();
    known.sort_by_key(|template| template.contains('{'));
    paths[known.first()?.as_str()].get(method.to_lowercase())
}

/// Holds an answer against the document: its status is there, and its body fits.
pub(super) fn holds(line: &str, status: StatusCode, headers: &HeaderMap, body: &Value) {
    let Some(operation) = operation(line) else {
        assert!([404, 405].contains(&status.as_u16()), "{line} is not in the document, and answers {status}");
        return;
    };
    let response = &operation["responses"][status.as_str()];
    assert!(response.is_object(), "{line}: {status} is not in the document: {body}");
    let Some(content) = response["content"].as_object() else { return };
    let kind = headers["content-type"].to_str().unwrap().split(';').next().unwrap();
    let schema =
        &content.get(kind).unwrap_or_else(|| panic!("{line}: {kind} is not in the document"))["schema"];
    if kind.ends_with("json") {
        let mut whole = schema.as_object().cloned().unwrap_or_default();
        whole.insert("components".to_owned(), DOCUMENT["components"].clone());
        let validator = jsonschema::validator_for(&Value::Object(whole)).unwrap();
        let wrong: Vec<String> =
            validator.iter_errors(body).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(wrong.is_empty(), "{line}: {wrong:?}\n{body}");
    }
}

#[tokio::test]
async fn every_route_of_the_document_is_served_and_the_document_itself_is_one() {
    let status = async |plane, line: &str| {
        let router = router(app_with(RULES), plane);
        router.oneshot(Served::request(line, "not JSON")).await.unwrap().status()
    };
    let mut routes = 0;
    for (plane, other) in [(Plane::Data, Plane::Admin), (Plane::Admin, Plane::Data)] {
        let asked = Served::request("GET /openapi.json", "");
        let answer = router(app_with(RULES), plane).oneshot(asked).await.unwrap().into_body();
        let document: Value = serde_json::from_slice(&to_bytes(answer, 64 << 20).await.unwrap()).unwrap();
        assert_eq!(document, of(plane));
        for (path, operations) in document["paths"].as_object().unwrap() {
            for method in operations.as_object().unwrap().keys() {
                let line = format!("{} {}", method.to_uppercase(), path.replace(['{', '}'], ""));
                assert_ne!(status(plane, &line).await, StatusCode::METHOD_NOT_ALLOWED, "{line}");
                routes += 1;
                if !["/livez", "/readyz", "/openapi.json"].contains(&path.as_str()) {
                    assert_eq!(status(other, &line).await, StatusCode::NOT_FOUND, "{line} on {other:?}");
                }
            }
        }
    }
    assert!(routes >= 25, "{routes}");
    for line in ["GET /", "GET /metrics", "GET /assets/app.js"] {
        assert_eq!(status(Plane::Data, line).await, StatusCode::NOT_FOUND, "{line}");
    }
    assert_eq!(status(Plane::Metrics, "GET /metrics").await, StatusCode::OK);
    assert_eq!(status(Plane::Metrics, "GET /v1/rules").await, StatusCode::NOT_FOUND);
}

const READ: &str = "read-0123456789abcdef";
const CHECK: &str = "check-0123456789abcdef";

/// The folder of token files, deleted with this.
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One token that may look, and one that may ask for decisions.
fn access(test: &str) -> (Folder, Access) {
    let folder = std::env::temp_dir().join(format!("tollgate-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let tokens = |role: &str, line: String| {
        let path = folder.join(role);
        std::fs::write(&path, line).unwrap();
        Some(Tokens::of(&path).unwrap())
    };
    let (admin, check) = (tokens("admin", format!("read:{READ}\n")), tokens("check", format!("{CHECK}\n")));
    (Folder(folder), Access { admin, check })
}

#[tokio::test]
async fn whatever_a_guard_answers_is_in_the_document() {
    let (_folder, access) = access("document");
    let router = both_planes(app_with(RULES).with_access(access));
    let mut seen = std::collections::BTreeSet::new();
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        // The answer to HEAD has no body to hold against anything.
        for (method, operation) in
            operations.as_object().unwrap().iter().filter(|(method, _)| *method != "head")
        {
            let line = format!("{} {}", method.to_uppercase(), path.replace(['{', '}'], ""));
            // With no token, with each role, and with wrong ones until there were too many.
            for token in [None, Some(READ), Some(CHECK), Some("wrong"), Some("wrong")] {
                let mut request = Served::request(&line, "not JSON");
                if let Some(token) = token {
                    let value = format!("Bearer {token}").parse().unwrap();
                    request.headers_mut().insert("authorization", value);
                }
                let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
                if path == "/v1/events" && parts.status == StatusCode::OK {
                    continue; // it does not end
                }
                let bytes = to_bytes(body, 64 << 20).await.unwrap();
                let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                holds(&line, parts.status, &parts.headers, &body);
                if body["title"].as_str().is_some_and(|title| title.contains("token")) {
                    assert_eq!(operation["security"], json!([{}, {"token": []}]), "{line}");
                    seen.insert(parts.status.as_u16());
                }
            }
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [401, 403, 429]);
    assert_eq!(DOCUMENT["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    assert!(operation("GET /v1/authz").unwrap()["security"].is_null(), "a proxy shows no token of its own");
}

#[tokio::test]
async fn a_token_of_another_role_is_told_so_and_is_not_a_wrong_one() {
    let (_folder, access) = access("roles");
    let router = both_planes(app_with(RULES).with_access(access));
    let ask = async |line: &str, token: &str| {
        let mut request = Served::request(line, "{}");
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
        let bytes = to_bytes(body, 1 << 20).await.unwrap();
        (parts.status.as_u16(), String::from_utf8_lossy(&bytes).into_owned())
    };
    // More often than wrong tokens may come from one address.
    for _ in 0..12 {
        let (status, told) = ask("GET /v1/rules", CHECK).await;
        assert!(status == 403 && told.contains("may only ask for decisions"), "{status} {told}");
        let (status, told) = ask("POST /v1/check", READ).await;
        assert!(status == 403 && told.contains("may only look; a decision takes"), "{status} {told}");
    }
    assert_eq!(ask("GET /v1/rules", READ).await.0, 200);
    assert_eq!(ask("POST /v1/check", CHECK).await.0, 200);
    for line in ["GET /v1/rules", "POST /v1/check"] {
        let (status, told) = ask(line, "wrong-0123456789abcdef").await;
        assert!(status == 401 && told.contains("not known"), "{line}: {status} {told}");
    }
}

#[test]
fn every_operation_id_is_unique_and_a_plain_name() {
    let mut ids = std::collections::BTreeMap::new();
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path} has no id"));
            assert!(id.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{method} {path}: {id}");
            let other = ids.insert(id, (method, path));
            assert_eq!(other, None, "{method} {path} has the id of another operation: {id}");
        }
    }
    assert_eq!(ids["list_decisions"].1, "/v1/decisions");
    assert_eq!(ids["authz_head"].0, "head");
}

#[test]
fn every_operation_has_a_summary_a_tag_and_answers_and_every_reference_leads_somewhere() {
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            assert!(operation["summary"].is_string() && operation["tags"].is_array(), "{method} {path}");
            assert!(!operation["responses"].as_object().unwrap().is_empty(), "{method} {path}");
        }
    }
    let text = DOCUMENT.to_string();
    for (_, rest) in
        text.match_indices("\"#/components/schemas/").map(|(at, found)| (at, &text[at + found.len()..]))
    {
        let name = &rest[..rest.find('"').unwrap()];
        assert!(DOCUMENT["components"]["schemas"][name].is_object(), "{name}");
    }
}
