-- park_open_all: the rules are new: let all that was put aside try again.
-- params  namespace_id
UPDATE park SET open = 1, open_at = NULL WHERE namespace_id = :namespace_id;
