-- Constraints that refuse what no rule can have.
--
-- Rows that are there already are not checked: an upgrade must not fail because of one, and tollgate lists it with its error.

-- Strict paths look at a value as it is; by default an array would stand for its items.
ALTER TABLE rate_limit_rule
    ADD CONSTRAINT conditions_are_values_or_lists_of_values CHECK (
        NOT jsonb_path_exists(conditions, 'strict $.* ? (@.type() == "object" || @.type() == "null")')
        AND NOT jsonb_path_exists(conditions, 'strict $.* ? (@.type() == "array") [*]
            ? (@.type() == "object" || @.type() == "array" || @.type() == "null")')
    ) NOT VALID,
    ADD CONSTRAINT replaces_are_names CHECK (
        NOT jsonb_path_exists(replaces, 'strict $[*]
            ? (@.type() == "object" || @.type() == "array" || @.type() == "null")')
    ) NOT VALID;

-- Numbers of rules begin at 1 and are exact in JSON. A trigger, because a constraint would also refuse every other change of a
-- row that has another number already. It also keeps the sequence ahead of numbers that were given by hand, with the rights
-- of the tables' owner: a later insertion without a number would otherwise collide with them.
CREATE FUNCTION rate_limit_rule_numbered() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    numbers text := pg_get_serial_sequence(format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME), 'rule_id');
    is_ahead boolean;
BEGIN
    IF NEW.rule_id NOT BETWEEN 1 AND 9007199254740991 THEN
        RAISE check_violation USING
            MESSAGE = format('rule_id %s is not between 1 and 9007199254740991', NEW.rule_id),
            CONSTRAINT = 'rule_id_is_positive', TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
    END IF;
    EXECUTE format('SELECT last_value > $1 OR (last_value = $1 AND is_called) FROM %s', numbers)
        INTO is_ahead USING NEW.rule_id;
    IF NOT is_ahead THEN
        PERFORM setval(numbers, NEW.rule_id);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER rate_limit_rule_numbered AFTER INSERT OR UPDATE OF rule_id ON rate_limit_rule
    FOR EACH ROW EXECUTE FUNCTION rate_limit_rule_numbered();

-- The same once for the rows that are there.
DO $$
DECLARE
    numbers text := pg_get_serial_sequence('rate_limit_rule', 'rule_id');
    largest bigint := (SELECT max(rule_id) FROM rate_limit_rule WHERE rule_id BETWEEN 1 AND 9007199254740991);
    is_ahead boolean;
BEGIN
    EXECUTE format('SELECT last_value > $1 OR (last_value = $1 AND is_called) FROM %s', numbers)
        INTO is_ahead USING largest;
    IF NOT is_ahead THEN
        PERFORM setval(numbers, largest);
    END IF;
END $$;
