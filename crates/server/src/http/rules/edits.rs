//! `POST /v1/rules/edits`: several changes of rules at once.

use std::collections::HashMap;

use axum::extract::State;
use axum::{Extension, Json};
use tollgate::rules::{Edit, RuleRow};

use super::super::App;
use super::super::ask::Sent;
use super::super::auth::Caller;
use super::super::problem::{Problem, Problems};
use super::preview::MAX_SET_BYTES;
use super::{read, refused};
use crate::api::{RuleEdit, RuleEdits, RulesEdited};

/// Make several changes together, or none of them.
#[utoipa::path(post, operation_id = "edit_rules", path = "/v1/rules/edits", tag = "rules", request_body = RuleEdits,
    responses(
        (status = 200, description = "made, and in effect", body = RulesEdited),
        (status = 404, description = "no such rule"),
        (status = 409, description = "the rules cannot be changed here"),
        (status = 412, description = "a rule was changed meanwhile"),
        (status = 422, description = "rules that are invalid, or do not make a set"),
        (status = 503, description = "the database gave no answer"),
        Problems,
    ))]
pub(crate) async fn edit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Sent(body): Sent<MAX_SET_BYTES>,
) -> Result<Json<RulesEdited>, Problem> {
    let book = app.rules.writable()?;
    let RuleEdits { edits } = Problem::parse(
        &body,
        "{\"edits\": [{\"add\": {\"rule\": {\"key\": \"global\", \"limit\": \"100/s\"}}}]}",
    )?;
    // Only updates look at the rows before: those that cannot be read must not lose what is in them.
    let updates = edits.iter().any(|edit| matches!(edit, RuleEdit::Update { .. }));
    let rows = if updates { book.list().await.map_err(refused)? } else { Vec::new() };
    let rows: HashMap<i64, &RuleRow> = rows.iter().map(|row| (row.rule_id, row)).collect();
    let edits = edits.iter().enumerate().map(|(place, edit)| {
        edit_of(edit, &rows).map_err(|problem| problem.within(&format!("edits[{place}]")))
    });
    let edited = book.apply(&caller.name, edits.collect::<Result<_, _>>()?).await.map_err(refused)?;
    app.rules.refresh().await;
    let enforced = app.limiter.rules();
    let entry = |row: &RuleRow| app.rules.entry(row, &enforced);
    Ok(Json(RulesEdited { rules: edited.iter().map(entry).collect() }))
}

fn edit_of(edit: &RuleEdit, rows: &HashMap<i64, &RuleRow>) -> Result<Edit, Problem> {
    Ok(match *edit {
        RuleEdit::Add { ref rule } => Edit::Add(read::rule(rule.get().as_bytes())?),
        RuleEdit::Update { rule_id, version, ref rule } => {
            let body = rule.get().as_bytes();
            if let Some(row) = rows.get(&rule_id) {
                read::gives_what_is_unreadable(row, read::Change::Replace, body)?;
            }
            Edit::Update { rule_id, version, draft: read::rule(body)? }
        }
        RuleEdit::Remove { rule_id, version } => Edit::Remove { rule_id, version },
        RuleEdit::Enable { rule_id } => Edit::Enable { rule_id },
        RuleEdit::Disable { rule_id } => Edit::Disable { rule_id },
    })
}
