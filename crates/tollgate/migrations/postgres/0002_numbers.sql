-- rate_per_second and tokens_at_time become numeric, ip_address becomes inet.

-- A rate is exact and has at most 6 decimals: 2.5 is 5 tokens per 2 s. The view is replaced rather than dropped, so that it
-- keeps its grants while the type of a column that it reads changes.
CREATE OR REPLACE VIEW rate_limit_rule_json AS SELECT rule_id, NULL::jsonb AS rule FROM rate_limit_rule;
ALTER TABLE rate_limit_rule
    DROP CONSTRAINT rate_limit_rule_rate_per_second_check,
    ALTER COLUMN rate_per_second TYPE numeric;
CREATE OR REPLACE VIEW rate_limit_rule_json AS
SELECT rule_id, to_jsonb(rate_limit_rule) AS rule FROM rate_limit_rule;

CREATE FUNCTION rate_limit_rule_rate() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    decimals integer := CASE WHEN NEW.rate_per_second < 1000000000 THEN 6 ELSE 0 END;
    nearest numeric := least(greatest(round(NEW.rate_per_second, decimals), 0.000001), 9007199254740991);
BEGIN
    IF NEW.rate_per_second <> nearest THEN
        RAISE EXCEPTION 'rate_per_second % is not a number from 0.000001 to 9007199254740991 with at most 6 decimals '
            '(none from 1000000000 on); the nearest accepted value is %', NEW.rate_per_second, trim_scale(nearest)
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER rate_limit_rule_rate BEFORE INSERT OR UPDATE OF rate_per_second ON rate_limit_rule
    FOR EACH ROW EXECUTE FUNCTION rate_limit_rule_rate();

-- The period of a rate with decimals is the denominator of its fraction in lowest terms: that of 2.5 is 2s.
DROP INDEX rate_limit_rule_identity;
CREATE UNIQUE INDEX rate_limit_rule_identity ON rate_limit_rule (
    key_pattern, coalesce(plan, ''), coalesce(action, ''), (coalesce("window", '') = 'calendar'),
    coalesce(split_part(replace(replace(replace(replace(limit_text, ' ', ''),
        'every', '/'), 'burst', '/'), 'queue', '/'), '/', 2),
        nullif((1000000 / gcd(rate_per_second * 1000000, 1000000))::bigint, 1)::text || 's', 's')
) WHERE name IS NULL;

-- What is not an address, because it is a pseudonym or because the caller sent something else, goes to ip_text.
CREATE FUNCTION rate_limit_violation_address(given text) RETURNS inet LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN strpos(given, '/') = 0 THEN given::inet END;
EXCEPTION WHEN invalid_text_representation THEN
    RETURN NULL;
END $$;
ALTER TABLE rate_limit_violation ADD COLUMN ip_text text;
UPDATE rate_limit_violation SET ip_text = ip_address
WHERE ip_address IS NOT NULL AND rate_limit_violation_address(ip_address) IS NULL;
ALTER TABLE rate_limit_violation
    ALTER COLUMN ip_address TYPE inet USING rate_limit_violation_address(ip_address),
    ALTER COLUMN tokens_at_time TYPE numeric;
DROP FUNCTION rate_limit_violation_address(text);
CREATE INDEX rate_limit_violation_ip_text ON rate_limit_violation (ip_text, requested_at DESC)
    WHERE ip_text IS NOT NULL;
