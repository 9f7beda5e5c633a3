//! Changing rules: what comes back is what was written, nobody overwrites anybody, and nothing is forgotten.

use std::path::PathBuf;

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use tollgate::rules::{self, BookError, Edit, RuleBook, RuleRow, RuleSource};
use tollgate::sql::{Database, Pool};
use tollgate_core::Draft;
use tollgate_tests::postgres::Postgres;
use tollgate_tests::scratch::Scratch;

use crate::drafts;
use crate::tables::run;

pub(crate) async fn sqlite() -> (RuleBook, String, PathBuf) {
    let folder = Scratch::new("book").keep();
    let url = format!("sqlite://{}", folder.join("rules.db").display());
    (RuleBook::new(Database::open(&url).await.unwrap()), url, folder)
}

fn draft(json: &str) -> Draft {
    rules::parse_drafts("test", &format!("rules: [{json}]")).unwrap().remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_gives_back_every_rule_as_it_was_written() {
    let (book, url, folder) = sqlite().await;
    gives_back_every_rule_as_it_was_written(&book, &url, 60).await;
    book.database().close().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_gives_back_every_rule_and_keeps_its_history() {
    let server = Postgres::start();
    let book = RuleBook::new(Database::open(&server.url()).await.unwrap());
    gives_back_every_rule_as_it_was_written(&book, &server.url(), 30).await;
    keeps_history(&book, "postgres").await;
    book.database().close().await;
}

async fn gives_back_every_rule_as_it_was_written(book: &RuleBook, url: &str, cases: u32) {
    let mut random = TestRunner::default();
    for _ in 0..cases {
        let drafts = drafts::drafts().new_tree(&mut random).unwrap().current();
        let added = book.apply("me", drafts.iter().cloned().map(Edit::Add).collect()).await;
        let added = added.unwrap_or_else(|error| panic!("{error}\n{drafts:#?}"));
        // Written, read as rows, read as rules: every field is as it was.
        let read: Vec<Draft> = added.iter().map(RuleRow::draft).collect();
        assert_eq!(read, drafts);
        let loaded = RuleSource::database(url).load(None).await.unwrap().unwrap();
        let rules: Vec<Draft> = loaded.rules.rules().iter().map(|rule| rule.draft().clone()).collect();
        assert_eq!(rules, drafts);
        // Each as an update, too: all get what their opposite says, under their own name and key.
        let opposite: Vec<Draft> = drafts
            .iter()
            .zip(drafts.iter().rev())
            .map(|(own, other)| {
                let (name, key) = (own.name.clone(), own.key.clone());
                Draft { name, key, replaces: own.replaces.clone(), ..other.clone() }
            })
            .collect();
        let edits = added.iter().zip(&opposite).map(|(row, draft)| Edit::Update {
            rule_id: row.rule_id,
            version: row.version,
            draft: draft.clone(),
        });
        let updated = book.apply("me", edits.collect()).await;
        let updated = updated.unwrap_or_else(|error| panic!("{error}\n{drafts:#?}"));
        assert_eq!(updated.iter().map(RuleRow::draft).collect::<Vec<_>>(), opposite);
        run(book.database(), "DELETE FROM rate_limit_rule").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_keeps_its_history() {
    let (book, _, folder) = sqlite().await;
    keeps_history(&book, "sql").await;
    book.database().close().await;
    std::fs::remove_dir_all(folder).unwrap();
}

async fn keeps_history(book: &RuleBook, plain_sql: &str) {
    let added =
        book.add("ann", draft("{ name: a, key: 'user:{user_id}', limit: 10/s burst 50 }")).await.unwrap();
    assert_eq!((added.version, added.scope.as_deref()), (1, Some("user")));
    let changed = draft("{ name: a, key: 'user:{user_id}', limit: 20/s burst 50, mode: shadow }");
    let updated = book.update("bob", added.rule_id, 1, changed).await.unwrap();
    assert_eq!(updated.version, 2);
    // Whoever edits what is no longer there is told, and sees both.
    let late = book.update("ann", added.rule_id, 1, draft("{ name: a, key: global, limit: 1/s }")).await;
    let Err(BookError::Conflict { version: 1, yours: Some(yours), theirs: Some(theirs), .. }) = late else {
        panic!("{late:?}")
    };
    assert_eq!((yours.fields.key.as_str(), theirs.rate_per_second), ("global", Some(20.into())));
    assert!(matches!(book.remove("ann", added.rule_id, 1).await, Err(BookError::Conflict { .. })));
    // Off and on again keeps the mode; what is so already is no change.
    let rule_id = added.rule_id;
    let disabled = book.apply("cy", vec![Edit::Disable { rule_id }]).await.unwrap().remove(0);
    assert_eq!((disabled.draft().mode.as_deref(), disabled.version), (Some("off"), 3));
    assert_eq!(book.apply("cy", vec![Edit::Disable { rule_id }]).await.unwrap(), [], "it was off already");
    let enabled = book.apply("cy", vec![Edit::Enable { rule_id }]).await.unwrap().remove(0);
    assert_eq!((enabled.draft().mode.as_deref(), enabled.version), (Some("shadow"), 4));
    let sql = format!("UPDATE rate_limit_rule SET plan = 'pro' WHERE rule_id = {}", added.rule_id);
    run(book.database(), &sql).await.unwrap();
    let history = book.history(Some(added.rule_id), 10).await.unwrap();
    let who: Vec<&str> = history.iter().map(|change| change.changed_by.as_str()).collect();
    assert_eq!(who, [plain_sql, "cy", "cy", "bob", "ann"]);
    assert!(
        history.iter().all(|change| change.changed_at.starts_with("20") && change.changed_at.contains('T'))
    );
    // A change that is not the last cannot be undone; the last can, and the one before it then too.
    assert!(matches!(book.undo("dee", history[3].history_id).await, Err(BookError::Conflict { .. })));
    let undone = book.undo("dee", history[0].history_id).await.unwrap().unwrap();
    assert_eq!((undone.fields.plan, undone.version), (None, 6));
    book.remove("dee", added.rule_id, 6).await.unwrap();
    assert!(matches!(book.get(added.rule_id).await, Err(BookError::NoRule { .. })));
    let removal = book.history(None, 1).await.unwrap().remove(0);
    assert_eq!((removal.changed_by.as_str(), removal.after), ("dee", None));
    let back = book.undo("dee", removal.history_id).await.unwrap().unwrap();
    assert_eq!((back.rule_id, back.version, back.fields.mode.as_deref()), (added.rule_id, 7, Some("shadow")));
    refuses_what_a_file_would(book).await;
}

async fn refuses_what_a_file_would(book: &RuleBook) {
    for (rule, wanted) in [
        ("{ key: global, limit: 0/min }", "count is zero"),
        ("{ key: global, limit: 1/s, mode: shadw }", "did you mean `shadow`?"),
        ("{ name: a, key: global, limit: 1/s }", "there twice"),
        ("{ name: b, key: global, limit: 1/s, replaces: [aa] }", "replaces `aa`"),
    ] {
        let error = book.add("me", draft(rule)).await.unwrap_err();
        assert!(matches!(error, BookError::Invalid(_)) && error.to_string().contains(wanted), "{error}");
    }
    // A bad row, made behind our back, neither hides nor stops what mends it.
    run(book.database(), "INSERT INTO rate_limit_rule (key_pattern, limit_text) VALUES ('global', 'fast')")
        .await
        .unwrap();
    run(book.database(), "INSERT INTO rate_limit_rule (key_pattern, limit_text) VALUES ('global', 'soon/h')")
        .await
        .unwrap();
    let rows = book.list().await.unwrap();
    let bad: Vec<&RuleRow> = rows.iter().filter(|row| row.fields.key == "global").collect();
    let error = book.update("me", bad[0].rule_id, 1, draft("{ key: global, limit: 0/s }")).await.unwrap_err();
    assert!(error.to_string().contains(&format!("rule_id {}", bad[0].rule_id)), "{error}");
    assert!(!error.to_string().contains(&format!("rule_id {}", bad[1].rule_id)), "{error}");
    book.update("me", bad[0].rule_id, 1, draft("{ key: global, limit: 1/s }")).await.unwrap();
    book.remove("me", bad[1].rule_id, 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_edit_the_same_version_one_wins() {
    let (book, _, folder) = sqlite().await;
    let added = book.add("me", draft("{ name: a, key: global, limit: 1/s }")).await.unwrap();
    let edits = (0..8).map(|number| {
        let (book, draft) =
            (book.clone(), draft(&format!("{{ name: a, key: global, limit: {}/s }}", 2 + number)));
        tokio::spawn(async move { book.update("me", added.rule_id, added.version, draft).await })
    });
    let edits: Vec<_> = edits.collect();
    let mut winners = 0;
    for edit in edits {
        match edit.await.unwrap() {
            Ok(_) => winners += 1,
            Err(BookError::Conflict { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!(winners, 1);
    assert_eq!(book.history(None, 99).await.unwrap().len(), 2);
    book.database().close().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_a_change_and_says_so() {
    let (book, _, folder) = sqlite().await;
    let Pool::Sqlite(pool) = book.database().pool() else { panic!("this is SQLite") };
    let mut connections = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        let mut connection = pool.acquire().await.unwrap();
        sqlx::query("PRAGMA max_page_count = 1").execute(&mut *connection).await.unwrap(); // no more than there are
        connections.push(connection);
    }
    drop(connections);
    let rule = |number: u32| Draft {
        name: Some(format!("rule {number}")),
        description: Some("x".repeat(10_000)),
        ..draft("{ key: global, limit: 1/s }")
    };
    let error = book.apply("me", (0..20).map(|number| Edit::Add(rule(number))).collect()).await.unwrap_err();
    assert!(error.to_string().ends_with("the disk is full; free some space and try again"), "{error}");
    assert_eq!(book.list().await.unwrap(), []);
    book.database().close().await;
    std::fs::remove_dir_all(folder).unwrap();
}
