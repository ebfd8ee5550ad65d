-- enter: begin a transaction on a namespace, with others or alone; who may come to wait says so.
-- params  namespace_id, now_at, alone, waits
SELECT now_at, rules, parked FROM {schema}.enter_{version}(:namespace_id, :now_at, :alone, :waits);
