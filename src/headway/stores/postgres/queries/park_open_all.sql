-- park_open_all: the rules are new: let all that was put aside try again.
-- params  namespace_id
UPDATE {schema}.park SET open = true, open_at = NULL WHERE namespace_id = :namespace_id;
