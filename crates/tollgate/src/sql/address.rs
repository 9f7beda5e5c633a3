//! Addresses of databases, and what of them may be shown.

/// What comes before the first `:`, if it can be a scheme.
pub(super) fn scheme(url: &str) -> Option<&str> {
    let (scheme, _) = url.split_once(':')?;
    (!scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(scheme)
}

/// The address with `***` instead of its password, wherever it is.
pub(super) fn masked(url: &str) -> String {
    let (address, query) = match url.split_once('?') {
        Some((address, query)) => (address, Some(query)),
        None => (url, None),
    };
    let mut shown = masked_authority(address);
    if let Some(query) = query {
        let parameter = |pair: &str| match pair.split_once('=') {
            Some((name, _)) if !may_be_shown(name) => format!("{name}=***"),
            _ => pair.to_owned(),
        };
        shown.push('?');
        shown.push_str(&query.split('&').map(parameter).collect::<Vec<_>>().join("&"));
    }
    shown
}

/// Parameters that never hold a secret.
fn may_be_shown(name: &str) -> bool {
    ["sslmode", "host", "hostaddr", "port", "dbname", "user", "application_name", "mode"].contains(&name)
}

/// A password may contain `/` or `@` that should have been encoded: everything to the last `@` is mistrusted.
fn masked_authority(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let Some((login, place)) = rest.rsplit_once('@') else { return address.to_owned() };
    match login.split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:***@{place}"),
        None => address.to_owned(),
    }
}

/// The first parameter that is not one of `known`. The driver would write it into the log, value and all.
pub(super) fn unknown_parameter<'u>(url: &'u str, known: &[&str]) -> Option<&'u str> {
    let (_, query) = url.split_once('?')?;
    let names = query.split('&').map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
    names.into_iter().find(|name| !name.is_empty() && !name.starts_with("options[") && !known.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://me:s3cret@db/rules", "postgres://me:***@db/rules"),
            ("postgres://me:s/3@cret@db:5432/rules", "postgres://me:***@db:5432/rules"),
            ("postgres://me@db/rules?password=s3cret&port=1", "postgres://me@db/rules?password=***&port=1"),
            ("postgres://me@db/rules", "postgres://me@db/rules"),
            ("sqlite://rules.db?mode=ro", "sqlite://rules.db?mode=ro"),
        ] {
            assert_eq!(masked(url), shown);
        }
    }

    #[test]
    fn paths_and_stray_text_have_no_scheme_that_is_known() {
        assert_eq!(scheme("sqlite:///var/rules.db"), Some("sqlite"));
        assert_eq!(scheme("rules.yaml"), None);
        assert_eq!(scheme("./a:b"), None);
    }

    #[test]
    fn a_misspelt_parameter_is_found_by_its_name() {
        assert_eq!(
            unknown_parameter("postgres://db/x?sslmode=require&passwrd=s", &["sslmode"]),
            Some("passwrd")
        );
        assert_eq!(unknown_parameter("postgres://db/x?options[lock_timeout]=1", &[]), None);
    }
}
