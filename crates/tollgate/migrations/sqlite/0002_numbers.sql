-- rate_per_second and tokens_at_time become numbers with decimals.
--
-- SQLite cannot change the type of a column, so both tables are made anew. Its numbers with decimals are doubles. A double
-- represents every number of 15 digits without loss; a rate has at most 6 decimals, and none from 10^9 on, so that it is
-- read back exactly as it was written: 2.5 is 5 tokens per 2 s.

DROP VIEW rate_limit_rule_json;
CREATE TABLE rate_limit_rule_new (
    rule_id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name             TEXT CHECK (length(name) BETWEEN 1 AND 128),
    key_pattern      TEXT NOT NULL CHECK (key_pattern <> ''),
    scope            TEXT CHECK (scope IN ('user', 'endpoint', 'ip', 'global', 'custom')),
    plan             TEXT CHECK (plan <> ''),
    rate_per_second  REAL CHECK (rate_per_second BETWEEN 0.000001 AND 9007199254740991),
    burst_capacity   INTEGER CHECK (burst_capacity BETWEEN 1 AND 9007199254740991),
    limit_text       TEXT CHECK (limit_text <> ''),
    algorithm        TEXT CHECK (algorithm IN ('token_bucket', 'token_bucket_interval', 'leaky_bucket', 'fixed_window',
                                               'sliding_window_log', 'sliding_window_counter')),
    "window"         TEXT CHECK ("window" IN ('epoch', 'first', 'spread', 'calendar')),
    time_zone        TEXT CHECK (time_zone <> ''),
    aligned          INTEGER CHECK (aligned IN (0, 1)),
    conditions       TEXT CHECK (json_type(conditions) = 'object'),
    cost             TEXT CHECK (cost <> ''),
    missing          TEXT CHECK (missing IN ('skip', 'deny', 'shared')),
    consistency      TEXT CHECK (consistency IN ('exact', 'leased', 'local', 'auto')),
    on_store_failure TEXT CHECK (on_store_failure IN ('open', 'closed', 'local')),
    mode             TEXT CHECK (mode IN ('enforce', 'shadow')),
    action           TEXT CHECK (action IN ('deny', 'allow')),
    replaces         TEXT CHECK (json_type(replaces) = 'array'),
    ipv6_prefix      INTEGER CHECK (ipv6_prefix BETWEEN 1 AND 128),
    is_active        INTEGER NOT NULL DEFAULT 1 CHECK (is_active IN (0, 1)),
    description      TEXT,
    created_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    updated_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    version          INTEGER NOT NULL DEFAULT 1,
    CONSTRAINT rate_and_burst_or_limit_text_or_action CHECK (
        (rate_per_second IS NOT NULL) + (limit_text IS NOT NULL) + (action IS NOT NULL) = 1
        AND (rate_per_second IS NULL) = (burst_capacity IS NULL)
    ),
    CONSTRAINT "rate_per_second takes at most 6 decimals, none from 1000000000 on; the nearest accepted value is round(rate_per_second, 6)"
    CHECK (
        rate_per_second = CAST(rate_per_second AS INTEGER)
        OR (rate_per_second < 1e9
            -- Older versions of SQLite read some numbers as the double next to the nearest.
            AND abs(round(rate_per_second * 1e6) / 1e6 - rate_per_second) <= rate_per_second * 2.3e-16)
    ),
    CONSTRAINT rate_per_second_is_a_token_bucket CHECK (
        rate_per_second IS NULL
        OR (coalesce(algorithm, 'token_bucket') = 'token_bucket' AND coalesce("window", aligned) IS NULL)
    ),
    CONSTRAINT an_action_takes_nothing_of_a_limit CHECK (
        action IS NULL OR coalesce(algorithm, "window", time_zone, aligned, cost) IS NULL
    ),
    CONSTRAINT time_zone_is_for_calendar_windows CHECK (time_zone IS NULL OR coalesce("window", '') = 'calendar')
) STRICT;

INSERT INTO rate_limit_rule_new (
    rule_id, name, key_pattern, scope, plan, rate_per_second, burst_capacity, limit_text, algorithm, "window", time_zone,
    aligned, conditions, cost, missing, consistency, on_store_failure, mode, action, replaces, ipv6_prefix, is_active,
    description, created_at, updated_at, version
) SELECT
    rule_id, name, key_pattern, scope, plan, rate_per_second, burst_capacity, limit_text, algorithm, "window", time_zone,
    aligned, conditions, cost, missing, consistency, on_store_failure, mode, action, replaces, ipv6_prefix, is_active,
    description, created_at, updated_at, version
FROM rate_limit_rule;

-- Numbers of rules that were removed are not used again.
DELETE FROM sqlite_sequence WHERE name = 'rate_limit_rule_new';
INSERT INTO sqlite_sequence (name, seq)
SELECT 'rate_limit_rule_new', seq FROM sqlite_sequence WHERE name = 'rate_limit_rule';

DROP TABLE rate_limit_rule;
ALTER TABLE rate_limit_rule_new RENAME TO rate_limit_rule;

-- A rule is its name; without one it is its key, plan and period, as far as the period is spelt the same. The period of a
-- rate with decimals is the denominator of its fraction in lowest terms: that of 2.5 is 2s. It is a product of twos and
-- fives; x & -x is the largest power of two that divides x.
CREATE UNIQUE INDEX rate_limit_rule_name ON rate_limit_rule (name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX rate_limit_rule_identity ON rate_limit_rule (
    key_pattern, coalesce(plan, ''), coalesce(action, ''), coalesce("window", '') = 'calendar',
    coalesce(json_extract(
        '[' || replace(replace(replace(replace(replace(json_quote(limit_text), ' ', ''),
            'every', '/'), 'burst', '/'), 'queue', '/'), '/', '","') || ']', '$[1]'),
        CASE WHEN rate_per_second <> CAST(rate_per_second AS INTEGER) THEN
            (64 / min(64, CAST(round(rate_per_second * 1e6) AS INTEGER) & -CAST(round(rate_per_second * 1e6) AS INTEGER))
            * CASE 0
                WHEN CAST(round(rate_per_second * 1e6) AS INTEGER) % 15625 THEN 1
                WHEN CAST(round(rate_per_second * 1e6) AS INTEGER) % 3125 THEN 5
                WHEN CAST(round(rate_per_second * 1e6) AS INTEGER) % 625 THEN 25
                WHEN CAST(round(rate_per_second * 1e6) AS INTEGER) % 125 THEN 125
                WHEN CAST(round(rate_per_second * 1e6) AS INTEGER) % 25 THEN 625
                WHEN CAST(round(rate_per_second * 1e6) AS INTEGER) % 5 THEN 3125
                ELSE 15625
            END) || 's'
        END, 's')
) WHERE name IS NULL;

-- A rule as JSON, with its rate as a decimal number. The triggers read it on both sides of a change.
CREATE VIEW rate_limit_rule_json AS
SELECT rule_id, json_object(
    'rule_id', rule_id, 'name', name, 'key_pattern', key_pattern, 'scope', scope, 'plan', plan,
    'rate_per_second', json(CASE WHEN rate_per_second IS NOT NULL
        THEN rtrim(rtrim(printf('%.6f', rate_per_second), '0'), '.') END),
    'burst_capacity', burst_capacity, 'limit_text', limit_text,
    'algorithm', algorithm, 'window', "window", 'time_zone', time_zone,
    'aligned', json(CASE aligned WHEN 1 THEN 'true' WHEN 0 THEN 'false' ELSE 'null' END),
    'conditions', json(conditions), 'cost', cost, 'missing', missing, 'consistency', consistency,
    'on_store_failure', on_store_failure, 'mode', mode, 'action', action, 'replaces', json(replaces),
    'ipv6_prefix', ipv6_prefix, 'is_active', json(CASE is_active WHEN 1 THEN 'true' ELSE 'false' END),
    'description', description, 'created_at', created_at, 'updated_at', updated_at, 'version', version
) AS rule FROM rate_limit_rule;

CREATE TRIGGER rate_limit_rule_inserted AFTER INSERT ON rate_limit_rule BEGIN
    UPDATE rate_limit_rule_set SET version = version + 1;
    INSERT INTO rate_limit_rule_history (rule_id, changed_by, rule_after)
    SELECT NEW.rule_id, coalesce(changed_by, 'sql'), rule FROM rate_limit_rule_set, rate_limit_rule_json
    WHERE rule_id = NEW.rule_id;
END;

CREATE TRIGGER rate_limit_rule_deleted BEFORE DELETE ON rate_limit_rule BEGIN
    UPDATE rate_limit_rule_set SET version = version + 1;
    INSERT INTO rate_limit_rule_history (rule_id, changed_by, rule_before)
    SELECT OLD.rule_id, coalesce(changed_by, 'sql'), rule FROM rate_limit_rule_set, rate_limit_rule_json
    WHERE rule_id = OLD.rule_id;
END;

-- The columns that an update may change; `version` and `updated_at` are the trigger's own, so it never calls itself.
CREATE TRIGGER rate_limit_rule_updating BEFORE UPDATE OF
    rule_id, name, key_pattern, scope, plan, rate_per_second, burst_capacity, limit_text, algorithm, "window", time_zone,
    aligned, conditions, cost, missing, consistency, on_store_failure, mode, action, replaces, ipv6_prefix, is_active,
    description, created_at
ON rate_limit_rule BEGIN
    UPDATE rate_limit_rule_set SET version = version + 1;
    INSERT INTO rate_limit_rule_history (rule_id, changed_by, rule_before)
    SELECT OLD.rule_id, coalesce(changed_by, 'sql'), rule FROM rate_limit_rule_set, rate_limit_rule_json
    WHERE rule_id = OLD.rule_id;
END;

CREATE TRIGGER rate_limit_rule_updated AFTER UPDATE OF
    rule_id, name, key_pattern, scope, plan, rate_per_second, burst_capacity, limit_text, algorithm, "window", time_zone,
    aligned, conditions, cost, missing, consistency, on_store_failure, mode, action, replaces, ipv6_prefix, is_active,
    description, created_at
ON rate_limit_rule BEGIN
    UPDATE rate_limit_rule
    SET version = OLD.version + 1, updated_at = strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'
    WHERE rule_id = NEW.rule_id;
    UPDATE rate_limit_rule_history
    SET rule_after = (SELECT rule FROM rate_limit_rule_json WHERE rule_id = NEW.rule_id)
    WHERE history_id = (SELECT max(history_id) FROM rate_limit_rule_history WHERE rule_id = OLD.rule_id);
END;

CREATE TABLE rate_limit_violation_new (
    violation_id   INTEGER PRIMARY KEY,
    bucket_key     TEXT NOT NULL,
    user_id        TEXT,
    ip_address     TEXT,
    endpoint       TEXT,
    requested_at   TEXT NOT NULL,
    tokens_at_time REAL,
    rule_id        INTEGER,
    rule_name      TEXT NOT NULL,
    count          INTEGER NOT NULL DEFAULT 1 CHECK (count >= 1)
) STRICT;
INSERT INTO rate_limit_violation_new (
    violation_id, bucket_key, user_id, ip_address, endpoint, requested_at, tokens_at_time, rule_id, rule_name, count
) SELECT
    violation_id, bucket_key, user_id, ip_address, endpoint, requested_at, tokens_at_time, rule_id, rule_name, count
FROM rate_limit_violation;
DROP TABLE rate_limit_violation;
ALTER TABLE rate_limit_violation_new RENAME TO rate_limit_violation;
CREATE INDEX rate_limit_violation_user ON rate_limit_violation (user_id, requested_at DESC);
CREATE INDEX rate_limit_violation_address ON rate_limit_violation (ip_address, requested_at DESC);
CREATE INDEX rate_limit_violation_newest ON rate_limit_violation (requested_at DESC);
