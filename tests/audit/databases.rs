//! One body, both databases.

use std::fs;
use std::path::PathBuf;

use tollgate::sql::Database;
use tollgate_tests::postgres::Postgres;
use tollgate_tests::scratch::Scratch;

/// A database of the test's own.
pub(crate) struct Fresh {
    pub(crate) database: Database,
    pub(crate) postgres: Option<Postgres>,
    folder: PathBuf,
}

impl Fresh {
    pub(crate) async fn sqlite() -> Self {
        let folder = Scratch::new("audit").keep();
        let database = Database::open(&format!("sqlite://{}/audit.db", folder.display())).await.unwrap();
        Fresh { database, postgres: None, folder }
    }

    pub(crate) async fn postgres() -> Self {
        let postgres = tokio::task::spawn_blocking(Postgres::start).await.unwrap();
        let database = Database::open(&postgres.url()).await.unwrap();
        Fresh { database, postgres: Some(postgres), folder: Scratch::new("audit").keep() }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Makes two tests of each body.
macro_rules! on_both {
    ($($(#[$doc:meta])* async fn $name:ident($fresh:ident: Fresh) $body:block)+) => {
        $($(#[$doc])* async fn $name($fresh: $crate::databases::Fresh) $body)+

        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::databases::Fresh::sqlite().await).await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::databases::Fresh::postgres().await).await;
            })+
        }
    };
}
pub(crate) use on_both;
