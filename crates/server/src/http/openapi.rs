//! `GET /openapi.json`: the API, described by the code that answers it.

use std::sync::{Arc, LazyLock};

use axum::Extension;
use axum::body::Bytes;
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use tollgate::Clock;
use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{Components, Content, Ref, RefOr, Response, Responses};
use utoipa_axum::router::OpenApiRouter;

use super::auth::Auth;
use super::render::PROBLEM;
use super::tokens::Role;
use super::{Access, App, Plane, documented};
use crate::api;

/// The documents are the same for as long as the program runs.
static DATA: LazyLock<Bytes> = LazyLock::new(|| rendered(Plane::Data));
static ADMIN: LazyLock<Bytes> = LazyLock::new(|| rendered(Plane::Admin));

fn rendered(plane: Plane) -> Bytes {
    let nobody = Arc::new(Auth::new(Access::default(), Clock::system()));
    let (_, document) = documented(plane, &nobody).split_for_parts();
    document.to_json().expect("a document of text and numbers is JSON").into()
}

/// What the document calls the credentials that a route may ask for.
const TOKEN: &str = "token";
const SESSION: &str = "session";

/// What is said about the whole; every route adds itself.
#[derive(OpenApi)]
#[openapi(
    info(title = "tollgate"),
    components(schemas(api::Problem)),
    tags(
        (name = "decisions", description = "May this request pass, and if not, when? Checks need a token once the server has \
            one with the role `check`; refunds and settlements always need one."),
        (name = "rules", description = "The rules, to look at and to change."),
        (name = "operating", description = "What was decided, and how the server is."),
    )
)]
struct Whole;

/// What the document of a plane begins with.
pub(super) fn document(plane: Plane) -> utoipa::openapi::OpenApi {
    let mut document = Whole::openapi();
    let (title, description, unused) = match plane {
        Plane::Data => ("tollgate", "Rate limit decisions over HTTP.", "rules"),
        Plane::Admin | Plane::Metrics => {
            ("tollgate admin", "Rules, decisions and state of a tollgate server.", "decisions")
        }
    };
    document.info.title = title.to_owned();
    document.info.description = Some(description.to_owned());
    document.tags.iter_mut().for_each(|tags| tags.retain(|tag| tag.name != unused));
    let said = "The secret of a line `name:role:secret` of the token file.";
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(said)).build();
    let components = document.components.get_or_insert_with(Components::new);
    components.add_security_scheme(TOKEN, SecurityScheme::Http(bearer));
    if plane != Plane::Data {
        let said = "Set by `POST /v1/session`; the port of the server is part of the name.";
        let cookie = ApiKeyValue::with_description("tollgate-session-8081", said);
        components.add_security_scheme(SESSION, SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    }
    document
}

/// Says of these routes which credential they need, and what the guard before them may answer.
pub(super) fn guarded(mut routes: OpenApiRouter<App>, needed: Role) -> OpenApiRouter<App> {
    let requirement = |name| SecurityRequirement::new(name, Vec::<String>::new());
    let security = match needed {
        Role::Check => vec![SecurityRequirement::default(), requirement(TOKEN)],
        Role::Settle => vec![requirement(TOKEN)],
        Role::Read | Role::Write => vec![requirement(TOKEN), requirement(SESSION)],
    };
    let wrong_role = format!("the token does not have the role {}", needed.accepted());
    let cross_site = format!("{wrong_role}; or a page of another origin sent this with a session");
    let (unknown, too_many) =
        ("no token or session that is known", "too many wrong tokens came from this address");
    for (_, operation) in routes.get_openapi_mut().paths.paths.values_mut().flat_map(operations) {
        operation.security = Some(security.clone());
        let mut add = |status, told| add_problem(&mut operation.responses, status, told);
        add("401", unknown);
        add("429", too_many);
        if matches!(needed, Role::Check | Role::Settle) {
            add("403", &wrong_role);
            continue;
        }
        add("403", &cross_site);
        add("421", "sent with a session to a host name that is not this server's");
        if needed == Role::Write {
            add("415", "a change that is not JSON");
        }
    }
    routes
}

/// Gives each method of a handler that serves several an operation id of its own: `authz_get`, `authz_head`, ….
///
/// Generated clients have one function per id, so operations that share one are lost without a message.
pub(super) fn with_methods_in_ids(mut routes: OpenApiRouter<App>) -> OpenApiRouter<App> {
    for item in routes.get_openapi_mut().paths.paths.values_mut() {
        for (method, operation) in operations(item) {
            if let Some(id) = &mut operation.operation_id {
                *id = format!("{id}_{}", method.as_str().to_lowercase());
            }
        }
    }
    routes
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    let all = [
        (Method::GET, &mut item.get),
        (Method::POST, &mut item.post),
        (Method::PUT, &mut item.put),
        (Method::PATCH, &mut item.patch),
        (Method::DELETE, &mut item.delete),
        (Method::HEAD, &mut item.head),
        (Method::OPTIONS, &mut item.options),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// Adds a problem to the meanings of a status.
fn add_problem(responses: &mut Responses, status: &str, told: &str) {
    let known = responses.responses.entry(status.to_owned());
    let RefOr::T(response) = known.or_insert_with(|| RefOr::T(Response::default())) else { return };
    response.description = match response.description.as_str() {
        "" => told.to_owned(),
        before => format!("{before}; or {told}"),
    };
    with_problem(response);
}

/// Says that an answer may be a problem.
fn with_problem(response: &mut Response) {
    let problem = || RefOr::T(Content::new(Some(Ref::from_schema_name("Problem"))));
    response.content.entry(PROBLEM.to_owned()).or_insert_with(problem);
}

/// Gives every error without a body in the document the body that errors have.
pub(super) fn with_problems(mut routes: OpenApiRouter<App>) -> OpenApiRouter<App> {
    for item in routes.get_openapi_mut().paths.paths.values_mut() {
        for (_, operation) in operations(item) {
            for (status, response) in &mut operation.responses.responses {
                if let RefOr::T(response) = response
                    && status.starts_with(['4', '5'])
                    && response.content.is_empty()
                {
                    with_problem(response);
                }
            }
        }
    }
    routes
}

/// Read this document.
#[utoipa::path(get, path = "/openapi.json", tag = "operating",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(super) async fn openapi(Extension(plane): Extension<Plane>) -> impl IntoResponse {
    let document = if plane == Plane::Data { &DATA } else { &ADMIN };
    ([(CONTENT_TYPE, "application/json")], Bytes::clone(document))
}
