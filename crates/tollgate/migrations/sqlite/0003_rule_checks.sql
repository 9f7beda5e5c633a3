-- Refuses what no rule can have.
--
-- Triggers, because SQLite cannot add a constraint to a table. Rows that are there already are not checked: an upgrade must not
-- fail because of one, and tollgate lists it with its error.

CREATE TRIGGER rate_limit_rule_inserting_conditions BEFORE INSERT ON rate_limit_rule
WHEN json_type(NEW.conditions) = 'object' AND EXISTS (
    SELECT 1 FROM json_each(NEW.conditions) AS condition
    WHERE condition.type IN ('object', 'null') OR EXISTS (
        SELECT 1 FROM json_each(CASE condition.type WHEN 'array' THEN condition.value ELSE '[]' END) AS item
        WHERE item.type IN ('object', 'array', 'null'))
) BEGIN
    SELECT RAISE(ABORT, 'CHECK constraint failed: conditions_are_values_or_lists_of_values');
END;

CREATE TRIGGER rate_limit_rule_updating_conditions BEFORE UPDATE OF conditions ON rate_limit_rule
WHEN json_type(NEW.conditions) = 'object' AND EXISTS (
    SELECT 1 FROM json_each(NEW.conditions) AS condition
    WHERE condition.type IN ('object', 'null') OR EXISTS (
        SELECT 1 FROM json_each(CASE condition.type WHEN 'array' THEN condition.value ELSE '[]' END) AS item
        WHERE item.type IN ('object', 'array', 'null'))
) BEGIN
    SELECT RAISE(ABORT, 'CHECK constraint failed: conditions_are_values_or_lists_of_values');
END;

CREATE TRIGGER rate_limit_rule_inserting_replaces BEFORE INSERT ON rate_limit_rule
WHEN json_type(NEW.replaces) = 'array' AND EXISTS (
    SELECT 1 FROM json_each(NEW.replaces) AS item WHERE item.type IN ('object', 'array', 'null')
) BEGIN
    SELECT RAISE(ABORT, 'CHECK constraint failed: replaces_are_names');
END;

CREATE TRIGGER rate_limit_rule_updating_replaces BEFORE UPDATE OF replaces ON rate_limit_rule
WHEN json_type(NEW.replaces) = 'array' AND EXISTS (
    SELECT 1 FROM json_each(NEW.replaces) AS item WHERE item.type IN ('object', 'array', 'null')
) BEGIN
    SELECT RAISE(ABORT, 'CHECK constraint failed: replaces_are_names');
END;

-- Numbers of rules begin at 1 and are exact in JSON. After the insertion: before it SQLite has not chosen a number yet.
CREATE TRIGGER rate_limit_rule_inserted_number AFTER INSERT ON rate_limit_rule
WHEN NEW.rule_id NOT BETWEEN 1 AND 9007199254740991 BEGIN
    SELECT RAISE(ABORT, 'CHECK constraint failed: rule_id_is_positive');
END;

CREATE TRIGGER rate_limit_rule_updated_number AFTER UPDATE OF rule_id ON rate_limit_rule
WHEN NEW.rule_id NOT BETWEEN 1 AND 9007199254740991 BEGIN
    SELECT RAISE(ABORT, 'CHECK constraint failed: rule_id_is_positive');
END;
