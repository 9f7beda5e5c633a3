//! The API keeps the word that `/openapi.json` gives.

use std::sync::LazyLock;

use super::*;

/// The document of a plane.
fn of(plane: Plane) -> Value {
    let nobody = Arc::new(Auth::new(Access::default(), Clock::manual(Timestamp::from_micros(0))));
    let (_, document) = documented(plane, &nobody).split_for_parts();
    serde_json::from_str(&document.to_json().unwrap()).unwrap()
}

/// The routes and types of both planes.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let (mut both, data) = (of(Plane::Admin), of(Plane::Data));
    for part in ["/paths", "/components/schemas"] {
        let Some(Value::Object(into)) = both.pointer_mut(part) else { panic!("{part} is an object") };
        let admin = into.clone();
        into.extend(data.pointer(part).unwrap().as_object().unwrap().clone());
        into.extend(admin); // which answers first where both have a route
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
    let app = || app_with(RULES).with_access(access());
    let as_reader = |line: &str| {
        let mut request = Served::request(line, "not JSON");
        request.headers_mut().insert("authorization", format!("Bearer {READ}").parse().unwrap());
        request
    };
    let status =
        async |plane, line: &str| router(app(), plane).oneshot(as_reader(line)).await.unwrap().status();
    let mut routes = 0;
    for (plane, other) in [(Plane::Data, Plane::Admin), (Plane::Admin, Plane::Data)] {
        let asked = as_reader("GET /openapi.json");
        let answer = router(app(), plane).oneshot(asked).await.unwrap().into_body();
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
const SETTLE: &str = "settle-0123456789abcdef";
const WRITE: &str = "write-0123456789abcdef";

/// One token of each role.
fn access() -> Access {
    let text = format!("app:check:{CHECK}\nbatch:settle:{SETTLE}\nboard:read:{READ}\nops:write:{WRITE}\n");
    Access { tokens: vec![Tokens::parse(&text).unwrap()], hosts: Vec::new() }
}

#[tokio::test]
async fn whatever_a_guard_answers_is_in_the_document() {
    let router = guarded_planes(app_with(RULES).with_access(access()));
    let mut seen = std::collections::BTreeSet::new();
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        // The answer to HEAD has no body to hold against anything.
        for (method, operation) in
            operations.as_object().unwrap().iter().filter(|(method, _)| *method != "head")
        {
            let line = format!("{} {}", method.to_uppercase(), path.replace(['{', '}'], ""));
            // With no token, with each role, and with wrong ones until there were too many.
            for token in
                [None, Some(READ), Some(CHECK), Some(SETTLE), Some(WRITE), Some("wrong"), Some("wrong")]
            {
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
                if body["title"].as_str().is_some_and(|title| title.contains("token"))
                    && path != "/v1/session"
                {
                    assert!(
                        operation["security"]
                            .as_array()
                            .is_some_and(|all| all.contains(&json!({"token": []}))),
                        "{line}"
                    );
                    seen.insert(parts.status.as_u16());
                }
            }
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [401, 403, 429]);
    assert_eq!(DOCUMENT["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    assert_eq!(DOCUMENT["components"]["securitySchemes"]["session"]["in"], "cookie");
    assert!(operation("GET /v1/authz").unwrap()["security"].is_null(), "a proxy shows no token of its own");
    let security = |line: &str| &operation(line).unwrap()["security"];
    assert_eq!(security("POST /v1/check"), &json!([{}, {"token": []}]));
    assert_eq!(security("POST /v1/refund"), &json!([{"token": []}]));
    assert_eq!(security("GET /v1/rules"), &json!([{"token": []}, {"session": []}]));
    assert_eq!(security("POST /v1/rules"), &json!([{"token": []}, {"session": []}]));
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
