-- park_due: open the parks whose rate lets another job start.
-- params  namespace_id, now_at
UPDATE {schema}.park SET open = true, open_at = NULL WHERE namespace_id = :namespace_id AND open_at <= :now_at;
